"""Several processes at one store, each with connections of its own: epochs are committed once, entries have no gaps."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from together import at_once

from holdfast.errors import AlreadyRunningError, LeaseLostError
from holdfast.meta import Lease, MetaStore, NewEntry, StreamMeta
from stored_texts import commit_with, plan_epoch, plan_text, text

PIPELINE, STREAM = "p", "p.kept"
EPOCHS = 40


def check_gapless(streams: StreamMeta, count: int) -> None:
    found = streams.entries(STREAM, 0)
    assert [entry.number for entry in found] == list(range(1, count + 1))
    assert [entry.offset for entry in found] == [sum(e.rows for e in found[:number]) for number in range(count)]
    state = streams.state(STREAM)
    assert (state.number, state.offset) == (count, sum(entry.rows for entry in found))


def test_epochs_are_planned_and_committed_once_whoever_tries(where: Path | str) -> None:
    """Also by those who hold the same lease: a process whose commit was not answered tries again."""
    stores = [MetaStore(where, sync=False) for _ in range(3)]
    StreamMeta(stores[0]).declare(STREAM, "{}")
    lease = stores[0].acquire(PIPELINE, "me", 0.0, 1e9)
    committed: Counter[int] = Counter()
    plans: list[tuple[int, str]] = []

    def committing(who: int) -> Callable[[], None]:
        meta, streams = stores[who], StreamMeta(stores[who])

        def work() -> None:
            for epoch in range(1, EPOCHS + 1):
                plans.append((epoch, plan_epoch(meta, lease, epoch, plan_text({"by": who}), 1.0)))

                def also(connection: sa.Connection, epoch: int = epoch) -> None:
                    streams.append(connection, STREAM, [NewEntry(who + 1, 1, text({"epoch": epoch, "by": who}))], 1.0)

                if commit_with(meta, lease, epoch, text({"by": who}), 2.0, also):
                    committed[epoch] += 1

        return work

    def appending() -> None:
        streams = StreamMeta(stores[0])
        for number in range(EPOCHS):
            with stores[0].writing() as connection:
                streams.append(connection, STREAM, [NewEntry(2, 1, text({"more": number}))], 1.0)

    at_once(committing(0), committing(1), committing(2), appending)
    assert committed == dict.fromkeys(range(1, EPOCHS + 1), 1)
    assert len(set(plans)) == EPOCHS, "all saw the same plans"
    commits = stores[0].commits(PIPELINE)
    streams = StreamMeta(stores[0])
    written = [json.loads(entry.content) for entry in streams.entries(STREAM, 0)]
    assert [(c["epoch"], c["by"]) for c in written if "epoch" in c] == [
        (c.epoch, json.loads(c.record)["by"]) for c in commits[::-1]
    ]
    assert [c["more"] for c in written if "more" in c] == list(range(EPOCHS))
    check_gapless(streams, 2 * EPOCHS)
    for store in stores:
        store.close()


def test_the_lease_changes_hands_in_the_middle_and_nothing_is_done_twice(where: Path | str) -> None:
    stores = [MetaStore(where, sync=False) for _ in range(3)]
    StreamMeta(stores[0]).declare(STREAM, "{}")
    committed: Counter[int] = Counter()
    lost: Counter[int] = Counter()

    def contending(who: int) -> Callable[[], None]:
        meta, streams = stores[who], StreamMeta(stores[who])

        def also(connection: sa.Connection) -> None:
            streams.append(connection, STREAM, [NewEntry(1, 1, text({"by": who}))], 1.0)

        def go_on(lease: Lease) -> bool:
            """Plan and commit until the lease is taken away; whether all is done."""
            while (epoch := meta.last_epoch(PIPELINE) + 1) <= EPOCHS:
                plan_epoch(meta, lease, epoch, plan_text({"by": who}), 1.0)
                if commit_with(meta, lease, epoch, text({"token": lease.token}), 2.0, also):
                    committed[epoch] += 1
                if epoch % 5 == who:
                    meta.acquire(PIPELINE, f"host-{who}-again", 0.0, 30.0, dead_owner=lease.owner)
            return True

        def work() -> None:
            while True:
                try:
                    held = meta.lease_holder(PIPELINE)
                    dead_owner = None if held is None else held.owner
                    if go_on(meta.acquire(PIPELINE, f"host-{who}", 0.0, 30.0, dead_owner)):
                        return
                except LeaseLostError:
                    lost[who] += 1
                except AlreadyRunningError:
                    pass  # somebody took it in the same moment
                time.sleep(0.03)

        return work

    at_once(*(contending(who) for who in range(3)))
    assert committed == dict.fromkeys(range(1, EPOCHS + 1), 1)
    assert sum(lost.values()) > 0, "hands have changed"
    tokens = [json.loads(commit.record)["token"] for commit in stores[0].commits(PIPELINE)][::-1]
    assert tokens == sorted(tokens), "nobody has committed after his successor"
    check_gapless(StreamMeta(stores[0]), EPOCHS)
    for store in stores:
        store.close()


def test_readers_of_several_streams_do_not_wait_for_one_another_in_a_circle(where: Path | str) -> None:
    """One fragment writes b from a; another reads both, in the other order."""
    stores = [MetaStore(where, sync=False) for _ in range(3)]
    for name in ("a", "b"):
        StreamMeta(stores[0]).declare(name, "{}")
        for reader in ("p.one", "p.two"):
            StreamMeta(stores[0]).subscribe(name, reader, 0.0)

    def moving(who: int, reader: str, order: tuple[str, str], writes: str | None) -> Callable[[], None]:
        streams = StreamMeta(stores[who])

        def work() -> None:
            for number in range(1, EPOCHS + 1):
                with stores[who].writing() as connection:
                    if writes is not None:
                        streams.append(connection, writes, [NewEntry(1, 1, "{}")], 1.0)
                    for name in order:
                        streams.mark(connection, name, ["release"], reader, number, number, number, 1.0)

        return work

    def subscribing() -> None:
        streams = StreamMeta(stores[2])
        for number in range(EPOCHS):
            streams.subscribe("ab"[number % 2], f"p.{number}", 0.0)

    at_once(moving(0, "p.one", ("a", "b"), "b"), moving(1, "p.two", ("b", "a"), "a"), subscribing)
    for name in ("a", "b"):
        assert StreamMeta(stores[0]).state(name).number == EPOCHS
        released = {m.by: m.number for m in StreamMeta(stores[0]).markers(name) if m.kind == "release"}
        assert (released["p.one"], released["p.two"]) == (EPOCHS, EPOCHS)
    for store in stores:
        store.close()


def test_a_stream_is_declared_by_many_at_once_and_the_first_description_stays(where: Path | str) -> None:
    stores = [MetaStore(where, sync=False) for _ in range(4)]
    names = [f"p.kept-{number}" for number in range(20)]
    found: dict[str, list[Any]] = {name: [] for name in names}

    def declaring(who: int) -> None:
        for name in names:
            found[name].append(StreamMeta(stores[who]).declare(name, text({"by": who})).description)

    at_once(*(partial(declaring, who) for who in range(4)))
    for name in names:
        assert found[name] == [StreamMeta(stores[0]).state(name).description] * 4
    for store in stores:
        store.close()


def test_who_takes_over_sees_a_renewal_of_the_same_moment(where: Path | str) -> None:
    holder, taker = (MetaStore(where, sync=False) for _ in range(2))
    lease = holder.acquire(PIPELINE, "me", 0.0, 30.0)
    told: list[BaseException] = []

    def taking() -> None:
        try:
            taker.acquire(PIPELINE, "you", 40.0, 30.0)
        except AlreadyRunningError as error:
            told.append(error)

    thread = threading.Thread(target=taking)
    with holder.writing() as connection:
        holder.fence(connection, lease, 60.0)
        thread.start()
        time.sleep(0.3)  # meanwhile the other one has found it expired, if it does not wait
    thread.join()
    assert len(told) == 1
    for store in (holder, taker):
        store.close()
