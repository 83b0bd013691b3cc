"""What a command to scale means for routing state. Pure: routing in, routing out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import DeclarationError
from holdfast.plan.program import Program
from holdfast.state.routing import Routing

__all__ = ["MOST_PARTITIONS", "replanned", "rerouted"]

MOST_PARTITIONS = 1_024


def rerouted(program: Program, routing: Mapping[str, Routing], command: Mapping[str, Any]) -> dict[str, Routing]:
    """The routing after a command `{"do": "scale", "operator": name, "partitions": n}`."""
    operator, partitions = command.get("operator"), command.get("partitions")
    known = {node.name: node for node in program.stateful}
    if command.get("do") != "scale" or not isinstance(partitions, int) or not 1 <= partitions <= MOST_PARTITIONS:
        raise DeclarationError(
            f"cannot do {dict(command)}", cure=f"scale an operator to 1 to {MOST_PARTITIONS} partitions"
        )
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
    return {**routing, operator: Routing.even(partitions)}


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
