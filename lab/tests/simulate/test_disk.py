"""The simulated disk: a power loss takes what was not synced, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import StoreFullError
from holdfast.store import durable_write, make_private, sync_names_above
from holdfast_lab.simulate.disk import Disk
from holdfast_lab.simulate.scheduler import Process, Scheduler
from holdfast_lab.simulate.system_calls import SystemCalls


def after_power_loss(root: Path, seed: int, work: Callable[[Path], None]) -> None:
    """What a process has done on a disk, and then the power fails."""
    root.mkdir()
    scheduler = Scheduler(seed)
    disk = Disk(scheduler, root)
    scheduler.spawn(Process("a", "box"), lambda: work(root), "main")
    with SystemCalls(scheduler, disk).simulated():
        try:
            scheduler.run(100.0)
            disk.lose_power()
        finally:
            scheduler.close()


def test_what_was_synced_with_its_name_stays(tmp_path: Path) -> None:
    for seed in range(20):
        root = tmp_path / str(seed)
        after_power_loss(root, seed, lambda root: durable_write(root / "deep" / "down" / "file", b"content"))
        assert (root / "deep" / "down" / "file").read_bytes() == b"content"


def test_the_directory_of_a_store_has_a_name_that_lasts(tmp_path: Path) -> None:
    def work(root: Path) -> None:
        make_private(root / "deep" / "store")
        durable_write(root / "deep" / "store" / "file", b"content")

    for seed in range(20):
        root = tmp_path / str(seed)
        after_power_loss(root, seed, work)
        assert (root / "deep" / "store" / "file").read_bytes() == b"content"


def test_what_was_not_synced_may_be_lost_torn_or_whole(tmp_path: Path) -> None:
    found = set()
    for seed in range(60):
        root = tmp_path / str(seed)
        after_power_loss(root, seed, lambda root: durable_write(root / "file", b"content", sync=False))
        found.add((root / "file").read_bytes() if (root / "file").exists() else None)
    assert {None, b"content"} <= found
    assert any(each is not None and each != b"content" for each in found)


def test_of_what_was_appended_after_a_sync_a_part_may_be_lost_and_nothing_before_it(tmp_path: Path) -> None:
    def work(root: Path) -> None:
        durable_write(root / "log", b"old.")
        os.fsync(os.open(root, os.O_RDONLY))
        with (root / "log").open("ab") as file:
            file.write(b"newer")

    found = set()
    for seed in range(60):
        after_power_loss(tmp_path / str(seed), seed, work)
        found.add((tmp_path / str(seed) / "log").read_bytes())
    assert all(data.startswith(b"old.") and len(data) <= len(b"old.newer") for data in found)
    assert {b"old.newer", b"old." + bytes(5)} < found
    assert any(b"old.newer".startswith(data) and data != b"old.newer" for data in found)


def test_a_synced_file_whose_name_was_not_synced_is_whole_or_gone(tmp_path: Path) -> None:
    def work(root: Path) -> None:
        with (root / "file").open("xb") as file:
            file.write(b"content")
            file.flush()
            os.fsync(file.fileno())

    found = set()
    for seed in range(30):
        root = tmp_path / str(seed)
        after_power_loss(root, seed, work)
        found.add((root / "file").read_bytes() if (root / "file").exists() else None)
    assert found == {None, b"content"}


def test_a_rename_is_all_or_nothing(tmp_path: Path) -> None:
    def work(root: Path) -> None:
        durable_write(root / "from" / "file", b"content")
        durable_write(root / "to" / "other", b"")
        os.rename(root / "from" / "file", root / "to" / "file")

    found = set()
    for seed in range(40):
        root = tmp_path / str(seed)
        after_power_loss(root, seed, work)
        found.add(((root / "from" / "file").exists(), (root / "to" / "file").exists()))
    assert found == {(True, False), (False, True)}


def test_a_removal_that_was_not_synced_may_be_undone(tmp_path: Path) -> None:
    def work(root: Path) -> None:
        durable_write(root / "file", b"content")
        os.unlink(root / "file")

    found = set()
    for seed in range(30):
        root = tmp_path / str(seed)
        after_power_loss(root, seed, work)
        found.add((root / "file").read_bytes() if (root / "file").exists() else None)
    assert found == {None, b"content"}


def test_a_full_disk_is_told_as_such(tmp_path: Path) -> None:
    scheduler = Scheduler(1)
    disk = Disk(scheduler, tmp_path, full_until=10.0)
    scheduler.spawn(Process("a", "box"), lambda: durable_write(tmp_path / "file", b"content"), "main")
    with SystemCalls(scheduler, disk).simulated():
        try:
            with pytest.raises(StoreFullError):
                scheduler.run(5.0)
        finally:
            scheduler.close()


def test_it_is_known_what_would_survive_and_names_that_others_have_made_can_be_synced(tmp_path: Path) -> None:
    told: list[bool] = []

    def work(root: Path) -> None:
        place = root / "deep" / "down"
        os.makedirs(place)  # by a host that does not come to syncing
        durable_write(place / "file", b"content")
        told.append(disk.is_durable(str(place / "file")))
        known: set[Path] = set()
        sync_names_above(place / "file", root, known)
        told.append(disk.is_durable(str(place / "file")))
        assert known == {place, place.parent}
        durable_write(place / "other", b"content", sync=False)
        told.append(disk.is_durable(str(place / "other")))
        told.append(disk.is_durable(str(place / "none")))

    scheduler = Scheduler(1)
    disk = Disk(scheduler, tmp_path)
    scheduler.spawn(Process("a", "box"), lambda: work(tmp_path), "main")
    with SystemCalls(scheduler, disk).simulated():
        scheduler.run(100.0)
        scheduler.close()
    assert told == [False, True, False, False]
