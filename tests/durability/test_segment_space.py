"""Segments over many epochs: every retained epoch can be read, and the disk holds little that is dead."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from holdfast.durability.retention import Retention
from holdfast.pstream import PUnit, append_punit, punit, read_punit
from holdfast.state.manifest import Manifest
from holdfast.state.tables import KeyedTable, Writer
from holdfast.store import DirectoryStore, Private, SegmentWriter, segment_of
from holdfast.task.dead_space import carried_over, mostly_dead

MINE = Private("the test's own")
SCHEMA = pl.Schema({"k": pl.Int64, "v": pl.Int64})


@dataclass
class Worker:
    """Has tables of its own, which are there when they are first written to."""

    store: DirectoryStore
    epochs: int
    manifest: Manifest = field(default_factory=Manifest)
    expected: dict[str, dict[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.segments = SegmentWriter(self.store.root, sync=False, epochs=self.epochs)

    def table(self, name: str) -> KeyedTable:
        return KeyedTable(name, ("k",), SCHEMA, self.store)

    def epoch(self, epoch: int, rows: dict[str, dict[int, int]]) -> Manifest:
        writer = Writer(self.store, "op", "x", segments=self.segments, epoch=epoch)
        manifest = self.manifest
        for name, values in rows.items():
            frame = pl.DataFrame({"k": list(values), "v": list(values.values())}, schema=SCHEMA)
            manifest = self.table(name).write(manifest, writer, frame, None)
            self.expected.setdefault(name, {}).update(values)
        self.manifest = carried_over(manifest, writer, mostly_dead(self.store, {"op": [self.manifest]}, epoch))
        self.segments.sync()
        return self.manifest

    def check(self) -> None:
        for name, values in self.expected.items():
            found = self.table(name).scan(self.manifest).sort("k")
            assert_frame_equal(found, pl.DataFrame(sorted(values.items()), schema=SCHEMA, orient="row"))


def names_of(manifest: Manifest) -> frozenset[str]:
    return frozenset(piece.punit.name for piece in manifest.pieces)


def disk_bytes(store: DirectoryStore) -> int:
    return sum(store.path(name).stat().st_size for name in store.names())


def test_the_disk_holds_four_times_the_state_and_the_open_segments_at_most(tmp_path: Path) -> None:
    """Most of what an epoch writes is dead soon, but for a little that never changes again."""
    punit.close_all()
    store, retain, epochs = DirectoryStore(tmp_path, sync=False), 4, 16
    worker = Worker(store, epochs)
    retention = Retention(store, retain, MINE)
    named: dict[str, int] = {}
    most = 0.0
    for epoch in range(1, 1201):
        rows = {"steady": {(epoch * 7 + n) % 50: epoch for n in range(5)}}
        if epoch % 40 == 0:
            rows[f"still {epoch}"] = {1: epoch}
        before = disk_bytes(store)
        manifest = worker.epoch(epoch, rows)
        written = disk_bytes(store) - before
        retention.add(epoch, names_of(manifest))
        named |= {piece.punit.name: piece.punit.bytes for piece in manifest.pieces}
        retained = sum(named[name] for name in retention.names() & named.keys())
        # What the open segment may hold, and one that was closed since the oldest retained epoch.
        growing = (epochs + retain) * max(written, 4_000)
        most = max(most, (disk_bytes(store) - growing) / retained)
        if epoch % 200 == 0:
            worker.check()
    assert 0.5 < most <= 4


def test_what_lives_on_in_a_dead_segment_is_carried_over_once(tmp_path: Path) -> None:
    punit.close_all()
    store = DirectoryStore(tmp_path, sync=False)
    worker = Worker(store, epochs=2)
    worker.epoch(1, {"still": {1: 1}, "steady": dict.fromkeys(range(500), 1)})
    first = {segment_of(name) for name in names_of(worker.manifest)}
    for epoch in range(2, 40):
        worker.epoch(epoch, {"steady": dict.fromkeys(range(500), epoch)})
    assert first.isdisjoint({segment_of(name) for name in names_of(worker.manifest)})
    still = [piece.punit.name for piece in worker.manifest.table("still")]
    for epoch in range(40, 43):
        worker.epoch(epoch, {"steady": dict.fromkeys(range(500), epoch)})
    assert sum(segment_of(name) == segment_of(still[0]) for name in names_of(worker.manifest)) >= 1
    worker.check()


def test_a_segment_is_not_removed_while_it_may_be_appended_to(tmp_path: Path) -> None:
    punit.close_all()
    store = DirectoryStore(tmp_path, sync=False)
    writer = SegmentWriter(store.root, sync=False, epochs=8)
    retention = Retention(store, 1, MINE)
    first = append_punit(writer, 1, pl.DataFrame({"n": [1]}))
    retention.add(1, frozenset({first.name}))
    for epoch in range(2, 7):
        retention.add(epoch, frozenset())
        retention.sweep(epoch + 1)
    later = append_punit(writer, 7, pl.DataFrame({"n": [7]}))
    assert segment_of(later.name) == segment_of(first.name)
    retention.add(7, frozenset({later.name}))
    assert read_punit(store, later)["n"].to_list() == [7]
    retention.add(8, frozenset())
    assert list(store.names()) == []


def test_a_sweep_between_epochs_removes_what_lost_tasks_have_left(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path, sync=False)
    retention = Retention(store, 2, MINE)
    lost, kept = (SegmentWriter(store.root, sync=False, epochs=2) for _ in range(2))
    append_punit(lost, 1, pl.DataFrame({"n": [0]}))
    for epoch in range(1, 7):
        retention.add(epoch, frozenset({append_punit(kept, epoch, pl.DataFrame({"n": [epoch]})).name}))
    assert len(list(store.names())) == 2
    retention.sweep(7)
    assert set(store.names()) == {name for name in retention.names() if segment_of(name) is None}


Step = st.fixed_dictionaries(
    {
        "writes": st.lists(st.tuples(st.integers(0, 2), st.integers(1, 400)), max_size=5),
        "lost": st.sampled_from([False, False, False, True]),
        "dies": st.sampled_from([None, None, None, 0, 1, 2]),
        "forgets": st.lists(st.integers(0, 30), max_size=6),
        "sweeps": st.booleans(),
    }
)


@settings(max_examples=60, deadline=None)
@given(st.lists(Step, min_size=1, max_size=40), st.integers(1, 5), st.integers(1, 6))
def test_every_retained_epoch_is_read_whatever_is_lost_and_whoever_dies(
    tmp_path_factory: object, steps: list[dict[str, object]], retain: int, epochs: int
) -> None:
    """Three workers append; attempts are lost, workers die and are replaced, units die at random, sweeps come at any
    time between epochs."""
    root: Path = tmp_path_factory.mktemp("segments")  # type: ignore[attr-defined]
    punit.close_all()
    store = DirectoryStore(root, sync=False)
    retention = Retention(store, retain, MINE)
    writers = [SegmentWriter(root, sync=False, epochs=epochs) for _ in range(3)]
    live: dict[str, PUnit] = {}
    retained: dict[int, list[PUnit]] = {}
    epoch = 0
    for number, step in enumerate(steps):
        made = [
            append_punit(writers[who], epoch + 1, pl.DataFrame({"n": [number] * rows}))
            for who, rows in step["writes"]  # type: ignore[attr-defined]
        ]
        if step["dies"] is not None:
            at = int(step["dies"])  # type: ignore[call-overload]
            writers[at].close()
            writers[at] = SegmentWriter(root, sync=False, epochs=epochs)
        if step["lost"]:
            continue  # the epoch is run again
        epoch += 1
        for at in step["forgets"]:  # type: ignore[attr-defined]
            live.pop(list(live)[at % len(live)], None) if live else None
        live |= {unit.name: unit for unit in made}
        retained[epoch] = list(live.values())
        retained.pop(epoch - retain, None)
        retention.add(epoch, frozenset(live))
        if step["sweeps"]:
            retention.sweep(epoch + 1)
        for units in retained.values():
            for unit in units:
                punit.close_all()
                assert read_punit(store, unit).height == unit.rows
