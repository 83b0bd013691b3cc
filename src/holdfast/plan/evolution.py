"""A pipeline whose code has changed, on the state that its old code left. Pure: shapes in, what to do out.

A change is taken when the pipeline starts, in one transaction: its new shape, the epochs of the store under the new
names, and the commands that give operators another number of partitions. Until the first commit of the new code the
state is still that of the old code, so either may start then; `undo` in the shape says what the old one was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from holdfast.errors import PipelineChangedError
from holdfast.graph.nodes import SourceNode, Stateful
from holdfast.plan.program import Program
from holdfast.plan.scale_command import ScaleCommand
from holdfast.plan.shape import check_shape, shape_of_program

__all__ = ["Evolution", "evolve", "under"]

_PARTS = ("sources", "operators")

Names = Mapping[str, str]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Evolution:
    """What a start writes to the store: the shape, new names for old ones, and how many partitions operators are to
    have from the next plan on."""

    shape: Mapping[str, Any]
    sources: Names = field(default_factory=dict)
    operators: Names = field(default_factory=dict)
    partitions: Mapping[str, int] = field(default_factory=dict)

    @property
    def commands(self) -> list[ScaleCommand]:
        return [ScaleCommand(name, number) for name, number in self.partitions.items()]


def evolve(
    program: Program, before: Mapping[str, Any] | None, committed: int, partitions: int | None = None
) -> Evolution:
    """What it takes to go on with `program` where a pipeline of the shape `before` stopped after epoch `committed`.

    `partitions` is the number that operators have by default; without it nothing is partitioned anew. Raises if the
    program would misread the state.
    """
    now = shape_of_program(program, partitions)
    if before is None:
        return Evolution(now)
    undo = before.get("undo")
    undo = undo if undo is not None and undo["epoch"] == committed else None
    try:
        sources, operators, known = _matched(program, before, now)
    except PipelineChangedError:
        if undo is None:
            raise
        try:
            fresh = _matched(program, undo["shape"], now)
        except PipelineChangedError:
            fresh = None
        if fresh is None:
            raise
        sources, operators = (_then(_inverse(undo[part]), names) for part, names in zip(_PARTS, fresh[:2], strict=True))
        known = fresh[2]
    scales = {
        name: shape["partitions"]
        for name, shape in now["operators"].items()
        if "partitions" in shape and _partitions(before, operators, name) not in (None, shape["partitions"])
    }
    shape: dict[str, Any] = dict(now)
    if undo is not None:
        renamed = {part: _then(undo[part], names) for part, names in zip(_PARTS, (sources, operators), strict=True)}
        shape["undo"] = {**undo, **renamed}
    elif sources or operators or any(known[part] != _comparable(now)[part] for part in _PARTS):
        shape["undo"] = {"epoch": committed, "shape": _comparable(before), "sources": sources, "operators": operators}
    return Evolution(shape, sources, operators, scales)


def _matched(
    program: Program, before: Mapping[str, Any], now: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, str], dict[str, Any]]:
    """Old names with the new ones, and the old shape under the new names, which fits the new one."""
    sources = _renames(program.name, "source", program.sources, before["sources"])
    operators = _renames(program.name, "operator", program.stateful, before["operators"])
    known = {
        "sources": under(sources, before["sources"]),
        "operators": under(operators, before["operators"]),
    }
    check_shape(program.name, known, now)
    return sources, operators, known


def _renames(
    pipeline: str, what: str, nodes: Sequence[SourceNode] | Sequence[Stateful], known: Mapping[str, Any]
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


def _partitions(before: Mapping[str, Any], names: Names, operator: str) -> int | None:
    """How many partitions an operator was declared to have at the last start; older stores do not say."""
    number = under(names, before["operators"]).get(operator, {}).get("partitions")
    return None if number is None else int(number)


def _comparable(shape: Mapping[str, Any]) -> dict[str, Any]:
    return {part: shape[part] for part in _PARTS}


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
