"""P-units in segments: each is read, checked, copied and restored by itself."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from holdfast.errors import CorruptPUnitError
from holdfast.pstream import PUnit, append_punit, close_others, copy_punit, punit, read_punit
from holdfast.store import DirectoryStore, SegmentWriter, segment_of

FRAMES = [pl.DataFrame({"n": range(size), "s": [str(n) * n for n in range(size)]}) for size in (0, 1, 20, 7)]


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    punit.close_all()
    return DirectoryStore(tmp_path / "home", sync=False)


@pytest.fixture
def units(store: DirectoryStore) -> list[PUnit]:
    writer = SegmentWriter(store.root, sync=False, epochs=10)
    written = [append_punit(writer, epoch, frame) for epoch, frame in enumerate(FRAMES, start=1)]
    punit.close_all()  # another process reads them
    return written


def spoil(store: DirectoryStore, unit: PUnit) -> None:
    segment, _, start = unit.name.rpartition("@")
    path = store.path(segment)
    data, at = bytearray(path.read_bytes()), int(start) + unit.bytes // 2
    data[at] ^= 1
    path.write_bytes(data)


def test_rows_come_back_as_they_were(store: DirectoryStore, units: list[PUnit]) -> None:
    assert len({segment_of(unit.name) for unit in units}) == 1
    for unit, frame in zip(units, FRAMES, strict=True):
        assert_frame_equal(read_punit(store, unit), frame)
        assert_frame_equal(read_punit(store, unit), frame)


def test_a_flipped_bit_spoils_one_p_unit_and_no_other(store: DirectoryStore, units: list[PUnit]) -> None:
    spoil(store, units[2])
    with pytest.raises(CorruptPUnitError, match="checksum"):
        read_punit(store, units[2])
    for at in (0, 1, 3):
        assert_frame_equal(read_punit(store, units[at]), FRAMES[at])


@pytest.mark.parametrize("left", [0, 1, 100, -1])
def test_a_torn_end_spoils_what_lies_there_and_nothing_before(
    store: DirectoryStore, units: list[PUnit], left: int
) -> None:
    path = store.path(str(segment_of(units[0].name)))
    start = int(units[3].name.rpartition("@")[2])
    path.write_bytes(path.read_bytes()[: start + left if left >= 0 else left])
    with pytest.raises(CorruptPUnitError):
        read_punit(store, units[3])
    for unit, frame in zip(units[:3], FRAMES, strict=False):
        assert_frame_equal(read_punit(store, unit), frame)


def test_a_copy_is_a_file_of_its_own_and_is_read_in_the_place_of_a_segment(
    store: DirectoryStore, units: list[PUnit], tmp_path: Path
) -> None:
    other = DirectoryStore(tmp_path / "other", sync=False)
    assert copy_punit(store, units[2], other)
    assert not copy_punit(store, units[2], other)
    assert not copy_punit(store, units[2], store), "it is there, in its segment"
    assert list(other.names()) == [units[2].name]
    assert other.path(units[2].name).stat().st_size == units[2].bytes
    assert_frame_equal(read_punit(other, units[2]), FRAMES[2])


def test_a_spoilt_p_unit_is_restored_beside_its_segment(
    store: DirectoryStore, units: list[PUnit], tmp_path: Path
) -> None:
    other = DirectoryStore(tmp_path / "other", sync=False)
    copy_punit(store, units[2], other)
    spoil(store, units[2])
    both = DirectoryStore(store.root, False, (other.root,))
    assert_frame_equal(read_punit(both, units[2]), FRAMES[2])
    other.path(units[2].name).unlink()
    punit.close_all()
    assert_frame_equal(read_punit(store, units[2]), FRAMES[2])
    for unit, frame in zip(units, FRAMES, strict=True):
        assert_frame_equal(read_punit(store, unit), frame)


def test_p_units_of_one_segment_are_closed_one_by_one(store: DirectoryStore, units: list[PUnit]) -> None:
    for unit in units:
        read_punit(store, unit)
    close_others(store, [units[1].name])
    assert [key.rpartition("@")[2] for key in punit._opened] == [units[1].name.rpartition("@")[2]]
