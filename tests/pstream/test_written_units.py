"""What a process has written itself is read from its memory, as long as it is needed and there is room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from holdfast.pstream import append_punit, close_others, punit, read_punit
from holdfast.pstream.punit import close_all
from holdfast.pstream.written_units import WRITTEN, WrittenUnits
from holdfast.store import DirectoryStore, OpenSegments

ROWS = pl.DataFrame({"n": [1, 2, 3]})


@pytest.fixture(autouse=True)
def nothing_is_open() -> Iterator[None]:
    close_all()
    yield
    close_all()


def test_what_was_written_here_is_not_read_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, segments = DirectoryStore(tmp_path, sync=False), OpenSegments(64)
    unit = append_punit(segments.at(tmp_path, False), 1, ROWS)

    def never(*given: object) -> pa.Buffer:
        raise AssertionError("the file was read")

    monkeypatch.setattr(punit, "_sound", never)
    assert read_punit(store, unit).equals(ROWS)
    segments.close()


def test_what_others_have_written_is_read_from_the_file_and_checked(tmp_path: Path) -> None:
    store, segments = DirectoryStore(tmp_path, sync=False), OpenSegments(64)
    unit = append_punit(segments.at(tmp_path, False), 1, ROWS)
    close_all()  # as in another process
    assert read_punit(store, unit).equals(ROWS)
    assert not WRITTEN.bytes
    segments.close()


def test_what_an_epoch_has_written_stays_until_the_next_one_does_not_name_it(tmp_path: Path) -> None:
    store, segments = DirectoryStore(tmp_path, sync=False), OpenSegments(64)
    unit = append_punit(segments.at(tmp_path, False), 7, ROWS)
    close_others(store, [], 7)  # by another partition of the same process, which has begun from the state before
    assert WRITTEN.bytes
    close_others(store, [unit.name], 8)
    assert WRITTEN.bytes
    close_others(store, [], 8)
    assert not WRITTEN.bytes
    segments.close()


def test_another_store_keeps_what_it_has(tmp_path: Path) -> None:
    segments = OpenSegments(64)
    append_punit(segments.at(tmp_path / "one", False), 1, ROWS)
    close_others(DirectoryStore(tmp_path / "other"), [], 2)
    assert WRITTEN.bytes
    segments.close()


def test_the_oldest_go_when_there_is_no_room_and_large_ones_do_not_come_in(tmp_path: Path) -> None:
    kept = WrittenUnits(budget=1_000)
    for number in range(3):
        kept.add(tmp_path, f"segments/s@{number}", 1, pa.py_buffer(bytes(400)))
    assert kept.bytes == 800
    assert kept.content(f"{tmp_path}/segments/s@0") is None
    assert kept.content(f"{tmp_path}/segments/s@2") is not None
    kept.add(tmp_path, "segments/s@9", 1, pa.py_buffer(bytes(1 << 20)))
    assert kept.bytes == 800
