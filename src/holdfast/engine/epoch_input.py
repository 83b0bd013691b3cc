"""What goes into the plan of an epoch: slices of the sources, the routing, and what commands ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from holdfast.connect.base import Position, Slice, Source, Take
from holdfast.connect.source_answers import checked_take
from holdfast.epoch.deadline import Deadlines
from holdfast.epoch.lookup_version import LookupVersion
from holdfast.epoch.plan import EpochPlan, Slices
from holdfast.errors import HoldfastError
from holdfast.graph.nodes import SourceNode
from holdfast.meta import Command
from holdfast.plan.program import Program
from holdfast.plan.scale_command import ScaleAnswer, ScaleCommand
from holdfast.plan.scaled_routing import assembly_tasks, rerouted, retasked
from holdfast.plan.watermarks import Following
from holdfast.pstream.link import StreamSource
from holdfast.state.routing import Routing

__all__ = ["Obeyed", "Taken", "ask", "batch_taken", "is_awaited", "new_plan", "nothing_taken", "obey", "take_input"]


_TAKE = "the source, which was asked what comes next (take, settled, lag),"
_AWAITS = "the source, which was asked whether input is on its way (awaits),"
_SETTLED = "the source, which was asked whether more rows go with these (settled),"
T = TypeVar("T")


def ask(
    deadlines: Deadlines, node: SourceNode, epoch: int | None, what: str, function: Callable[..., T], *given: Any
) -> T:
    """Ask a source something, and wait until the deadline. A p-stream is asked at once: only the meta store answers
    for it, which the run asks all the time."""
    if isinstance(node.source, StreamSource):
        return function(*given)
    return deadlines.call(node.name, epoch, what, function, *given)


@dataclass(frozen=True, slots=True)
class Taken:
    """The next slice of each source, by task, and where the sources stand after it. Where a source is `open`, rows
    follow that have no order among them and these. `lags` is how many rows wait behind them, where a source knows."""

    slices: Slices
    positions: dict[str, Position]
    done: dict[str, bool]
    open: dict[str, bool] = field(default_factory=dict)
    lags: Mapping[str, int] = field(default_factory=dict)
    idle: Following = field(default_factory=dict)
    """The sources that have been silent for long, and those that their watermarks follow."""

    @property
    def rows(self) -> int:
        return sum(piece.rows for groups in self.slices.values() for pieces in groups for piece in pieces)


def take_input(
    program: Program,
    before: Mapping[str, Position],
    ended: Mapping[str, bool],
    rows: int,
    tasks: int,
    epoch: int,
    deadlines: Deadlines | None = None,
) -> Taken | None:
    """About `rows` rows in all, for so many tasks; None if no source has anything."""
    slices: dict[str, tuple[tuple[Slice, ...], ...]] = {}
    positions, done = dict(before), dict(ended)
    deadlines = deadlines or Deadlines()
    opened: dict[str, bool] = {}
    lags: dict[str, int] = {}
    anything = False
    for node in program.sources:
        assert isinstance(node.source, Source)
        slices[node.name], opened[node.name] = ((),) * tasks, False
        if done[node.name]:
            continue
        share = max(1, rows // len(program.sources))
        try:
            take, begun, ends, lag = ask(
                deadlines, node, epoch, _TAKE, _next, node.source, positions[node.name], share, tasks
            )
        except HoldfastError as error:
            raise error.at(operator=node.name, epoch=epoch) from error.__cause__
        # Also where nothing is left of what was found together: the watermark moves then.
        anything = anything or bool(take.slices) or take.done or (begun and ends)
        opened[node.name] = not take.done and not ends
        lags |= {} if lag is None else {node.name: lag}
        positions[node.name], done[node.name] = take.position, take.done
        groups: list[list[Slice]] = [[] for _ in range(tasks)]
        for index, piece in enumerate(take.slices):
            # Contiguous groups: the order of rows is the order of tasks.
            groups[index * tasks // len(take.slices)].append(piece)
        slices[node.name] = tuple(map(tuple, groups))
    return Taken(slices, positions, done, opened, lags) if anything else None


def _next(source: Source, position: Position, rows: int, tasks: int) -> tuple[Take, bool, bool, int | None]:
    """The next slices; whether the source stands within rows that have no order before them, whether none of these
    follow behind them, and how many rows wait there."""
    take = checked_take(source.take(position, rows, tasks))
    lag = source.lag(take.position) if take.slices else None
    return take, not source.settled(position), source.settled(take.position), lag


def is_awaited(
    nodes: Iterable[SourceNode], positions: Mapping[str, Position], epoch: int, deadlines: Deadlines
) -> bool:
    """Whether input is on its way to some source that is not complete yet."""
    return any(
        ask(deadlines, node, epoch, _AWAITS, node.source.awaits, positions[node.name])
        for node in nodes
        if isinstance(node.source, Source)
    )


def nothing_taken(
    program: Program,
    before: Mapping[str, Position],
    ended: Mapping[str, bool],
    tasks: int,
    deadlines: Deadlines | None = None,
) -> Taken:
    """The input of an epoch without rows."""
    slices: Slices = {node.name: ((),) * tasks for node in program.sources}
    deadlines = deadlines or Deadlines()
    opened = {
        node.name: not ended[node.name]
        and not ask(deadlines, node, None, _SETTLED, node.source.settled, before[node.name])
        for node in program.sources
        if isinstance(node.source, Source)
    }
    return Taken(slices, dict(before), dict(ended), opened)


def batch_taken(source: str, batch: int) -> Taken:
    """The input of an epoch that is a batch of Structured Streaming, which reads it."""
    return Taken({}, {source: {"batch": batch}}, {source: False})


def new_plan(
    program: Program,
    taken: Taken,
    tasks: int,
    routing: Mapping[str, Routing],
    now: float | None = None,
    tables: Mapping[str, LookupVersion] | None = None,
) -> EpochPlan:
    """The plan of an epoch: its input, how many tasks each stage has, the routing, and versions of lookup tables."""
    counts = (tasks, *assembly_tasks(program, routing))
    return EpochPlan(
        taken.slices, taken.positions, taken.done, counts, routing, taken.open, now, taken.idle, tables or {}
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Obeyed:
    """The routing and the number of reading tasks that commands lead to, and what to answer them."""

    routing: dict[str, Routing]
    tasks: int
    answers: dict[int, ScaleAnswer]


def obey(
    program: Program, commands: Iterable[Command], routing: Mapping[str, Routing], tasks: int, epoch: int
) -> Obeyed:
    """Do what was asked for, from this epoch on. A change of parallelism is a plan with another routing; one that was
    not answered, because the process died, is asked for again, and is the same then."""
    now = dict(routing)
    answers: dict[int, ScaleAnswer] = {}
    for command in commands:
        try:
            wanted = ScaleCommand.decode(command.what)
            reading = retasked(program, wanted)
            if reading is None:
                now = rerouted(program, now, wanted)
            else:  # the slices of this epoch are cut already
                tasks = reading
            answers[command.number] = ScaleAnswer(epoch if reading is None else epoch + 1)
        except HoldfastError as error:
            answers[command.number] = ScaleAnswer.refused(error)
    return Obeyed(now, tasks, answers)
