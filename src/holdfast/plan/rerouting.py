"""What a command to scale means: for an operator another routing state, for a source another number of reading tasks.
Pure: what there is in, what there will be out.

A command is `{"do": "scale", "operator": name, "partitions": n}`. It may have `bounds`, where the n intervals of
positions begin; without them the intervals have equal lengths. A `reason` is for people.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from holdfast.errors import DeclarationError
from holdfast.plan.program import Program
from holdfast.state.partition import merge_routing_state, partition_routing_state
from holdfast.state.routing import Routing

__all__ = ["MOST_PARTITIONS", "replanned", "rerouted", "retasked"]

MOST_PARTITIONS = 1_024


def retasked(program: Program, command: Mapping[str, Any]) -> int | None:
    """How many tasks read after a command that names a source; None if it names none."""
    source = command.get("operator")
    if source not in {node.name for node in program.sources}:
        return None
    tasks = _partitions(command)
    if program.spark_input is not None:
        raise DeclarationError(
            "the tasks that read a streaming DataFrame are Spark's",
            cure="repartition the DataFrame before it enters the pipeline",
            operator=source,
        )
    return tasks


def rerouted(program: Program, routing: Mapping[str, Routing], command: Mapping[str, Any]) -> dict[str, Routing]:
    """The routing after a command that names a stateful operator."""
    operator, partitions = command.get("operator"), _partitions(command)
    known = {node.name: node for node in program.stateful}
    if operator not in known:
        raise DeclarationError(
            f"'{program.name}' has no stateful operator '{operator}'",
            cure=f"it has: {', '.join(known) or 'none'}",
        )
    if not known[operator].keys and partitions > 1:
        raise DeclarationError(
            "an operator without a key cannot be split",
            cure="group by a key first, or aggregate in two steps",
            operator=operator,
        )
    bounds = command.get("bounds")
    return {**routing, operator: rebounded(routing.get(operator, Routing()), bounds or Routing.even(partitions).bounds)}


def rebounded(routing: Routing, bounds: Sequence[int]) -> Routing:
    """All partitions merged, and what they come to split again at these bounds."""
    whole = merge_routing_state(routing, 0, routing.partitions - 1)
    return partition_routing_state(whole, 0, bounds[1:])


def replanned(program: Program, plan: Mapping[str, Any], partitions: int) -> dict[str, Any]:
    """The plan of an epoch with so many partitions of each operator that has a key: parallel recovery."""
    routing = {
        node.name: Routing.even(partitions).to_json() if node.keys else plan["routing"][node.name]
        for node in program.stateful
    }
    counts = [
        max(len(routing[node.name]) for node in program.operators_in(stage)) for stage in range(1, program.stages)
    ]
    return {**plan, "routing": routing, "tasks": [plan["tasks"][0], *counts]}


def _partitions(command: Mapping[str, Any]) -> int:
    partitions, bounds = command.get("partitions"), command.get("bounds")
    if command.get("do") != "scale" or not isinstance(partitions, int) or not 1 <= partitions <= MOST_PARTITIONS:
        raise DeclarationError(
            f"cannot do {dict(command)}", cure=f"scale an operator to 1 to {MOST_PARTITIONS} partitions"
        )
    if bounds is not None and not _are_bounds(bounds, partitions):
        raise DeclarationError(
            f"{bounds} are no bounds of {partitions} partitions",
            cure="give one bound per partition, in increasing order, from 0 to less than 2**64",
            operator=command.get("operator"),
        )
    return partitions


def _are_bounds(bounds: object, partitions: int) -> bool:
    return (
        isinstance(bounds, list)
        and len(bounds) == partitions
        and all(isinstance(bound, int) for bound in bounds)
        and bounds[0] == 0
        and all(one < other for one, other in pairwise([*bounds, 1 << 64]))
    )
