"""Many small entries are read together, and nothing about their rows depends on that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from appending import SCHEMA, STREAM, batch

from holdfast.connect.base import Chunk, Slice
from holdfast.connect.source_answers import checked_take
from holdfast.graph.durations import EventTime
from holdfast.hidden_columns import BOUND
from holdfast.operators.lift import bounded
from holdfast.pstream import link
from holdfast.pstream.appender import Appender
from holdfast.pstream.link import StreamPart, StreamSource

TIME = EventTime("ts", "s")


def source_of(appender: Appender, root: Path) -> StreamSource:
    source = StreamSource(STREAM, SCHEMA, event_time="ts", reader="reader", root=root, sync=False)
    source.log = appender.stream
    return source


def one_by_one(source: StreamSource, piece: Slice) -> list[Chunk]:
    part = StreamPart.of(piece)
    pieces = [Slice(0, unit.rows, StreamPart([unit], part.after).where()) for unit in part.units]
    return [chunk for each in pieces for chunk in source.read(each)]


def bounds(chunks: list[Chunk]) -> tuple[list[int], list[int | None], list[int | None]]:
    """The rows, the watermark of each of them, and the bounds of those that are late."""
    values: list[int] = []
    marks: list[int | None] = []
    late: list[int | None] = []
    for chunk in chunks:
        assert chunk.marks is not None
        frame, found = bounded(chunk.frame, TIME, chunk.marks.before)
        values += frame["v"].to_list()
        marks += found.to_list()
        late += frame[BOUND].to_list() if BOUND in frame.columns else [None] * frame.height
    return values, marks, late


@pytest.mark.parametrize("marked", [False, True])
def test_rows_that_are_read_together_have_the_watermarks_they_would_have_alone(
    opened: Callable[..., Appender], tmp_path: Path, marked: bool
) -> None:
    appender = opened(lateness=2, marked=marked)
    for number, ts in enumerate([10, 11, 5, 30, 29, 3, 31, 31]):
        appender.append(batch(3 * number, 3 * number + 1, 3 * number + 2, ts=ts))
    source = source_of(appender, tmp_path)
    take = source.take({"number": 0, "offset": 0}, 1_000, 1)
    [piece] = take.slices
    [chunk] = source.read(piece)
    assert chunk.frame.height == piece.rows == 24
    assert chunk.marks is not None
    assert chunk.marks.after == 29
    together, alone = bounds([chunk]), bounds(one_by_one(source, piece))
    assert together == alone
    assert together[0] == list(range(24))
    assert [late for late in together[2] if late is not None], "some of the rows are late"


@pytest.mark.parametrize(
    ("times", "bare"), [([10, 11, 12, 13], True), ([10, 11, 9, 13], False), ([10, 11, 8, 13], False)]
)
def test_rows_have_bounds_only_where_some_may_lie_behind_or_the_reader_wants_them_all(
    opened: Callable[..., Appender], tmp_path: Path, times: list[int], bare: bool
) -> None:
    """A time that equals the watermark is not behind it; but that of a window's result, one tick before it, is."""
    appender = opened(lateness=2)
    for number, ts in enumerate(times):
        appender.append(batch(number, ts=ts))
    source = source_of(appender, tmp_path)
    [piece] = source.take({"number": 0, "offset": 0}, 1_000, 1).slices
    [chunk] = source.read(piece)
    assert (BOUND not in chunk.frame.columns) == bare
    assert bounds([chunk])[2] == bounds(one_by_one(source, piece))[2]
    wanted = replace(source, marked=True)
    assert bounds(list(wanted.read(piece))) == bounds(one_by_one(wanted, piece))


def test_slices_hold_all_rows_in_order_whatever_they_are_cut_into(
    opened: Callable[..., Appender], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    appender = opened()
    for number in range(10):
        appender.append(batch(*range(number), ts=number))  # the first one is empty
    source = source_of(appender, tmp_path)
    for most, pieces in ((1_000, 1), (1_000, 3), (1_000, 50), (12, 1), (1, 2)):
        monkeypatch.setattr(link, "_READ_TOGETHER", most)
        take = source.take({"number": 0, "offset": 0}, 1_000, pieces)
        assert [piece.base for piece in take.slices] == [
            sum(piece.rows for piece in take.slices[:number]) for number in range(len(take.slices))
        ]
        assert checked_take(take) is take, "its slices stand in plans, as JSON"
        read = [chunk for piece in take.slices for chunk in source.read(piece)]
        found = [value for chunk in read for value in chunk.frame["v"].to_list()]
        assert found == [value for number in range(10) for value in range(number)]
        assert max(chunk.marks.after or 0 for chunk in read if chunk.marks is not None) == 9
        assert take.position == {"number": 10, "offset": 45}
        if most == 1_000 and pieces < 10:
            assert len(take.slices) <= pieces


def test_an_entry_without_rows_still_brings_event_time_forward(opened: Callable[..., Appender], tmp_path: Path) -> None:
    appender = opened(prepare=lambda frame: frame.filter(pl.col("v") >= 0))
    appender.append(batch(-1, ts=7))
    source = source_of(appender, tmp_path)
    take = source.take({"number": 0, "offset": 0}, 100, 2)
    [chunk] = [chunk for piece in take.slices for chunk in source.read(piece)]
    assert chunk.frame.height == 0
    assert chunk.marks is not None
    assert chunk.marks.after == 7
