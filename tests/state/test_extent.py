"""The account of an operator's log agrees with the log itself."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import CorruptRecordError
from holdfast.state.extent import OPEN, RESTING, LogChange, LogExtent, LogMark, WindowMove, empty_extent, merged
from holdfast.stored_json import JsonForm

PANES = 4

EXTENTS = JsonForm(LogExtent, "the extent of a log")


class Log:
    """The log, window by window: a footprint is (window, epoch), and each window knows its last one and its class."""

    def __init__(self, epoch: int):
        self.epoch = epoch
        self.last: dict[int, tuple[int, int]] = {}
        self.records: list[int] = []
        self.rows: dict[int, int] = {}

    def footprint(self, window: int, epoch: int, name: int) -> None:
        self.records.append(epoch)
        self.last[window] = (epoch, name)

    def close(self, upto: int) -> None:
        self.last = {window: seen for window, seen in self.last.items() if seen[1] > upto}

    @property
    def oldest(self) -> int:
        return min((epoch for epoch, _ in self.last.values()), default=self.epoch)

    @property
    def figures(self) -> tuple[int, int, int, int, int]:
        q = sum(epoch >= self.oldest for epoch in self.records) if self.last else 0
        u = sum(rows for epoch, rows in self.rows.items() if epoch > self.oldest)
        resting = sum(name == RESTING for _, name in self.last.values())
        return q, u, self.oldest, len(self.last), len(self.last) - resting


def figures(extent: LogExtent) -> tuple[int, int, int, int, int]:
    return extent.q, extent.u, extent.oldest, extent.windows, extent.open_windows


def played(data: st.DataObject, log: Log, count: bool, partitions: int) -> LogChange:
    """One epoch of random footprints, played into the log, as the change that its partitions tell of."""
    log.epoch = epoch = log.epoch + 1
    log.rows[epoch] = data.draw(st.integers(0, 9), label="rows")
    base = epoch // 3
    names = st.sampled_from([OPEN, RESTING]) if count else st.integers(base, base + PANES)
    touched = data.draw(st.dictionaries(st.integers(0, 12), names, max_size=6), label="footprints")
    parts: list[tuple[dict[int, int], list[WindowMove]]] = [({}, []) for _ in range(partitions)]
    written = [0] * partitions
    for window, name in touched.items():
        opened, moved = parts[window % partitions]
        if window in log.last:
            seen, old = log.last[window]
            name = name if count else old
            moved.append(WindowMove(seen, old, name, 1))
        else:
            opened[name] = opened.get(name, 0) + 1
        written[window % partitions] += 1
        log.footprint(window, epoch, name)
    results = data.draw(st.integers(0, 2), label="other records")
    log.records += [epoch] * results
    written[0] += results
    closed = None if count else base - 1
    if closed is not None:
        log.close(closed)
    changes = [
        LogChange(epoch, records, 0, opened, tuple(moved), closed)
        for records, (opened, moved) in zip(written, parts, strict=True)
    ]
    return merged(epoch, log.rows[epoch], changes)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.booleans(), st.integers(1, 3), st.integers(1, 16))
def test_figures_are_those_of_the_log(data: st.DataObject, count: bool, partitions: int, epochs: int):
    log = Log(7)
    extent = empty_extent(7)
    for _ in range(epochs):
        extent = extent.after(played(data, log, count, partitions))
        assert figures(extent) == log.figures
        assert [mark.epoch for mark in extent.marks] == [*range(extent.oldest, extent.epoch + 1)] * bool(log.last)
        assert all(windows > 0 for mark in extent.marks for windows in mark.live.values())
        assert not extent.marks or extent.marks[0].live
        assert EXTENTS.decode(EXTENTS.encode(extent)) == extent


@settings(max_examples=40, deadline=None)
@given(st.data(), st.booleans(), st.integers(1, 10))
def test_new_footprints_for_old_windows_have_the_effect_that_was_foretold(
    data: st.DataObject, count: bool, epochs: int
):
    log = Log(0)
    extent = empty_extent(0)
    for _ in range(epochs):
        extent = extent.after(played(data, log, count, 1))
    before = data.draw(st.integers(0, extent.epoch + 2))
    q, u, windows = extent.from_epoch(before)
    older = [mark for mark in extent.marks if mark.epoch < before]
    moves = tuple(WindowMove(mark.epoch, name, name, n) for mark in older for name, n in mark.live.items())
    now = extent.after(LogChange(extent.epoch + 1, windows, 0, {}, moves))
    assert (now.q, now.u, sum(move.windows for move in moves)) == (q, u, windows)
    assert now.windows == extent.windows


def test_without_windows_there_is_nothing_to_recover():
    extent = empty_extent(3).after(LogChange(4, 2, 100, {5: 2}, (), closed=5))
    assert extent == empty_extent(4)
    assert figures(extent) == (0, 0, 4, 0, 0)
    assert EXTENTS.decode(EXTENTS.encode(extent)) == extent
    assert extent.from_epoch(9) == (0, 0, 0)


def test_the_log_is_read_from_the_oldest_live_footprint_on():
    extent = empty_extent(0)
    extent = extent.after(LogChange(1, 3, 10, {OPEN: 3}, ()))
    extent = extent.after(LogChange(2, 0, 20, {}, ()))
    extent = extent.after(LogChange(3, 2, 30, {}, (WindowMove(1, OPEN, OPEN, 1), WindowMove(1, OPEN, RESTING, 1))))
    assert figures(extent) == (5, 50, 1, 3, 2)
    assert extent.from_epoch(1) == (5, 50, 0)
    assert extent.from_epoch(2) == extent.from_epoch(3) == (3, 0, 1)
    assert extent.from_epoch(4) == (3, 0, 3)
    extent = extent.after(LogChange(4, 1, 40, {}, (WindowMove(1, OPEN, OPEN, 1),)))
    assert extent.marks == (LogMark(3, 2, 30, {OPEN: 1, RESTING: 1}), LogMark(4, 1, 40, {OPEN: 1}))
    assert figures(extent) == (3, 40, 3, 3, 2)


def test_the_watermark_closes_panes_wherever_their_footprints_are():
    extent = empty_extent(0).after(LogChange(1, 3, 10, {1: 1, 2: 2}, ())).after(LogChange(2, 2, 10, {1: 1, 3: 1}, ()))
    assert extent.after(LogChange(3, 1, 5, {2: 1}, (), closed=1)).windows == 4
    assert extent.after(LogChange(3, 1, 5, {2: 1}, (), closed=2)).marks[0].epoch == 2
    assert extent.after(LogChange(3, 1, 5, {4: 1}, (WindowMove(1, 2, 2, 1),), closed=3)).marks == (
        LogMark(3, 1, 5, {4: 1}),
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (LogChange(4, 0, 0, {}, ()), "of epoch 2, the change of epoch 4"),
        (LogChange(2, 0, 0, {}, ()), "of epoch 2, the change of epoch 2"),
        (LogChange(3, 3, 0, {}, (WindowMove(1, OPEN, OPEN, 3),)), "would have -1 windows of class 0"),
        (
            LogChange(3, 3, 0, {}, (WindowMove(1, OPEN, OPEN, 1), WindowMove(1, OPEN, RESTING, 2))),
            "would have -1 windows",
        ),
        (LogChange(3, 1, 0, {}, (WindowMove(1, RESTING, OPEN, 1),)), "would have -1 windows of class"),
        (LogChange(3, 1, 0, {}, (WindowMove(1, OPEN, OPEN, -1),)), "would have -1 windows"),
        (LogChange(3, 1, 0, {OPEN: -1}, ()), "would have -1 windows"),
        (LogChange(3, 1, 0, {}, (WindowMove(0, OPEN, OPEN, 1),)), "windows of epoch 0, which has none"),
        (LogChange(3, 1, 0, {OPEN: 1}, (WindowMove(3, OPEN, OPEN, 1),)), "windows of epoch 3, which has none"),
    ],
)
def test_a_change_that_does_not_fit_is_refused(change: LogChange, message: str):
    extent = empty_extent(0).after(LogChange(1, 2, 10, {OPEN: 2}, ())).after(LogChange(2, 1, 10, {OPEN: 1}, ()))
    with pytest.raises(ValueError, match=message):
        extent.after(change)


def test_partitions_are_added_up():
    parts = [
        LogChange(5, 3, 0, {1: 1, 2: 1}, (WindowMove(4, 1, 1, 1),), closed=0),
        LogChange(5, 4, 0, {2: 1}, (WindowMove(4, 1, 1, 2), WindowMove(3, 2, 2, 1)), closed=1),
        LogChange(5, 0, 0, {}, ()),
    ]
    assert merged(5, 70, parts) == LogChange(
        5, 7, 70, {1: 1, 2: 2}, (WindowMove(3, 2, 2, 1), WindowMove(4, 1, 1, 3)), closed=1
    )
    assert merged(5, 70, []) == LogChange(5, 0, 70, {}, ())
    with pytest.raises(ValueError, match="of epoch 5 among those of epoch 6"):
        merged(6, 70, parts)


@pytest.mark.parametrize("marks", [[[1, 1, 1, [[0, 1]]], [3, 1, 1, []]], [[1, 1, 1, [[0, 1]]], [2, 1, 1, []]]])
def test_a_stored_extent_with_gaps_is_refused(marks: list[list[object]]):
    with pytest.raises(CorruptRecordError, match="gaps or do not end with its epoch 3"):
        EXTENTS.decode(json.dumps({"epoch": 3, "marks": marks}))
