"""A pipeline whose code has changed, on the state that its old code left. Pure: shapes in, what to do out.

A change is taken when the pipeline starts, in one transaction: its new shape, the epochs of the store under the new
names, and the commands that give operators another number of partitions. Until the first commit of the new code the
state is still that of the old code, so either may start then; `undo` in the shape says what the old one was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from holdfast.errors import PipelineChangedError
from holdfast.graph.nodes import SourceNode, Stateful
from holdfast.plan.program import Program
from holdfast.plan.scale_command import ScaleCommand
from holdfast.plan.shape import check_shape, shape_of_program
from holdfast.state.pipeline_shape import PipelineShape, UndoShape

__all__ = ["Evolution", "evolve", "under"]

Names = Mapping[str, str]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Evolution:
    """What a start writes to the store: the shape, new names for old ones, and how many partitions operators are to
    have from the next plan on."""

    shape: PipelineShape
    sources: Names = field(default_factory=dict)
    operators: Names = field(default_factory=dict)
    partitions: Mapping[str, int] = field(default_factory=dict)

    @property
    def commands(self) -> list[ScaleCommand]:
        return [ScaleCommand(name, number) for name, number in self.partitions.items()]


def evolve(program: Program, before: PipelineShape | None, committed: int, partitions: int | None = None) -> Evolution:
    """What it takes to continue with `program` where a pipeline of the shape `before` stopped after epoch `committed`.

    `partitions` is the number that operators have by default; without it nothing is partitioned anew. Raises if the
    program would misread the state.
    """
    now = shape_of_program(program, partitions)
    if before is None:
        return Evolution(now)
    undo = before.undo if before.undo is not None and before.undo.epoch == committed else None
    try:
        sources, operators, known = _matched(program, before, now)
    except PipelineChangedError:
        if undo is None:
            raise
        try:
            fresh = _matched(program, undo.shape, now)
        except PipelineChangedError:
            fresh = None
        if fresh is None:
            raise
        sources, operators, known = fresh
        sources, operators = _then(_inverse(undo.sources), sources), _then(_inverse(undo.operators), operators)
    scales = {
        name: shape.partitions
        for name, shape in now.operators.items()
        if shape.partitions is not None and _partitions(before, operators, name) not in (None, shape.partitions)
    }
    if undo is not None:
        undo = UndoShape(undo.epoch, undo.shape, _then(undo.sources, sources), _then(undo.operators, operators))
    elif sources or operators or known != now:
        undo = UndoShape(committed, PipelineShape(before.sources, before.operators), sources, operators)
    return Evolution(msgspec.structs.replace(now, undo=undo), sources, operators, scales)


def _matched(
    program: Program, before: PipelineShape, now: PipelineShape
) -> tuple[dict[str, str], dict[str, str], PipelineShape]:
    """Old names with the new ones, and the old shape under the new names, which fits the new one."""
    sources = _renames(program.name, "source", program.sources, before.sources)
    operators = _renames(program.name, "operator", program.stateful, before.operators)
    known = PipelineShape(under(sources, before.sources), under(operators, before.operators))
    check_shape(program.name, known, now)
    return sources, operators, known


def _renames(
    pipeline: str, what: str, nodes: Sequence[SourceNode] | Sequence[Stateful], known: Mapping[str, object]
) -> dict[str, str]:
    renames = {}
    for node in nodes:
        if node.was is None:
            continue
        if node.was in known and node.name not in known:
            renames[node.was] = node.name
        elif node.was in known or node.name not in known:
            found = "knows both names" if node.was in known else "knows neither name"
            raise PipelineChangedError(
                f"pipeline '{pipeline}' has changed: {what} '{node.name}' was '{node.was}', but the store {found}",
                cure=f"give the name of a {what} that the store knows, or leave `was` out; it knows:"
                f" {', '.join(known) or 'none'}",
                operator=node.name,
            )
    return renames


def _partitions(before: PipelineShape, names: Names, operator: str) -> int | None:
    """How many partitions an operator was declared to have at the last start; older stores do not say."""
    known = under(names, before.operators).get(operator)
    return None if known is None else known.partitions


def under(names: Names, content: Mapping[str, Value]) -> dict[str, Value]:
    """The content under its new names; what has none keeps the old one."""
    return {names.get(name, name): value for name, value in content.items()}


def _inverse(names: Names) -> dict[str, str]:
    return {new: old for old, new in names.items()}


def _then(first: Names, second: Names) -> dict[str, str]:
    """One renaming after the other, without names that come back to themselves."""
    both = {old: second.get(new, new) for old, new in first.items()}
    both |= {old: new for old, new in second.items() if old not in first.values()}
    return {old: new for old, new in both.items() if old != new}
