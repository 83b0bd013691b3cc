"""Files as a source: any cutting gives the same rows; what is not right is named."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import pytest
from drain import drain
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.connect.formats import columnar as _columnar
from holdfast.connect.formats import lines as _lines
from holdfast.errors import BadRowError, CorruptFileError, DeclarationError, WrongTypeError
from holdfast.source import files

FORMATS = ["parquet", "arrow", "csv", "ndjson"]


def frame_of(start: int, stop: int) -> pl.DataFrame:
    numbers = range(start, stop)
    return pl.DataFrame(
        {"k": list(numbers), "v": [i / 4 for i in numbers], "s": [f"text {i}" if i % 3 else None for i in numbers]},
        schema={"k": pl.Int64, "v": pl.Float64, "s": pl.String},
    )


def write(frame: pl.DataFrame, path: Path, format: str) -> None:
    if format == "parquet":
        frame.write_parquet(path, row_group_size=7)
    elif format == "arrow":
        frame.write_ipc(path, record_batch_size=5)
    elif format == "csv":
        frame.write_csv(path)
    else:
        frame.write_ndjson(path)


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=5), rows=st.integers(1, 60), pieces=st.integers(1, 5))
def test_any_cutting_gives_the_same_rows_in_order(
    tmp_path_factory: pytest.TempPathFactory, format: str, sizes: list[int], rows: int, pieces: int
) -> None:
    place = tmp_path_factory.mktemp("files")
    at = 0
    for number, size in enumerate(sizes):
        write(frame_of(at, at + size), place / f"{number}.{format}", format)
        at += size
    source = files(place, schema=frame_of(0, 1).schema)
    got, _ = drain(source, rows=rows, pieces=pieces)
    assert got.equals(frame_of(0, at))


@pytest.mark.parametrize("format", FORMATS)
def test_a_big_file_is_cut_and_respects_rows_and_pieces(tmp_path: Path, format: str) -> None:
    write(frame_of(0, 1000), tmp_path / f"a.{format}", format)
    source = files(tmp_path)
    take = source.take(source.start(), 400, 4)
    assert len(take.slices) == 4
    assert 300 <= sum(piece.rows for piece in take.slices) <= 500
    assert not take.done
    lag = source.lag(take.position)
    assert lag is not None
    assert 500 <= lag <= 700


def test_many_small_files_share_slices(tmp_path: Path) -> None:
    for i in range(20):
        write(frame_of(i, i + 1), tmp_path / f"{i:02}.parquet", "parquet")
    source = files(tmp_path)
    take = source.take(source.start(), 1000, 2)
    assert len(take.slices) == 2
    assert take.done


@pytest.mark.parametrize("format", FORMATS)
def test_blocks_and_chunks_of_bounded_size(tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lines, "BLOCK_BYTES", 50)
    monkeypatch.setattr(_lines, "CHUNK_ROWS", 3)
    monkeypatch.setattr(_columnar, "CHUNK_ROWS", 3)
    write(frame_of(0, 50), tmp_path / f"a.{format}", format)
    sizes: list[int] = []
    got, _ = drain(files(tmp_path), seen=lambda chunk: sizes.append(chunk.frame.height))
    assert got.equals(frame_of(0, 50))
    assert max(sizes) <= 3


def test_lists_globs_and_single_files(tmp_path: Path) -> None:
    (tmp_path / "day=1").mkdir()
    write(frame_of(0, 3), tmp_path / "day=1" / "a.csv", "csv")
    write(frame_of(3, 6), tmp_path / "b.csv", "csv")
    write(frame_of(6, 9), tmp_path / "_hidden.csv", "csv")
    assert drain(files(tmp_path / "b.csv"))[0].equals(frame_of(3, 6))
    assert drain(files([tmp_path / "day=1" / "a.csv", tmp_path / "b.csv"]))[0].height == 6
    assert drain(files(f"{tmp_path}/*/*.csv"))[0].equals(frame_of(0, 3))
    assert drain(files(f"{tmp_path}/**/*.csv"))[0].height == 6
    with pytest.raises(CorruptFileError, match="does not exist"):
        files([tmp_path / "none.csv"])


def test_without_file_and_schema_the_error_names_the_cure(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match="give files\\(\\) a schema"):
        files(tmp_path, format="csv")
    with pytest.raises(DeclarationError, match="give files\\(\\) a format"):
        files(tmp_path, schema=frame_of(0, 1).schema)
    assert files(f"{tmp_path}/*.csv", schema=frame_of(0, 1).schema).schema == frame_of(0, 1).schema


def test_a_type_the_format_cannot_hold_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(WrongTypeError, match="column 'd'"):
        files(tmp_path, format="ndjson", schema={"d": pl.Duration("us")})
    with pytest.raises(WrongTypeError, match="complete Polars type"):
        files(tmp_path, format="csv", schema={"d": pl.Datetime})
    with pytest.raises(WrongTypeError, match="column 'd'"):
        files(tmp_path, format="csv", schema={"d": pl.List(pl.Int64)})


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_safe_widening_is_allowed_and_anything_else_is_named(tmp_path: Path, format: str) -> None:
    narrow = pl.DataFrame(
        {"i": [1, 2], "f": [0.5, 1.5], "x": [9, 9]}, schema={"i": pl.Int32, "f": pl.Float32, "x": pl.Int64}
    )
    write(narrow, tmp_path / f"a.{format}", format)
    wide = pl.Schema({"f": pl.Float64, "i": pl.Int64})
    got, _ = drain(files(tmp_path, schema=wide))
    assert got.schema == wide
    assert got.rows() == [(0.5, 1), (1.5, 2)]
    with pytest.raises(BadRowError, match=r"column 'x'.*Int64.*Int32 was declared[\s\S]*cure: declare 'x' as Int64"):
        drain(files(tmp_path, schema={"x": pl.Int32}))
    with pytest.raises(BadRowError, match="no column 'y'"):
        drain(files(tmp_path, schema={"y": pl.Int32}))


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_truncated_and_damaged_files_are_named(tmp_path: Path, format: str) -> None:
    path = tmp_path / f"a.{format}"
    write(frame_of(0, 100), path, format)
    source = files(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    with pytest.raises(CorruptFileError, match=str(path)):
        source.take(source.start(), 10, 1)
    middle = bytearray(whole)
    middle[20:600] = b"\xff" * 580
    path.write_bytes(middle)
    with pytest.raises(CorruptFileError, match=str(path)):
        drain(source)


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_that_changed_or_vanished_after_planning_is_refused(tmp_path: Path, format: str) -> None:
    path = tmp_path / f"a.{format}"
    write(frame_of(0, 100), path, format)
    source = files(tmp_path)
    take = source.take(source.start(), 50, 1)
    write(frame_of(0, 101), path, format)
    with pytest.raises(CorruptFileError, match="changed after it was planned"):
        list(source.read(take.slices[0]))
    with pytest.raises(CorruptFileError, match="changed after it was planned"):
        source.take(take.position, 50, 1)
    path.unlink()
    with pytest.raises(CorruptFileError, match="vanished after it was planned"):
        list(source.read(take.slices[0]))


def test_the_same_size_but_another_time_is_a_change_too(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    write(frame_of(0, 10), path, "csv")
    source = files(tmp_path)
    take = source.take(source.start(), 50, 1)
    os.utime(path, ns=(1, 1))
    with pytest.raises(CorruptFileError, match="changed"):
        list(source.read(take.slices[0]))


def test_the_root_of_the_files_may_move_between_runs(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    for i in range(4):
        write(frame_of(i, i + 1), tmp_path / "old" / f"{i}.csv", "csv")
    source = files(tmp_path / "old")
    take = source.take(source.start(), 2, 1)
    (tmp_path / "old").rename(tmp_path / "new")
    got, _ = drain(files(tmp_path / "new"), position=take.position)
    assert got.equals(frame_of(2, 4))
