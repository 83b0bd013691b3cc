"""Replay: row i is the same whatever the tiling and the cutting, and reading copies nothing."""

from __future__ import annotations

import pickle
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest
from drain import drain, rows_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import CorruptFileError, DeclarationError, UnknownColumnError, WrongTypeError
from holdfast.source import replay


def naive(frame: pl.DataFrame, rows: int, period: int) -> list[tuple[int, str]]:
    """Row i, straight from the definition."""
    n = frame.height
    return [(frame["t"][i % n] + (i // n) * period, frame["k"][i % n]) for i in range(rows)]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    times=st.lists(st.integers(-50, 50), min_size=1, max_size=12),
    total=st.integers(0, 80),
    chunk_rows=st.integers(1, 40),
    rows=st.integers(1, 50),
    pieces=st.integers(1, 4),
    period=st.integers(0, 30),
)
def test_any_cutting_equals_the_naive_tiling(
    tmp_path: Path, times: list[int], total: int, chunk_rows: int, rows: int, pieces: int, period: int
) -> None:
    frame = pl.DataFrame({"t": times, "k": [f"key {i}" for i in range(len(times))]}, schema_overrides={"t": pl.Int64})
    source = replay(frame, "t", rows=total, period=period, chunk_rows=chunk_rows, directory=tmp_path)

    def keeps_its_promise(chunk: object) -> None:
        if chunk.ordered:  # type: ignore[attr-defined]
            assert chunk.frame["t"].is_sorted()  # type: ignore[attr-defined]

    got, position = drain(source, rows=rows, pieces=pieces, time="t", seen=keeps_its_promise)
    assert got.rows() == naive(frame, total, period)
    assert source.lag(position) == 0


def test_the_default_period_goes_on_after_the_last_row(tmp_path: Path) -> None:
    frame = pl.DataFrame({"t": [100, 110, 120, 130]})
    source = replay(frame, "t", rows=10, directory=tmp_path, chunk_rows=4)
    got, _ = drain(source, time="t")
    assert got["t"].to_list() == [100, 110, 120, 130, 140, 150, 160, 170, 180, 190]
    assert all(chunk.ordered for chunk in source.read(source.take(source.start(), 10, 1).slices[0]))


def test_datetimes_shift_in_their_own_unit(tmp_path: Path) -> None:
    frame = pl.DataFrame({"t": [datetime(2024, 1, 1), datetime(2024, 1, 2)]}, schema={"t": pl.Datetime("ms")})
    got, _ = drain(replay(frame, "t", rows=5, directory=tmp_path, chunk_rows=3), time="t")
    assert got["t"].to_list() == [datetime(2024, 1, day) for day in range(1, 6)]
    assert got.schema == frame.schema


def test_the_source_is_small_and_reading_it_maps_the_file_once(tmp_path: Path) -> None:
    frame = pl.DataFrame({"t": range(200_000), "s": ["some text that is not short at all"] * 200_000})
    source = replay(frame, "t", directory=tmp_path, chunk_rows=200_000)
    assert len(pickle.dumps(source)) < 5_000
    take = source.take(source.start(), 1_000_000_000, 3)
    assert sum(piece.rows for piece in take.slices) == 1_000_000_000
    first, second = (next(source.read(take.slices[0])).frame for _ in range(2))
    addresses = [part["t"].to_arrow().buffers()[1].address for part in (first, second)]
    assert addresses[0] == addresses[1]


def test_a_restart_finds_the_same_file(tmp_path: Path) -> None:
    frame = pl.DataFrame({"t": [1, 2, 3]})
    assert replay(frame, "t", directory=tmp_path).path == replay(frame, "t", directory=tmp_path).path
    assert len(list(tmp_path.iterdir())) == 1


def test_the_clock_decides_how_many_rows_are_due_also_after_a_restart(tmp_path: Path) -> None:
    now = [1000.0]
    frame = pl.DataFrame({"t": range(7)})

    def declare() -> object:
        return replay(frame, "t", rate=10.0, clock=lambda: now[0], directory=tmp_path)

    source = declare()
    first = source.take(source.start(), 100, 1)  # type: ignore[attr-defined]
    assert [piece.rows for piece in first.slices] == [1]
    assert source.take(first.position, 100, 1).slices == ()  # type: ignore[attr-defined]
    now[0] += 2.0
    source = declare()
    assert source.lag(first.position) == 20  # type: ignore[attr-defined]
    second = source.take(first.position, 100, 1)  # type: ignore[attr-defined]
    assert sum(piece.rows for piece in second.slices) == 20
    now[0] -= 5.0  # a clock that is set back delivers nothing, and loses nothing
    assert source.take(second.position, 100, 1).slices == ()  # type: ignore[attr-defined]


def test_what_cannot_be_replayed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownColumnError):
        replay(pl.DataFrame({"t": [1]}), "x", directory=tmp_path)
    with pytest.raises(WrongTypeError):
        replay(pl.DataFrame({"t": ["x"]}), "t", directory=tmp_path)
    with pytest.raises(DeclarationError, match="nulls"):
        replay(pl.DataFrame({"t": [1, None]}), "t", directory=tmp_path)
    with pytest.raises(DeclarationError, match="no rows"):
        replay(pl.DataFrame({"t": []}, schema={"t": pl.Int64}), "t", directory=tmp_path)
    with pytest.raises(WrongTypeError, match="do not fit"):
        replay(pl.DataFrame({"t": [100]}, schema={"t": pl.Int8}), "t", directory=tmp_path, chunk_rows=100)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    source = replay(pl.DataFrame({"t": [1]}), "t", directory=tmp_path)
    Path(source.path).unlink()
    with pytest.raises(CorruptFileError, match="cannot map"):
        rows_of(source, source.take(source.start(), 1, 1).slices[0])
