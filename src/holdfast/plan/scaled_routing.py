"""What a command to scale means: for an operator another routing state, for a source another number of reading tasks.
Pure: what there is in, what there will be out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from holdfast.errors import DeclarationError
from holdfast.plan.program import Program
from holdfast.plan.scale_command import MOST_PARTITIONS, ScaleCommand
from holdfast.state.partition import merge_routing_state, partition_routing_state
from holdfast.state.routing import Routing

__all__ = ["assembly_tasks", "partitions_of", "rerouted", "retasked", "spread"]


def retasked(program: Program, command: ScaleCommand) -> int | None:
    """How many tasks read after a command that names a source; None if it names none."""
    source = command.operator
    if source not in {node.name for node in program.sources}:
        return None
    tasks = partitions_of(command)
    if program.spark_input is not None:
        raise DeclarationError(
            "the tasks that read a streaming DataFrame are Spark's",
            cure="repartition the DataFrame before it enters the pipeline",
            operator=source,
        )
    return tasks


def rerouted(program: Program, routing: Mapping[str, Routing], command: ScaleCommand) -> dict[str, Routing]:
    """The routing after a command that names a stateful operator."""
    operator, partitions = command.operator, partitions_of(command)
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
    bounds = command.bounds or Routing.even(partitions).bounds
    return {**routing, operator: rebounded(routing.get(operator, Routing()), bounds)}


def rebounded(routing: Routing, bounds: Sequence[int]) -> Routing:
    """All partitions merged, and what they come to split again at these bounds."""
    whole = merge_routing_state(routing, 0, routing.partitions - 1)
    return partition_routing_state(whole, 0, bounds[1:])


def spread(program: Program, routing: Mapping[str, Routing], partitions: int) -> dict[str, Routing]:
    """The routing with so many partitions of each operator that has a key."""
    return {node.name: Routing.even(partitions) if node.keys else routing[node.name] for node in program.stateful}


def assembly_tasks(program: Program, routing: Mapping[str, Routing]) -> tuple[int, ...]:
    """How many tasks each stage behind the first has."""
    return tuple(
        max(routing[node.name].partitions for node in program.operators_in(stage)) for stage in range(1, program.stages)
    )


def partitions_of(command: ScaleCommand) -> int:
    """How many partitions are asked for, if there can be so many, at such bounds."""
    partitions, bounds = command.partitions, command.bounds
    if not 1 <= partitions <= MOST_PARTITIONS:
        raise DeclarationError(
            f"cannot scale to {partitions} partitions",
            cure=f"scale an operator to 1 to {MOST_PARTITIONS} partitions",
            operator=command.operator,
        )
    if bounds is not None and not _are_bounds(bounds, partitions):
        raise DeclarationError(
            f"{list(bounds)} are no bounds of {partitions} partitions",
            cure="give one bound per partition, in increasing order, from 0 to less than 2**64",
            operator=command.operator,
        )
    return partitions


def _are_bounds(bounds: tuple[int, ...], partitions: int) -> bool:
    return (
        len(bounds) == partitions and bounds[0] == 0 and all(one < other for one, other in pairwise([*bounds, 1 << 64]))
    )
