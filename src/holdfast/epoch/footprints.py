"""The footprints of a fragment's windows on the driver's side, under the policy `eventual`.

Tasks write the batches and say what changed; here the account is kept (`Extent`), the batches become control records of
the operator's output stream with the commit of their epoch, the goals of the next epoch are set, and what no recovery
needs is released. The operator itself is a reader of its stream: it holds back what its recovery would read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from holdfast.epoch.authority import HeldAuthority
from holdfast.epoch.calibrating import Calibrating, smoothed
from holdfast.epoch.record import EpochRecord, Footing
from holdfast.epoch.steps.trace import ALL_SEEN
from holdfast.graph.nodes import Stateful
from holdfast.meta import Entry, MetaStore, NewEntry
from holdfast.plan.eventual import LOG_SUFFIX, log_name, output_stream
from holdfast.plan.program import Program
from holdfast.pstream import Control, PStream, PUnit, new_entry
from holdfast.state.extent import Change, Extent, Move, empty_extent, merged
from holdfast.state.goals import Goal, goal_by_age, goal_by_benefit, goal_by_size, predicted_recovery
from holdfast.state.policy import Policy
from holdfast.store import Right

__all__ = ["Footprints", "reader_of"]

_log = logging.getLogger(__name__)
_MOST_BATCHES = 64
"""Old batches that tasks are given at a time."""
_MARGIN = 0.7
"""Of the time for checkpoints: what they take is only known on average."""
_MOST_EPOCHS = 256
_TRIM_SECONDS = 0.5


def reader_of(fragment: str, name: str) -> str:
    """The name under which an operator holds back its own footprints."""
    return f"{fragment}/{name}"


@dataclass(slots=True)
class _Place:
    """Where the footprints of an epoch are: their entry and its p-units."""

    number: int
    offset: int
    units: tuple[PUnit, ...]


@dataclass(slots=True)
class _Log:
    """The log of one operator."""

    operator: str
    name: str
    stream: PStream
    own: bool
    extent: Extent
    opening: bool
    closed: int | None = None
    places: dict[int, _Place] = field(default_factory=dict)
    skip: dict[str, dict[str, int]] = field(default_factory=dict)
    """By p-unit and task: how many of the records a task has seen to."""
    goal: Goal | None = None
    checked_at: float = 0.0
    was_closed: int | None = None
    classes: float = 0.0
    """Panes closed per second."""


class Footprints:
    """The logs of all operators of a program."""

    def __init__(
        self, program: Program, meta: MetaStore, root: Path, sync: bool, right: HeldAuthority,
        clock: Callable[[], float], trim_every: float = _TRIM_SECONDS,
    ) -> None:  # fmt: skip
        self._program = program
        self._meta = meta
        self._root = root
        self._sync = sync
        self._right = right
        self._clock = clock
        self._logs: dict[str, _Log] = {}
        self._retired: list[tuple[PStream, str]] = []
        self._left = False
        """Whether footprints of this run are committed: until then a recovery needs those of the one before."""
        self._routing: Any = None
        self._handed: tuple[tuple[int, Policy], dict[str, Any]] | None = None
        self._calibrating = Calibrating(program, meta, root, clock)
        self._trim_every = trim_every
        self._trimmed = 0.0

    def begin(self, record: EpochRecord, epoch: int, damaged: Collection[str] = ()) -> None:
        """Go on with the logs as a record has them. Where another record is the base, they begin anew. Of `damaged`
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
            log = _Log(operator, footing.name, stream, own, footing.extent, opening, footing.closed)
            log.places = {control.epoch: place for control, place in _found(stream, footing)}
            self._logs[operator] = log
        self._epoch = epoch

    def _stream(self, name: str) -> PStream:
        return PStream(self._meta, self._root, name, sync=self._sync, clock=self._clock)

    def _open(self, node: Stateful, epoch: int) -> _Log:
        """The log of an operator that has none yet: all its windows leave a footprint first."""
        own = output_stream(self._program, node.name) is None
        stream = self._stream(log_name(self._program, node.name))
        if own:
            place = {"place": {"after": node.name, "window": None}}
            stream.declare({"schema": {}, "time": None, "declared": node.name, "placement": place})
            stream.sweep(self._right)
        marker = stream.subscribe(reader_of(self._program.name, node.name))
        log = _Log(node.name, node.name, stream, own, empty_extent(epoch), opening=True)
        for control, found in _placed(stream, node.name):  # what an earlier run has left goes with the first commit
            if found.number <= marker.number:
                break
            log.places[control.epoch] = found
        return log

    # the next epoch

    def handover(self, epoch: int, policy: Policy, routing: Any, *, replayed: Mapping[str, Footing]) -> dict[str, Any]:
        """What the tasks of an epoch are to do. `replayed` are the footings of an epoch that is run again."""
        if replayed:
            return {name: self._instructions(footing.stream, replaying=True) for name, footing in replayed.items()}
        if policy.kind != "eventual":
            for log in self._logs.values():  # what windows do meanwhile is not known
                log.opening = True
            return {}
        if self._handed is not None and self._handed[0] == (epoch, policy):
            return self._handed[1]
        if routing != self._routing:  # the tasks have other records of the batches to see to
            self._routing = routing
            for log in self._logs.values():
                log.skip.clear()
        for node in self._program.stateful:
            if node.name not in self._logs:
                self._logs[node.name] = self._open(node, epoch - 1)
        wanted = {name: self._wanted(log, policy) for name, log in self._logs.items()}
        self._handed = (epoch, policy), wanted
        return wanted

    def _wanted(self, log: _Log, policy: Policy) -> dict[str, Any]:
        now = self._clock()
        log.goal = None
        if not log.opening and not policy.only_open and now - log.checked_at >= policy.period:
            log.goal = self._goal(log, policy)
        if log.goal is None:
            return self._instructions(log.stream.name, opening=log.opening)
        log.checked_at = now
        affordable = self._affordable(policy.spend)
        before = self._reachable(log, log.goal, affordable)
        older = [
            {"epoch": mark.epoch, "unit": unit.to_json(), "skip": log.skip.get(unit.name, {})}
            for mark in log.extent.marks
            if mark.epoch < before and mark.live and mark.epoch in log.places
            for unit in log.places[mark.epoch].units
            if not self._seen_to(log, unit)
        ]
        return self._instructions(
            log.stream.name, before=before, spare=log.goal.spare, older=older[:_MOST_BATCHES], seconds=policy.spend,
            most=affordable,
        )  # fmt: skip

    def _seen_to(self, log: _Log, unit: PUnit) -> bool:
        """Whether no task has anything left to do for a batch."""
        tasks = len(self._routing[log.operator])
        seen = log.skip.get(unit.name, {})
        return all(seen.get(str(task)) == ALL_SEEN for task in range(tasks))

    def _instructions(self, stream: str, **given: Any) -> dict[str, Any]:
        default: dict[str, Any] = {
            "replaying": False,
            "opening": False,
            "before": 0,
            "spare": None,
            "older": [],
            "seconds": 0.0,
            "most": 0,
        }
        return {**default, **given, "root": str(self._root), "stream": stream, "sync": self._sync}

    def _affordable(self, seconds: float) -> int:
        """How many windows a task can checkpoint in that time."""
        return max(1, int(_MARGIN * seconds / self._calibrating.now.check))

    def _reachable(self, log: _Log, goal: Goal, affordable: int) -> int:
        """How far the tasks can get on the way to a goal: newer windows would get footprints in vain while older ones
        hold back the rest."""
        windows, most = 0, affordable * len(self._routing[log.operator])
        for mark in log.extent.marks:
            if mark.epoch >= goal.before:
                break
            windows += mark.windows
            if windows > most:
                return mark.epoch + 1
        return goal.before

    def _goal(self, log: _Log, policy: Policy) -> Goal | None:
        """How far the oldest footprint must move. Every epoch since is replayed and listed in each record, so their
        number is bounded, whatever the sizes."""
        return self._goal_of_policy(log, policy) or goal_by_age(log.extent, _MOST_EPOCHS)

    def _goal_of_policy(self, log: _Log, policy: Policy) -> Goal | None:
        if policy.recovery is None:
            return goal_by_size(log.extent, policy.most_records, policy.most_rows)
        share = policy.spend / policy.period
        pace = replace(self._calibrating.pace, classes=log.classes, closed=log.closed, share=share)
        return goal_by_benefit(log.extent, self._calibrating.now, pace, policy.recovery)

    def calibrate(self, record: EpochRecord, policy: Policy, scratch: Path) -> None:
        """After a commit: see what gathering the footprints would take, now and then."""
        self._calibrating.gather(record, policy, scratch)

    def close(self) -> None:
        self._calibrating.close()

    # a commit

    def committed(
        self, epoch: int, left: Mapping[str, Mapping[int, Mapping[str, Any]]], rows: int, busy: float
    ) -> tuple[dict[str, Footing], dict[str, dict[str, Control]]]:
        """Take in what the tasks of an epoch have left: the footings after it, and the control records by stream."""
        footings: dict[str, Footing] = {}
        controls: dict[str, dict[str, Control]] = {}
        self._left = self._left or bool(left)
        records = 0
        for operator, by_task in left.items():
            log = self._logs[operator]
            parts = [_change(epoch, rows, each) for _, each in sorted(by_task.items())]
            begin = empty_extent(epoch - 1) if log.opening else log.extent
            try:
                log.extent = begin.after(merged(epoch, rows, parts))
            except ValueError as error:
                # Nothing is lost: what was known before still holds, and the next epoch has footprints of all windows.
                # This one has none, of no operator, so that all begin anew.
                _log.error("the account of the footprints of '%s' is wrong and begins anew: %s", operator, error)
                for each in self._logs.values():
                    each.opening = True
                return {}, {}
            marks = [part.closed for part in parts if part.closed is not None]
            log.closed = max([*marks, *([log.closed] if log.closed is not None else [])], default=None)
            units = tuple(
                PUnit.from_json(each["unit"]) for _, each in sorted(by_task.items()) if each["unit"] is not None
            )
            log.opening = any(each["damaged"] for each in by_task.values())
            records += sum(unit.rows for unit in units)
            self._take_in(log, by_task)
            head = {"windows": log.extent.windows, "open": log.extent.open_windows, "closed": log.closed}
            controls.setdefault(log.stream.name, {})[log.name] = Control(epoch, head, units)
            why = None if log.goal is None else log.goal.why
            predicted = predicted_recovery(log.extent, self._calibrating.now)
            footings[operator] = Footing(log.stream.name, log.name, log.extent, log.closed, predicted, why)
        self._measure(rows, records, busy)
        return footings, controls

    def _take_in(self, log: _Log, by_task: Mapping[int, Mapping[str, Any]]) -> None:
        """What tasks have seen to, and what it took them."""
        checked, spent = (sum(each[name] for each in by_task.values()) for name in ("checked", "seconds"))
        self._calibrating.checked(checked, spent)
        for task, each in by_task.items():
            for unit, seen in each["seen_to"].items():
                log.skip.setdefault(unit, {})[str(task)] = seen

    def _measure(self, rows: int, records: int, busy: float) -> None:
        seconds = self._calibrating.epoch(rows, records, busy)
        for log in self._logs.values():
            if seconds > 0 and log.closed is not None and log.was_closed is not None:
                log.classes = smoothed(log.classes, (log.closed - log.was_closed) / seconds)
            log.was_closed = log.closed

    def writes(
        self, epoch: int, controls: Mapping[str, Mapping[str, Control]], lineage: Mapping[str, Any]
    ) -> Callable[[sa.Connection], None]:
        """What goes into the transaction of the commit: the entries of logs that nothing else is written to, and what
        operators release, which is what lies before the oldest of the last footprints."""
        logs = list(self._logs.values())

        def also(connection: sa.Connection) -> None:
            for log in logs:
                if log.own and log.stream.name in controls:
                    [entry] = log.stream.write(connection, [_entry(controls[log.stream.name], lineage)])
                    self.placed(log.stream.name, entry, controls[log.stream.name])
                self._release(connection, log, epoch, log.extent.oldest)

        return also

    def placed(self, stream: str, entry: Entry, controls: Mapping[str, Control]) -> None:
        """The control records of an epoch have got their entry."""
        for log in self._logs.values():
            if log.stream.name == stream and log.name in controls:
                control = controls[log.name]
                log.places[control.epoch] = _Place(entry.number, entry.offset + entry.rows, control.units)

    def _release(self, connection: sa.Connection, log: _Log, epoch: int, oldest: int) -> None:
        gone = [each for each in log.places if each < oldest]
        if not gone:
            return
        place = log.places[max(gone)]
        log.stream.checkpoint(connection, reader_of(self._program.name, log.name), place.number, place.offset, epoch)
        for each in gone:
            for unit in log.places.pop(each).units:
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
        now = self._clock()
        if self._logs and now - self._trimmed >= self._trim_every:
            self._trimmed = now
            for log in self._logs.values():
                log.stream.trim(alone=log.own)

    def end(self, epoch: int) -> None:
        """A clean end: all state is on the stable tier, and no recovery needs what windows have left."""
        if self._logs:
            with self._right.writing() as connection:
                for log in self._logs.values():
                    self._release(connection, log, epoch, epoch + 1)
        self.trim(left=True)

    def sweep(self, right: Right) -> None:
        """Before the first epoch: remove what lost attempts have written."""
        for log in self._logs.values():
            if log.own:
                log.stream.sweep(right)


def _found(stream: PStream, footing: Footing) -> Iterator[tuple[Control, _Place]]:
    for control, place in _placed(stream, footing.name):
        yield control, place
        if control.epoch < footing.extent.oldest:
            return


def _placed(stream: PStream, name: str) -> Iterator[tuple[Control, _Place]]:
    """The control records of an operator, newest first, and where they are."""
    for entry in stream.backwards():
        control = entry.control.get(name)
        if control is not None:
            yield control, _Place(entry.number, entry.offset + entry.rows, control.units)


def _change(epoch: int, rows: int, left: Mapping[str, Any]) -> Change:
    records = 0 if left["unit"] is None else left["unit"]["rows"]
    moved = tuple(Move(*move) for move in left["moved"])
    return Change(epoch, records, rows, {int(name): windows for name, windows in left["opened"]}, moved, left["closed"])


def _entry(controls: Mapping[str, Control], lineage: Mapping[str, Any]) -> NewEntry:
    return new_entry((), after=None, ended=False, lineage=lineage, control=controls)
