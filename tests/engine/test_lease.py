"""Keeping a lease: who is dead, that it never runs out under a living process, and what is told when it is lost."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.engine.lease import LeaseKeeper
from holdfast.errors import AlreadyRunningError, LeaseLostError, StoreFullError
from holdfast.meta import Lease, MetaStore
from holdfast.meta.lease_holder import LeaseHolder, is_dead

PIPELINE = "p"
HOST = socket.gethostname()


@pytest.fixture
def meta(where: Path | str) -> Iterator[MetaStore]:
    store = MetaStore(where, sync=False)
    yield store
    store.close()


def owner(pid: int, started: float) -> str:
    return f"{HOST}:{pid}:{started:.2f}"


def wait_for_failure(keeper: LeaseKeeper) -> None:
    """Call `renew` as the driver does, until it raises."""
    for _ in range(1000):
        keeper.renew()
        time.sleep(0.01)


def lease_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == f"lease-{PIPELINE}"]


def test_a_lease_is_held_and_let_go(meta: MetaStore) -> None:
    with LeaseKeeper(meta, PIPELINE, lambda: 100.0) as keeper:
        keeper.renew()
        held = meta.lease_holder(PIPELINE)
        assert held is not None
        assert not is_dead(held.owner)
        assert held.expires == 130.0
        with pytest.raises(AlreadyRunningError), LeaseKeeper(meta, PIPELINE, lambda: 100.0):
            pass
        assert len(lease_threads()) == 1
    assert lease_threads() == []
    with LeaseKeeper(meta, PIPELINE, lambda: 100.0) as again:
        assert again.lease.token == keeper.lease.token + 1


def test_the_lease_of_a_dead_owner_is_taken_at_once(meta: MetaStore) -> None:
    meta.acquire(PIPELINE, owner(os.getpid(), 1.0), now=100.0, seconds=30.0)
    with LeaseKeeper(meta, PIPELINE, lambda: 101.0) as keeper:
        assert keeper.lease.token == 2


def test_a_lease_that_was_taken_before_the_clock_was_set_back_ends_when_its_seconds_are_over(meta: MetaStore) -> None:
    elsewhere = "another-machine:7:1.00"
    lease = meta.acquire(PIPELINE, elsewhere, now=5_000.0, seconds=30.0)
    with pytest.raises(AlreadyRunningError):
        meta.acquire(PIPELINE, "me", now=100.0, seconds=30.0)
    with pytest.raises(AlreadyRunningError):
        meta.acquire(PIPELINE, "me", now=129.0, seconds=30.0)
    assert meta.acquire(PIPELINE, "me", now=131.0, seconds=30.0).token == lease.token + 1


def test_whose_clock_is_ahead_keeps_its_lease_by_renewing_it(meta: MetaStore) -> None:
    lease = meta.acquire(PIPELINE, "another-machine:7:1.00", now=5_000.0, seconds=30.0)
    for now in range(100, 200, 10):
        with pytest.raises(AlreadyRunningError):
            meta.acquire(PIPELINE, "me", now=float(now), seconds=30.0)
        meta.renew(lease, now + 4_900.0, 30.0)
    assert meta.lease_holder(PIPELINE) == LeaseHolder(lease.token, "another-machine:7:1.00", 5_120.0)


def test_of_two_starts_that_find_the_owner_dead_one_gets_the_lease(meta: MetaStore) -> None:
    """The second has judged before the first took it."""
    dead = owner(os.getpid(), 1.0)
    meta.acquire(PIPELINE, dead, now=100.0, seconds=30.0)

    first = LeaseKeeper(meta, PIPELINE, lambda: 101.0)
    overtaken = SimpleNamespace(lease_holder=lambda _: LeaseHolder(1, dead, 130.0), acquire=meta.acquire)
    second = LeaseKeeper(overtaken, PIPELINE, lambda: 101.0)  # type: ignore[arg-type]
    with first:
        with pytest.raises(AlreadyRunningError), second:
            pass
        meta.confirm(first.lease)


def test_the_lease_outlives_a_long_step_of_the_driver(meta: MetaStore) -> None:
    now = 1_000.0
    with LeaseKeeper(meta, PIPELINE, lambda: now, seconds=0.3) as keeper:
        for _ in range(4):
            now += 0.2  # the driver is busy: nobody calls `renew`
            while meta.lease_holder(PIPELINE).expires < now + 0.3:  # type: ignore[union-attr]
                time.sleep(0.01)  # until the keeper's thread has renewed it
            with pytest.raises(AlreadyRunningError):
                meta.acquire(PIPELINE, "you", now, 30.0)
        keeper.renew()


def test_a_lost_lease_is_told_at_the_next_renew(meta: MetaStore) -> None:
    with LeaseKeeper(meta, PIPELINE, time.time, seconds=0.3) as keeper:
        new = meta.acquire(PIPELINE, "you", time.time(), 1000.0, dead_owner=keeper.lease.owner)
        with pytest.raises(LeaseLostError, match="taken over"):
            wait_for_failure(keeper)
    held = meta.lease_holder(PIPELINE)
    assert held is not None
    assert held.owner == new.owner
    assert held.expires > time.time(), "the new owner's lease is not let go by the old one"


def test_a_full_disk_is_told_at_the_next_renew(meta: MetaStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise StoreFullError("cannot write", cure="free space")

    monkeypatch.setattr(meta, "renew", full)
    with pytest.raises(StoreFullError), LeaseKeeper(meta, PIPELINE, time.time, seconds=0.05) as keeper:
        wait_for_failure(keeper)
    assert lease_threads() == []


def test_a_release_that_fails_does_not_hide_the_first_error(meta: MetaStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(lease: Lease) -> None:
        raise StoreFullError("cannot write", cure="free space")

    monkeypatch.setattr(meta, "release", full)
    with pytest.raises(ZeroDivisionError), LeaseKeeper(meta, PIPELINE, lambda: 100.0):
        raise ZeroDivisionError
    with pytest.raises(StoreFullError), LeaseKeeper(meta, PIPELINE, lambda: 200.0):
        pass
