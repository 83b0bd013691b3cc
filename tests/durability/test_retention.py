"""Retention: a p-unit stays as long as a retained epoch names it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.durability.retention import Retention
from holdfast.engine import lease
from holdfast.engine.restart import Restart
from holdfast.errors import LeaseLostError
from holdfast.meta import MetaStore, lease_holder
from holdfast.store import DirectoryStore, Private


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    result = DirectoryStore(tmp_path, sync=False)
    for name in "abcde":
        result.write(name, name.encode())
    return result


MINE = Private("the test's own")


@pytest.fixture
def meta(tmp_path: Path) -> Iterator[MetaStore]:
    opened = MetaStore(tmp_path.with_name(f"{tmp_path.name}-meta"), sync=False)
    yield opened
    opened.close()


def left(store: DirectoryStore) -> str:
    return "".join(sorted(store.names()))


def test_what_no_retained_epoch_names_is_removed(store: DirectoryStore) -> None:
    retention = Retention(store, retain=2, right=MINE)
    seen = []
    for epoch, files in enumerate(("a", "ab", "bc", "cd", "de"), start=1):
        retention.add(epoch, frozenset(files))
        seen.append(left(store))
    assert seen == ["abcde", "abcde", "abcde", "bcde", "cde"]


def test_the_epochs_to_keep_are_the_last_ones(store: DirectoryStore) -> None:
    retention = Retention(store, retain=3, right=MINE)
    assert [retention.keep_from(epoch) for epoch in (3, 4, 10)] == [1, 2, 8]


@pytest.mark.parametrize("retain", [0, 1])
def test_the_newest_epoch_is_always_kept(store: DirectoryStore, retain: int) -> None:
    retention = Retention(store, retain, right=MINE)
    assert retention.keep_from(7) == 7
    retention.add(1, frozenset("abc"))
    retention.add(2, frozenset("cde"))
    assert left(store) == "cde"


def test_a_sweep_removes_leftovers_only(store: DirectoryStore) -> None:
    retention = Retention(store, retain=2, right=MINE)
    retention.add(4, frozenset("ab"))
    retention.add(5, frozenset("bd"))
    retention.sweep()
    assert left(store) == "abd"


def test_a_sweep_before_the_first_epoch_removes_all(store: DirectoryStore) -> None:
    Retention(store, retain=2, right=MINE).sweep()
    assert left(store) == ""


def test_a_removal_that_was_interrupted_goes_on(store: DirectoryStore) -> None:
    retention = Retention(store, retain=1, right=MINE)
    retention.add(1, frozenset("ab"))
    store.remove("a", MINE)
    retention.add(2, frozenset("c"))
    assert left(store) == "cde"


class Asked:
    """A right that does something when it is checked."""

    def __init__(self, check: Callable[[], object]) -> None:
        self.check: Any = check


def test_a_sweep_takes_nothing_that_came_after_its_right_was_checked(store: DirectoryStore) -> None:
    """Who is stopped between the two may wake up when others have committed for long."""
    retention = Retention(store, retain=2, right=MINE)
    retention.add(5, frozenset("ab"))
    retention.sweep(right=Asked(lambda: store.write("f", b"of the next owner")))
    assert left(store) == "abf"


def test_who_has_lost_the_lease_removes_nothing(store: DirectoryStore, meta: MetaStore) -> None:
    lease = meta.acquire("p", "me", 0.0, 30.0)
    retention = Retention(store, retain=1, right=meta.right(lease))
    retention.add(1, frozenset("a"))
    retention.add(2, frozenset("b"))
    assert left(store) == "bcde"
    meta.acquire("p", "you", 31.0, 30.0)
    with pytest.raises(LeaseLostError):
        retention.sweep()
    with pytest.raises(LeaseLostError):
        retention.add(3, frozenset("c"))
    assert left(store) == "bcde"


def test_leftovers_of_all_kinds_are_swept_where_other_hosts_may_be_at_work(tmp_path: Path) -> None:
    store, now = DirectoryStore(tmp_path, sync=False), time.time()
    retention = Retention(store, retain=2, right=MINE, clock=lambda: now)
    old = ["a/t/000000000003-0-x-0.arrow", "a/t/.000000000003-0-x-0.arrow.f00d", "a/t/merged-old-0.arrow"]
    new = ["a/t/000000000008-0-x-0.arrow", "a/t/.000000000008-0-x-0.arrow.f00d", "a/t/merged-new-0.arrow"]
    named = ["a/t/merged-named-0.arrow"]
    for name in (*old, *new, *named):
        store.write(name, b"")
    for name in (old[2], named[0]):
        os.utime(store.path(name), (now - 90_000, now - 90_000))
    retention.add(7, frozenset(named))
    retention.sweep(before=8)
    assert sorted(store.names()) == sorted([*new, *named])


@pytest.mark.spark
def test_a_run_that_was_stopped_while_it_loaded_takes_nothing_from_the_next_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = [pl.DataFrame({"k": [0, 1, 2], "v": [epoch] * 3}) for epoch in range(9)]

    def run(epochs: int | None) -> None:
        pipeline = hf.Pipeline("counts")
        rows = pipeline.source("rows", hf.source.memory(frames, epochs=True)).key_by("k")
        rows.window(hf.window.count(100), name="totals").agg(total=hf.sum("v")).sink("out", hf.sink.collect())
        hf.run(
            pipeline, spark=spark, store=tmp_path, durable=False, max_epochs=epochs, checkpoint=hf.checkpoint.delta()
        )

    run(3)
    plain, stops = Restart.load, [True]

    def stopped(self: Restart, *given: Any) -> None:
        plain(self, *given)
        if stops and stops.pop():
            for module in (lease, lease_holder):  # as when the lease has expired
                monkeypatch.setattr(module, "is_dead", lambda owner: True)
            run(6)

    monkeypatch.setattr(Restart, "load", stopped)
    with pytest.raises(LeaseLostError):
        run(None)
    run(None)
    assert hf.state(tmp_path, "counts", "totals").height == 3
