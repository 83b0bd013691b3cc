"""The extent of an operator's log: how much of it a recovery reads back and how much input it replays. Pure.

Each open window leaves footprints in the log of its operator: records with its state after all rows of an epoch. A
recovery loads the last footprint of every open window and replays the input of the epochs after the oldest of them, T.
So the part of the log from T on is all that matters, and for each of its epochs it is enough to know how many records
and input rows it had and how many windows have their last footprint there. No window is listed: the account costs the
same for ten windows and for ten million.

Windows have a class: the pane number of a time window, OPEN or RESTING for a count window. The watermark closes panes
in order, so closing needs no record per window.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from holdfast.stored_json import Natural, OwnForm

__all__ = ["OPEN", "RESTING", "LogChange", "LogExtent", "LogMark", "WindowMove", "empty_extent", "merged"]

OPEN = 0
"""The class of an open count window."""
RESTING = -(1 << 62)
"""The class of a key whose last count window is closed: only its count is kept."""


@dataclass(frozen=True, slots=True)
class WindowMove:
    """Windows whose last footprint was of `epoch` and class `old`, and is now of the epoch of the change and `new`."""

    epoch: int
    old: int
    new: int
    windows: int


@dataclass(frozen=True, slots=True)
class LogChange:
    """What one epoch did to the footprints of an operator, all partitions together.

    `opened` are the windows that had no footprint before, by class. `closed` closes the windows of its class and all
    lower ones, among them those that the same epoch opened or moved. A window leaves one footprint per epoch at most.
    """

    epoch: int
    records: int
    rows: int
    opened: Mapping[int, int]
    moved: tuple[WindowMove, ...]
    closed: int | None = None


@dataclass(frozen=True, slots=True)
class LogMark:
    """An epoch of the log: its records, its input rows, and the windows whose last footprint is there, by class."""

    epoch: int
    records: int
    rows: int
    live: Mapping[int, int]

    @property
    def windows(self) -> int:
        return sum(self.live.values())


class _StoredExtent(msgspec.Struct, frozen=True):
    epoch: int
    marks: tuple[tuple[int, Natural, Natural, tuple[tuple[int, Natural], ...]], ...]


class LogExtent(OwnForm):
    """The epochs of the log that matter, in order and without gaps: from the oldest with live windows to the last.

    Without any window there are no marks.
    """

    __slots__ = ("marks", "epoch")  # noqa: RUF023 - as they are given
    marks: tuple[LogMark, ...]
    epoch: int

    def __init__(self, marks: tuple[LogMark, ...], epoch: int) -> None:
        self._set(marks=marks, epoch=epoch)

    @property
    def windows(self) -> int:
        """N: the last footprints that a recovery has to find."""
        return sum(mark.windows for mark in self.marks)

    @property
    def open_windows(self) -> int:
        """N without the keys that only keep their count."""
        return self.windows - sum(mark.live.get(RESTING, 0) for mark in self.marks)

    @property
    def q(self) -> int:
        """The records a recovery must read back."""
        return sum(mark.records for mark in self.marks)

    @property
    def u(self) -> int:
        """The input rows a recovery must replay: those of the epochs after T, whose footprints hold their own."""
        return sum(mark.rows for mark in self.marks[1:])

    @property
    def oldest(self) -> int:
        """T. Without windows nothing is replayed, so it is the last epoch."""
        return self.marks[0].epoch if self.marks else self.epoch

    def after(self, change: LogChange) -> LogExtent:
        """The extent after one more epoch. A change that does not fit is an error: an account that is wrong by one
        would make a recovery stop too early, or look for a footprint that is not there."""
        if change.epoch != self.epoch + 1:
            raise ValueError(f"the extent is of epoch {self.epoch}, the change of epoch {change.epoch}")
        left: dict[int, dict[int, int]] = {}
        newest: Counter[int] = Counter()
        for name, windows in change.opened.items():
            newest[name] += _counted(windows, name, change.epoch)
        for move in change.moved:
            place = move.epoch - self.oldest
            if not 0 <= place < len(self.marks):
                raise ValueError(f"epoch {change.epoch} moves windows of epoch {move.epoch}, which has none")
            if place not in left:
                left[place] = dict(self.marks[place].live)
            left[place][move.old] = _counted(left[place].get(move.old, 0) - move.windows, move.old, move.epoch)
            newest[move.new] += _counted(move.windows, move.new, change.epoch)
        marks = [_with_live(mark, left.get(place, mark.live), change.closed) for place, mark in enumerate(self.marks)]
        marks.append(_with_live(LogMark(change.epoch, change.records, change.rows, {}), newest, change.closed))
        first = next((place for place, mark in enumerate(marks) if mark.live), len(marks))
        return LogExtent(tuple(marks[first:]), change.epoch)

    def from_epoch(self, epoch: int) -> tuple[int, int, int]:
        """What q and u would be if all windows with a last footprint older than `epoch` got a new one now, and how
        many that are. Their footprints come after the last mark; the extent then begins with the next live one."""
        windows = sum(mark.windows for mark in self.marks if mark.epoch < epoch)
        first = next((place for place, mark in enumerate(self.marks) if mark.epoch >= epoch and mark.live), None)
        if first is None:
            return windows, 0, windows
        left = self.marks[first:]
        return sum(mark.records for mark in left) + windows, sum(mark.rows for mark in left[1:]), windows

    def stored(self) -> _StoredExtent:
        """Marks are lists, not objects: there may be hundreds, and they are stored with every epoch."""
        marks = tuple((mark.epoch, mark.records, mark.rows, tuple(sorted(mark.live.items()))) for mark in self.marks)
        return _StoredExtent(self.epoch, marks)

    @staticmethod
    def of(stored: object) -> LogExtent:
        found = msgspec.convert(stored, _StoredExtent)
        epoch = found.epoch
        marks = tuple(LogMark(number, records, rows, dict(live)) for number, records, rows, live in found.marks)
        if [mark.epoch for mark in marks] != list(range(epoch + 1 - len(marks), epoch + 1)):
            raise ValueError(f"the marks of a stored extent have gaps or do not end with its epoch {epoch}")
        return LogExtent(marks, epoch)


def empty_extent(epoch: int) -> LogExtent:
    """The extent of an operator without windows after `epoch`."""
    return LogExtent((), epoch)


def merged(epoch: int, rows: int, parts: Iterable[LogChange]) -> LogChange:
    """The changes of the partitions as one change of the operator.

    `rows` is the input of the whole operator, which no partition knows. All partitions follow one watermark; one that
    saw no rows may not have told of it, so the furthest counts.
    """
    records = 0
    opened: Counter[int] = Counter()
    moved: Counter[tuple[int, int, int]] = Counter()
    closed: int | None = None
    for part in parts:
        if part.epoch != epoch:
            raise ValueError(f"a change of epoch {part.epoch} among those of epoch {epoch}")
        records += part.records
        opened.update(part.opened)
        for move in part.moved:
            moved[move.epoch, move.old, move.new] += move.windows
        if part.closed is not None:
            closed = part.closed if closed is None else max(closed, part.closed)
    moves = tuple(WindowMove(*names, windows) for names, windows in sorted(moved.items()))
    return LogChange(epoch, records, rows, dict(opened), moves, closed)


def _counted(windows: int, name: int, epoch: int) -> int:
    if windows < 0:
        raise ValueError(f"epoch {epoch} would have {windows} windows of class {name}")
    return windows


def _with_live(mark: LogMark, live: Mapping[int, int], closed: int | None) -> LogMark:
    left = {name: windows for name, windows in live.items() if windows and (closed is None or name > closed)}
    return mark if left == mark.live else LogMark(mark.epoch, mark.records, mark.rows, left)
