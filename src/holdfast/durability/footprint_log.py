"""The footprints of a fragment's windows on the driver's side, under the policy `eventual`.

Tasks write the batches and report changes. This module keeps the account (`LogExtent`), adds the batches as control
records to the operator's output stream with the commit of their epoch, sets the goals of the next epoch, and releases
what no recovery needs. The operator is a reader of its own stream: it holds back what its recovery would read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import sqlalchemy as sa

from holdfast.durability.calibration import FootprintCalibration, smoothed
from holdfast.epoch.record import EpochRecord, Footing
from holdfast.epoch.transaction import Transaction
from holdfast.graph.nodes import Stateful
from holdfast.meta import Entry, MetaStore, NewEntry
from holdfast.operators.footprint_messages import FIRST_PIECE, FootprintOrder, FootprintsLeft, OlderBatch
from holdfast.operators.footprint_trace import ALL_SEEN
from holdfast.plan.footprint_streams import LOG_SUFFIX, log_name, output_stream
from holdfast.plan.program import Program
from holdfast.pstream import Control, Lineage, Place, Placement, PUnit, StreamDescription
from holdfast.pstream.pstream import PStream, new_entry
from holdfast.state.extent import LogChange, LogExtent, empty_extent, merged
from holdfast.state.goals import FootprintRules, Goal, goal_by_age, goal_by_benefit, goal_by_size, predicted_recovery
from holdfast.state.routing import Routing
from holdfast.store import Right

__all__ = ["FootprintLogs", "PlacedControls", "WriteRight", "reader_of"]

_log = logging.getLogger(__name__)
PlacedControls = tuple[str, Entry, Mapping[str, Control]]
"""A p-stream, an entry that a commit has written to it, and the control records in it."""
_MOST_BATCHES = 64
"""Old batches that tasks are given at a time."""
_MOST_EPOCHS = 256
_TRIM_SECONDS = 0.5


def reader_of(fragment: str, name: str) -> str:
    """The name under which an operator holds back its own footprints."""
    return f"{fragment}/{name}"


@dataclass(slots=True)
class _LogPlace:
    """Where the footprints of an epoch are: their entry and its p-units."""

    number: int
    offset: int
    units: tuple[PUnit, ...]


@dataclass(slots=True)
class _FootprintLog:
    """The log of one operator."""

    operator: str
    name: str
    stream: PStream
    own: bool
    extent: LogExtent
    opening: bool
    closed: int | None = None
    places: dict[int, _LogPlace] = field(default_factory=dict)
    skip: dict[str, dict[int, int]] = field(default_factory=dict)
    """By p-unit and task: how many of the records a task has seen to."""
    piece: int = FIRST_PIECE
    """How many windows tasks see to at a time."""
    goal: Goal | None = None
    checked_at: float = 0.0
    was_closed: int | None = None
    classes: float = 0.0
    """Panes closed per second."""


class WriteRight(Right, Protocol):
    """The right of a run to what belongs to its fragment, in the store and in the meta store."""

    def writing(self) -> AbstractContextManager[sa.Connection]:
        """A transaction that fails if another run has the right by now."""
        ...


class FootprintLogs:
    """The logs of all operators of a program."""

    def __init__(
        self, program: Program, meta: MetaStore, root: Path, sync: bool, right: WriteRight,
        clock: Callable[[], float], trim_every: float = _TRIM_SECONDS, *, ticks: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`clock` tells the time of day, `ticks` how long something lasts."""
        self._program = program
        self._meta = meta
        self._root = root
        self._sync = sync
        self._right = right
        self._clock = clock
        self._ticks = ticks
        self._logs: dict[str, _FootprintLog] = {}
        self._retired: list[tuple[PStream, str]] = []
        self._left = False
        """Whether footprints of this run are committed: until then a recovery needs those of the one before."""
        self._routing: Mapping[str, Routing] = {}
        self._handed: tuple[tuple[int, FootprintRules], dict[str, FootprintOrder]] | None = None
        self._calibration = FootprintCalibration(program, meta, root, ticks)
        self._trim_every = trim_every
        self._trimmed = 0.0

    def begin(self, record: EpochRecord, epoch: int, damaged: Collection[str] = ()) -> None:
        """Go on with the logs as a record has them. Where another record is the base, they start over. Of `damaged`
        ones, windows were recovered from older footprints than the account says."""
        self._logs = {}
        going_on = record.base is not None and record.base.eventual
        for operator, footing in record.footings.items():
            stream = self._stream(footing.stream)
            if not going_on or footing.stream != log_name(self._program, operator):
                self._retired.append((stream, footing.name))
                continue
            own = output_stream(self._program, operator) is None
            stream.subscribe(reader_of(self._program.name, footing.name))
            # Where another policy was in force, what windows did meanwhile is not known.
            opening = operator in damaged or footing.extent.epoch != epoch
            log = _FootprintLog(operator, footing.name, stream, own, footing.extent, opening, footing.closed)
            log.places = {control.epoch: place for control, place in _found(stream, footing)}
            self._logs[operator] = log
        self._epoch = epoch

    def _stream(self, name: str) -> PStream:
        return PStream(self._meta, self._root, name, sync=self._sync, clock=self._clock)

    def _open(self, node: Stateful, epoch: int) -> _FootprintLog:
        """The log of an operator that has none yet: all its windows leave a footprint first."""
        own = output_stream(self._program, node.name) is None
        stream = self._stream(log_name(self._program, node.name))
        if own:
            stream.declare(StreamDescription({}, None, node.name, Placement(Place(node.name))))
            stream.sweep(self._right, epoch + 1)
        marker = stream.subscribe(reader_of(self._program.name, node.name))
        log = _FootprintLog(node.name, node.name, stream, own, empty_extent(epoch), opening=True)
        for control, found in _placed(stream, node.name):  # what an earlier run has left goes with the first commit
            if found.number <= marker.number:
                break
            log.places[control.epoch] = found
        return log

    # the next epoch

    def orders(
        self,
        epoch: int,
        rules: FootprintRules | None,
        routing: Mapping[str, Routing],
        *,
        replayed: Mapping[str, Footing],
    ) -> dict[str, FootprintOrder]:
        """What the tasks of an epoch are to do. `replayed` are the footings of an epoch that is run again."""
        if replayed:
            return {name: self._order(footing.stream, replaying=True) for name, footing in replayed.items()}
        if rules is None:
            for log in self._logs.values():  # what windows do meanwhile is not known
                log.opening = True
            return {}
        if self._handed is not None and self._handed[0] == (epoch, rules):
            return self._handed[1]
        if routing != self._routing:  # the tasks have other records of the batches to see to
            self._routing = routing
            for log in self._logs.values():
                log.skip.clear()
        for node in self._program.stateful:
            if node.name not in self._logs:
                self._logs[node.name] = self._open(node, epoch - 1)
        wanted = {name: self._wanted(log, rules) for name, log in self._logs.items()}
        self._handed = (epoch, rules), wanted
        return wanted

    def _wanted(self, log: _FootprintLog, rules: FootprintRules) -> FootprintOrder:
        now = self._ticks()
        log.goal = None
        if not log.opening and not rules.only_open and now - log.checked_at >= rules.period:
            log.goal = self._goal(log, rules)
        if log.goal is None:
            return self._order(log.stream.name, opening=log.opening)
        log.checked_at, before = now, self._reachable(log, log.goal)
        older = [
            OlderBatch(mark.epoch, unit, log.skip.get(unit.name, {}))
            for mark in log.extent.marks
            if mark.epoch < before and mark.live and mark.epoch in log.places
            for unit in log.places[mark.epoch].units
            if not self._seen_to(log, unit)
        ]
        return self._order(
            log.stream.name, before=before, spare=log.goal.spare, older=tuple(older[:_MOST_BATCHES]),
            seconds=rules.spend, piece=log.piece,
        )  # fmt: skip

    def _seen_to(self, log: _FootprintLog, unit: PUnit) -> bool:
        """Whether no task has anything left to do for a batch."""
        tasks = self._routing[log.operator].partitions
        seen = log.skip.get(unit.name, {})
        return all(seen.get(task) == ALL_SEEN for task in range(tasks))

    def _order(self, stream: str, **given: Any) -> FootprintOrder:
        return FootprintOrder(str(self._root), stream, self._sync, **given)

    def _reachable(self, log: _FootprintLog, goal: Goal) -> int:
        """How far the tasks can get on the way to a goal, if each sees to a piece: newer windows need no footprints
        while older ones hold back the rest."""
        windows, most = 0, log.piece * self._routing[log.operator].partitions
        for mark in log.extent.marks:
            if mark.epoch >= goal.before:
                break
            windows += mark.windows
            if windows > most:
                return mark.epoch + 1
        return goal.before

    def _goal(self, log: _FootprintLog, rules: FootprintRules) -> Goal | None:
        """How far the oldest footprint must move. Every epoch since is replayed and listed in each record, so their
        number is bounded, whatever the sizes."""
        return self._goal_by_rules(log, rules) or goal_by_age(log.extent, _MOST_EPOCHS)

    def _goal_by_rules(self, log: _FootprintLog, rules: FootprintRules) -> Goal | None:
        if rules.recovery is None:
            return goal_by_size(log.extent, rules.most_records, rules.most_rows)
        share = rules.spend / rules.period
        pace = replace(self._calibration.pace, classes=log.classes, closed=log.closed, share=share)
        return goal_by_benefit(log.extent, self._calibration.costs, pace, rules.recovery)

    def calibrate(self, record: EpochRecord, rules: FootprintRules | None, scratch: Path) -> None:
        """After a commit: see what gathering the footprints would take, now and then."""
        self._calibration.gather(record, rules, scratch)

    def close(self) -> None:
        self._calibration.close()

    # a commit

    def committed(
        self, epoch: int, left: Mapping[str, Mapping[int, FootprintsLeft]], rows: int, busy: float
    ) -> tuple[dict[str, Footing], dict[str, dict[str, Control]]]:
        """Take in what the tasks of an epoch have left: the footings after it, and the control records by stream."""
        footings: dict[str, Footing] = {}
        controls: dict[str, dict[str, Control]] = {}
        self._left = self._left or bool(left)
        records = 0
        for operator, by_task in left.items():
            log = self._logs[operator]
            parts = [_change(epoch, rows, done) for _, done in sorted(by_task.items())]
            begin = empty_extent(epoch - 1) if log.opening else log.extent
            try:
                log.extent = begin.after(merged(epoch, rows, parts))
            except ValueError as error:
                # Nothing is lost: what was known before still holds, and the next epoch has footprints of all windows.
                # This one has none, of no operator, so all start over.
                _log.error("the account of the footprints of '%s' is wrong and starts over: %s", operator, error)
                for other in self._logs.values():
                    other.opening = True
                return {}, {}
            marks = [part.closed for part in parts if part.closed is not None]
            log.closed = max([*marks, *([log.closed] if log.closed is not None else [])], default=None)
            units = tuple(done.unit for _, done in sorted(by_task.items()) if done.unit is not None)
            log.opening = any(done.damaged for done in by_task.values())
            records += sum(unit.rows for unit in units)
            self._take_in(log, by_task)
            head = {"windows": log.extent.windows, "open": log.extent.open_windows, "closed": log.closed}
            controls.setdefault(log.stream.name, {})[log.name] = Control(epoch, head, units)
            why = None if log.goal is None else log.goal.why
            predicted = predicted_recovery(log.extent, self._calibration.costs)
            footings[operator] = Footing(log.stream.name, log.name, log.extent, log.closed, predicted, why)
        self._measure(rows, records, busy)
        return footings, controls

    def _take_in(self, log: _FootprintLog, by_task: Mapping[int, FootprintsLeft]) -> None:
        """What tasks have seen to, and what it took them."""
        left = by_task.values()
        self._calibration.checked(sum(done.checked for done in left), sum(done.seconds for done in left))
        if log.goal is not None:
            log.piece = min(done.piece for done in left)
        for task, done in by_task.items():
            for unit, seen in done.seen_to.items():
                log.skip.setdefault(unit, {})[task] = seen

    def _measure(self, rows: int, records: int, busy: float) -> None:
        seconds = self._calibration.epoch(rows, records, busy)
        for log in self._logs.values():
            if seconds > 0 and log.closed is not None and log.was_closed is not None:
                log.classes = smoothed(log.classes, (log.closed - log.was_closed) / seconds)
            log.was_closed = log.closed

    def write(
        self,
        transaction: Transaction,
        placed: Sequence[PlacedControls],
        controls: Mapping[str, Mapping[str, Control]],
        lineage: Lineage,
    ) -> Sequence[PlacedControls]:
        """With a commit: the entries of logs that nothing else is written to, and what operators release, which is what
        lies before the oldest of the last footprints. Returns what is placed by now, these entries among it."""
        for log in self._logs.values():
            if log.own and (own := controls.get(log.stream.name)) is not None:
                placed = [*placed, (log.stream.name, transaction.append(log.stream, _entry(own, lineage)), own)]
            if (place := _last_before({**log.places, **_places(log, placed)}, log.extent.oldest)) is not None:
                transaction.release(log.stream, reader_of(self._program.name, log.name), place.number, place.offset)
        return placed

    def wrote(self, placed: Sequence[PlacedControls]) -> None:
        """What was written is committed: where the control records are is kept, and forgotten of what was released."""
        for log in self._logs.values():
            log.places |= _places(log, placed)
            for epoch in [epoch for epoch in log.places if epoch < log.extent.oldest]:
                for unit in log.places.pop(epoch).units:
                    log.skip.pop(unit.name, None)

    def trim(self, *, left: bool) -> None:
        """Remove what everybody has released. Once the policy was `left` and no recovery needs the logs, they go."""
        if left:
            self._retired += [(log.stream, log.name) for log in self._logs.values()]
            self._logs = {}
        for stream, name in self._retired if left or self._left else ():
            reader = reader_of(self._program.name, name)
            if any(log.stream.name == stream.name and log.name == name for log in self._logs.values()):
                continue
            state = stream.state()
            with self._right.writing() as connection:
                stream.checkpoint(connection, reader, state.number, state.offset, self._epoch)
            stream.trim(alone=stream.name.endswith(LOG_SUFFIX))
            self._right.check()
            stream.unsubscribe(reader)
        if left or self._left:
            self._retired = []
        now = self._ticks()
        if self._logs and now - self._trimmed >= self._trim_every:
            self._trimmed = now
            for log in self._logs.values():
                log.stream.trim(alone=log.own)

    def end(self, epoch: int) -> None:
        """A clean end: all state is on the stable tier, and no recovery needs what windows have left."""
        if self._logs:
            with self._right.writing() as connection:
                for log in self._logs.values():
                    if (place := _last_before(log.places, epoch + 1)) is not None:
                        reader = reader_of(self._program.name, log.name)
                        log.stream.checkpoint(connection, reader, place.number, place.offset, epoch)
        self.trim(left=True)

    def sweep(self, right: Right) -> None:
        """Before the first epoch: remove what lost attempts have written."""
        for log in self._logs.values():
            if log.own:
                log.stream.sweep(right)


def _places(log: _FootprintLog, placed: Iterable[PlacedControls]) -> dict[int, _LogPlace]:
    """Where the control records for a log are, by epoch."""
    found = {}
    for stream, entry, controls in placed:
        if stream == log.stream.name and (control := controls.get(log.name)) is not None:
            found[control.epoch] = _LogPlace(entry.number, entry.offset + entry.rows, control.units)
    return found


def _last_before(places: Mapping[int, _LogPlace], oldest: int) -> _LogPlace | None:
    """The last of the places of epochs before `oldest`, if there are any."""
    last = max((epoch for epoch in places if epoch < oldest), default=None)
    return None if last is None else places[last]


def _found(stream: PStream, footing: Footing) -> Iterator[tuple[Control, _LogPlace]]:
    for control, place in _placed(stream, footing.name):
        yield control, place
        if control.epoch < footing.extent.oldest:
            return


def _placed(stream: PStream, name: str) -> Iterator[tuple[Control, _LogPlace]]:
    """The control records of an operator, newest first, and where they are."""
    for entry in stream.backwards():
        control = entry.control.get(name)
        if control is not None:
            yield control, _LogPlace(entry.number, entry.offset + entry.rows, control.units)


def _change(epoch: int, rows: int, left: FootprintsLeft) -> LogChange:
    return LogChange(epoch, left.records, rows, left.opened, left.moved, left.closed)


def _entry(controls: Mapping[str, Control], lineage: Lineage) -> NewEntry:
    return new_entry((), after=None, ended=False, lineage=lineage, control=controls)
