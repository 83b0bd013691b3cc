"""Which columns of an operator's rows somebody reads, and which rows: the others need not be read from files, nor
written."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from holdfast.graph.nodes import Node, Persist, SideOutput, Stateful
from holdfast.graph.stateless.stateless_operator import Stateless
from holdfast.operators.lift import needed_columns
from holdfast.operators.registry import operator_of
from holdfast.plan.lifted import LiftedSink

__all__ = ["columns_read", "first_filters", "readers_of", "wants_late"]


def readers_of(nodes: Mapping[str, Node], name: str) -> list[Node]:
    """The operators that read from `name`."""
    return [node for node in nodes.values() if name in node.inputs]


def columns_read(nodes: Mapping[str, Node], node: Node) -> tuple[str, ...]:
    """The columns of an operator's rows that somebody reads, and the event time."""
    wanted = _wanted(nodes, node.name)
    if wanted is None or not readers_of(nodes, node.name):  # what nobody reads here is for others
        return tuple(node.schema)
    if node.time is not None:
        wanted |= {node.time.column}
    return tuple(name for name in node.schema if name in wanted) or tuple(node.schema)[:1]


def first_filters(nodes: Mapping[str, Node], name: str) -> tuple[pl.Expr, ...]:
    """The filters that all rows of `name` go through before anybody else sees them, as far as they may be moved into
    the reader."""
    found: list[pl.Expr] = []
    while True:
        readers = readers_of(nodes, name)
        condition = readers[0].condition if len(readers) == 1 and isinstance(readers[0], Stateless) else None
        if condition is None or not _may_move(condition):
            return tuple(found)
        found.append(condition)
        name = readers[0].name


def _may_move(predicate: pl.Expr) -> bool:
    """A filter looks at each row by itself, or is refused when it is declared; what a Python function does nobody
    knows. One that stands for several columns may mean others before the reader has left some out."""
    return not predicate.meta.has_multiple_outputs() and "python_udf" not in str(predicate)


def wants_late(nodes: Mapping[str, Node], node: Stateful) -> bool:
    """Whether somebody reads the operator's late rows."""
    return any(isinstance(reader, SideOutput) for reader in readers_of(nodes, node.name))


def _wanted(nodes: Mapping[str, Node], name: str) -> frozenset[str] | None:
    """What the readers of `name` need of its columns; None for all."""
    found: frozenset[str] = frozenset()
    for reader in readers_of(nodes, name):
        needs = _needs(nodes, reader)
        if needs is None:
            return None
        found |= needs
    return found


def _needs(nodes: Mapping[str, Node], node: Node) -> frozenset[str] | None:
    """What an operator needs of its input."""
    if isinstance(node, Stateful):
        read = operator_of(node).reads(nodes[node.inputs[0]].time)
        return None if read is None or wants_late(nodes, node) else frozenset(read)
    if isinstance(node, LiftedSink):
        return frozenset(needed_columns(node.window, nodes[node.inputs[0]].time))
    if isinstance(node, Persist):
        return _wanted_output(nodes, node) if node.push_up else None
    return node.reads(_wanted_output(nodes, node)) if isinstance(node, Stateless) else None


def _wanted_output(nodes: Mapping[str, Node], node: Node) -> frozenset[str] | None:
    """What is needed of an operator's own output, with its event time."""
    wanted = _wanted(nodes, node.name)
    return wanted if wanted is None or node.time is None else wanted | {node.time.column}
