"""What goes into the plan of an epoch: slices of the sources, the routing, and what commands ask for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.connect.base import Source
from holdfast.epoch.deadline import Deadlines
from holdfast.errors import HoldfastError
from holdfast.meta import Command
from holdfast.plan.program import Program
from holdfast.plan.rerouting import rerouted, retasked
from holdfast.state.routing import Routing

__all__ = ["Obeyed", "Taken", "is_awaited", "new_plan", "nothing_taken", "obey", "take_input"]


_TAKE = "the source, which was asked for its next slice (take),"


@dataclass(frozen=True, slots=True)
class Taken:
    """The next slice of each source, by task, and where the sources stand after it. Where a source is `open`, rows
    follow that have no order among them and these."""

    slices: dict[str, list[list[dict[str, Any]]]]
    positions: dict[str, Any]
    done: dict[str, bool]
    open: dict[str, bool]

    @property
    def rows(self) -> int:
        return sum(piece["rows"] for groups in self.slices.values() for pieces in groups for piece in pieces)

    def inputs(self) -> dict[str, Any]:
        return {"slices": self.slices, "positions": self.positions, "done": self.done, "open": self.open}


def take_input(
    program: Program,
    before: Mapping[str, Any],
    ended: Mapping[str, bool],
    rows: int,
    tasks: int,
    epoch: int,
    deadlines: Deadlines | None = None,
) -> Taken | None:
    """About `rows` rows in all, for so many tasks; None if no source has anything."""
    slices: dict[str, list[list[dict[str, Any]]]] = {}
    positions, done = dict(before), dict(ended)
    anything = False
    for node in program.sources:
        assert isinstance(node.source, Source)
        slices[node.name] = [[] for _ in range(tasks)]
        if done[node.name]:
            continue
        share = max(1, rows // len(program.sources))
        try:
            take = (deadlines or Deadlines()).call(
                node.name, epoch, _TAKE, node.source.take, positions[node.name], share, tasks
            )
        except HoldfastError as error:
            raise error.at(operator=node.name, epoch=epoch) from error.__cause__
        # Also where nothing is left of what was found together: the watermark moves then.
        closes = node.source.settled(take.position) and not node.source.settled(positions[node.name])
        anything = anything or bool(take.slices) or take.done or closes
        positions[node.name], done[node.name] = take.position, take.done
        for index, piece in enumerate(take.slices):
            # Contiguous groups: the order of rows is the order of tasks.
            target = index * tasks // len(take.slices)
            slices[node.name][target].append({"base": piece.base, "rows": piece.rows, "where": dict(piece.where)})
    return Taken(slices, positions, done, _open(program, positions, done)) if anything else None


def is_awaited(program: Program, positions: Mapping[str, Any]) -> bool:
    """Whether input is on its way to some source that is not complete yet."""
    return any(isinstance(node.source, Source) and node.source.awaits(positions[node.name]) for node in program.sources)


def nothing_taken(program: Program, before: Mapping[str, Any], ended: Mapping[str, bool], tasks: int) -> Taken:
    """The input of an epoch without rows."""
    slices: dict[str, list[list[dict[str, Any]]]] = {node.name: [[] for _ in range(tasks)] for node in program.sources}
    return Taken(slices, dict(before), dict(ended), _open(program, before, ended))


def _open(program: Program, positions: Mapping[str, Any], done: Mapping[str, bool]) -> dict[str, bool]:
    return {
        node.name: not done[node.name] and not node.source.settled(positions[node.name])
        for node in program.sources
        if isinstance(node.source, Source)
    }


def new_plan(program: Program, inputs: Mapping[str, Any], tasks: int, routing: Mapping[str, Routing]) -> dict[str, Any]:
    """The plan of an epoch: its input, how many tasks each stage has, and the routing."""
    counts = [tasks] + [
        max(routing[node.name].partitions for node in program.operators_in(stage)) for stage in range(1, program.stages)
    ]
    return {**inputs, "tasks": counts, "routing": {name: bounds.to_json() for name, bounds in routing.items()}}


@dataclass(frozen=True, slots=True)
class Obeyed:
    """The routing and the number of reading tasks that commands lead to, and what to answer them."""

    routing: dict[str, Routing]
    tasks: int
    answers: dict[int, dict[str, Any]]


def obey(
    program: Program, commands: Iterable[Command], routing: Mapping[str, Routing], tasks: int, epoch: int
) -> Obeyed:
    """Do what was asked for, from this epoch on. A change of parallelism is a plan with another routing; one that was
    not answered, because the process died, is asked for again, and is the same then."""
    now = dict(routing)
    answers: dict[int, dict[str, Any]] = {}
    for command in commands:
        try:
            reading = retasked(program, command.what)
            if reading is None:
                now = rerouted(program, now, command.what)
            else:  # the slices of this epoch are cut already
                tasks = reading
            answers[command.number] = {"epoch": epoch if reading is None else epoch + 1}
        except HoldfastError as error:
            answers[command.number] = {"problem": error.problem, "cure": error.cure, "operator": error.operator}
    return Obeyed(now, tasks, answers)
