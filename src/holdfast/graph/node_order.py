"""The order of a pipeline's operators: inputs before those that read them."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.errors import CycleError
from holdfast.graph.nodes import Node

__all__ = ["topological_order"]


def topological_order(nodes: Mapping[str, Node]) -> list[Node]:
    """Inputs before readers; among equals, the order of declaration. A loop is an error."""
    cycle = _cycle(nodes)
    if cycle is not None:
        raise CycleError(
            f"the operators form a loop: {' → '.join(reversed(cycle))}",
            cure="a pipeline must not have loops; keep feedback in the state of a keyed process",
            operator=cycle[0],
        )
    order: list[Node] = []
    placed: set[str] = set()

    def place(name: str) -> None:
        if name not in placed:
            placed.add(name)
            for upstream in nodes[name].inputs:
                place(upstream)
            order.append(nodes[name])

    for name in nodes:
        place(name)
    return order


def _cycle(nodes: Mapping[str, Node]) -> list[str] | None:
    """The names along a loop, or None."""
    done: set[str] = set()
    for start in nodes:
        path: list[str] = []
        pending = [(start, iter(nodes[start].inputs))]
        path.append(start)
        while pending:
            _name, inputs = pending[-1]
            following = next(inputs, None)
            if following is None:
                pending.pop()
                done.add(path.pop())
            elif following in path:
                return [*path[path.index(following) :], following]
            elif following not in done:
                path.append(following)
                pending.append((following, iter(nodes[following].inputs)))
    return None
