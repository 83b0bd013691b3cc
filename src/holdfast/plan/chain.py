"""Stateless chains: the operators between origins (source chunks, outputs of stateful operators) and targets.

All of a chain becomes one lazy Polars query per batch, so that filters and projections move down to the data. When
a query fails it is run again operator by operator to find out which one is to blame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from holdfast.errors import HoldfastError
from holdfast.graph.nodes import Node
from holdfast.graph.stateless.stateless_operator import Stateless
from holdfast.operators.operator_errors import operator_error

__all__ = ["Chain"]


class Chain:
    """The stateless operators of a pipeline, applied to whatever origins are at hand."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes

    def frames(self, targets: Sequence[str], origins: Mapping[str, pl.LazyFrame]) -> dict[str, pl.LazyFrame]:
        """Lazy queries for the targets that these origins reach."""
        made: dict[str, pl.LazyFrame | None] = dict(origins)
        found = {target: self._frame(target, made) for target in targets}
        return {target: frame for target, frame in found.items() if frame is not None}

    def _frame(self, name: str, made: dict[str, pl.LazyFrame | None]) -> pl.LazyFrame | None:
        if name not in made:
            node = self._nodes[name]
            inputs = [self._frame(upstream, made) for upstream in node.inputs]
            present = [frame for frame in inputs if frame is not None]
            made[name] = node.apply(present) if present and isinstance(node, Stateless) else None
        return made[name]

    def blame(
        self, target: str, origins: Mapping[str, pl.DataFrame], error: Exception, epoch: int | None
    ) -> HoldfastError:
        """Run the chain step by step and say which operator raised."""
        made: dict[str, pl.DataFrame | None] = dict(origins)

        def run(name: str) -> pl.DataFrame | None:
            if name not in made:
                node = self._nodes[name]
                present = [frame for frame in map(run, node.inputs) if frame is not None]
                if not present or not isinstance(node, Stateless):
                    made[name] = None
                else:
                    try:
                        made[name] = node.apply([frame.lazy() for frame in present]).collect()
                    except Exception as cause:
                        raise _BlamedError(operator_error(node.name, cause, epoch)) from cause
            return made[name]

        try:
            run(target)
        except _BlamedError as blamed:
            return blamed.error
        return operator_error(target, error, epoch)


class _BlamedError(Exception):
    def __init__(self, error: HoldfastError) -> None:
        self.error = error
