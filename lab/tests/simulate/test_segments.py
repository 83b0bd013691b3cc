"""Segments on a disk that loses power: what was synced is there, whatever became of the rest."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from holdfast.errors import CorruptPUnitError
from holdfast.pstream import PUnit, append_punit, punit, read_punit
from holdfast.store import DirectoryStore, OpenSegments, SyncedSegments, segment_of
from holdfast_lab.simulate.disk import Disk
from holdfast_lab.simulate.scheduler import Process, Scheduler
from holdfast_lab.simulate.system_calls import SystemCalls

TOLD = tuple[PUnit, pl.DataFrame]


class Machine:
    """Workers that append for epoch after epoch until the power fails, and go on afterwards."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.scheduler = Scheduler(seed)
        self.disk = Disk(self.scheduler, root)
        self.synced: list[TOLD] = []
        self.lost: list[TOLD] = []
        self.epoch = 0

    def live(self, epochs: int) -> None:
        """A life of one process: at its end something was appended and not synced."""
        random = self.scheduler.random
        segments = OpenSegments(epochs=random.randint(1, 5))
        for _ in range(epochs):
            self.epoch += 1
            made = [self._append(segments, place) for place in ("a", "b") for _ in range(random.randint(0, 3))]
            segments.sync()
            self.synced += made
        self.lost += [self._append(segments, "a") for _ in range(random.randint(1, 3))]

    def _append(self, segments: OpenSegments, place: str) -> TOLD:
        random = self.scheduler.random
        rows = pl.DataFrame({"place": [place] * random.randint(0, 300), "n": random.randint(0, 9)})
        unit = append_punit(segments.at(self.root / place, True), self.epoch, rows)
        assert self._is_readable(unit)
        return unit, rows

    def _is_readable(self, unit: PUnit) -> bool:
        return any(read_punit(self.store(place), unit).height == unit.rows for place in "ab" if self._has(place, unit))

    def _has(self, place: str, unit: PUnit) -> bool:
        return self.store(place).found(unit.name) is not None

    def store(self, place: str) -> DirectoryStore:
        return DirectoryStore(self.root / place)

    def read(self, told: TOLD) -> pl.DataFrame:
        unit, rows = told
        place = str(rows["place"][0]) if rows.height else "a" if self._has("a", unit) else "b"
        return read_punit(self.store(place), unit)


@pytest.mark.parametrize("seed", range(25))
def test_what_was_synced_is_read_after_every_power_loss(tmp_path: Path, seed: int) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    machine = Machine(root, seed)
    with SystemCalls(machine.scheduler, machine.disk).simulated():
        try:
            for life in range(4):
                machine.scheduler.spawn(Process(f"life {life}", "box"), lambda: machine.live(6), "main")
                machine.scheduler.run(1_000.0 * (life + 1))
                machine.disk.lose_power()
                punit.close_all()
                for unit, rows in machine.synced:
                    assert_frame_equal(machine.read((unit, rows)), rows)
                for unit, rows in machine.lost:  # it is there as it was written, or known not to be
                    try:
                        assert_frame_equal(machine.read((unit, rows)), rows)
                    except CorruptPUnitError:
                        continue
        finally:
            machine.scheduler.close()
    used = [segment_of(unit.name) for unit, _ in machine.synced]
    assert len(set(used)) < len(used), "segments hold several p-units"


def test_a_power_loss_leaves_what_was_appended_whole_torn_or_missing(tmp_path: Path) -> None:
    found = set()
    for seed in range(40):
        root = tmp_path / str(seed)
        root.mkdir()
        scheduler = Scheduler(seed)
        disk = Disk(scheduler, root)

        def work(root: Path = root) -> None:
            writer = OpenSegments(9).at(root, True)
            writer.append(1, memoryview(b"x" * 64))
            writer.sync()
            writer.append(2, memoryview(b"y" * 64))

        scheduler.spawn(Process("a", "box"), work, "main")
        with SystemCalls(scheduler, disk).simulated():
            try:
                scheduler.run(100.0)
                disk.lose_power()
            finally:
                scheduler.close()
        [file] = (root / "segments").iterdir()
        data = file.read_bytes()
        assert data.startswith(b"x" * 64)
        found.add(data[64:])
    assert {b"y" * 64, bytes(64)} <= found
    assert any(0 < len(tail) < 64 for tail in found)


def test_directories_that_a_killed_process_has_made_outlast_a_power_loss_once_a_receiver_has_acknowledged(
    tmp_path: Path,
) -> None:
    for seed in range(20):
        root = tmp_path / str(seed)
        root.mkdir()
        scheduler = Scheduler(seed)
        disk = Disk(scheduler, root)
        names: list[str] = []

        def work(stream: Path = root / "store" / "streams" / "p.rows", names: list[str] = names) -> None:
            (stream / "segments").mkdir(parents=True)  # their names are not synced
            names.append(SyncedSegments(stream, True, 1 << 20, Lock()).append(1, memoryview(b"x" * 64)))

        scheduler.spawn(Process("a", "box"), work, "main")
        with SystemCalls(scheduler, disk).simulated():
            try:
                scheduler.run(100.0)
                disk.lose_power()
            finally:
                scheduler.close()
        found = DirectoryStore(root / "store" / "streams" / "p.rows").found(names[0])
        assert found is not None
        assert found.read_bytes() == b"x" * 64
