"""The lookup tables of an epoch: the program of a task, with the versions that the plan names.

A process keeps what it has loaded: as long as plans name the same versions, they give the same program.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

import polars as pl

from holdfast.epoch.plan import EpochPlan
from holdfast.errors import HoldfastError, LookupTableError
from holdfast.graph.nodes import JoinTable, Node, RefreshedJoin
from holdfast.plan.program import Edge, Program
from holdfast.pstream.punit import PUnit, as_frame, open_table

__all__ = ["with_planned_tables"]

_MOST_LOADED = 4
"""Of programs: fragments that share a session are run by the same workers, and epochs overlap."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    of: Program
    units: dict[str, PUnit]
    program: Program


_loaded: list[_Loaded] = []
_loading = threading.Lock()


def with_planned_tables(program: Program, plan: EpochPlan, epoch: int) -> Program:
    """The program whose joins have the tables that the plan names."""
    joins = [node for node in program.nodes.values() if isinstance(node, RefreshedJoin)]
    if not joins:
        return program
    units = {node.name: plan.tables[node.name].unit for node in joins}
    with _loading:
        for known in _loaded:
            if known.of is program and known.units == units:
                return known.program
        before = next((known.program for known in reversed(_loaded) if known.of is program), None)
        last = next((known.units for known in reversed(_loaded) if known.of is program), {})
        nodes: dict[str, Node] = dict(program.nodes)
        for node in joins:
            if before is not None and last.get(node.name) == units[node.name]:
                nodes[node.name] = before.nodes[node.name]
            else:
                nodes[node.name] = _with_table(node, units[node.name], epoch)
        made = replace(
            program,
            nodes=nodes,
            edges=tuple(_late_join(edge, nodes) for edge in program.edges),
            lifts=tuple(_late_join(edge, nodes) for edge in program.lifts),
        )
        _loaded.append(_Loaded(program, units, made))
        del _loaded[:-_MOST_LOADED]
        return made


def _with_table(node: RefreshedJoin, unit: PUnit, epoch: int) -> RefreshedJoin:
    assert node.versions is not None
    try:
        table = as_frame(open_table(node.versions, unit), unit)
    except HoldfastError as error:
        raise error.at(operator=node.name, epoch=epoch) from error.__cause__
    if table.schema != node.table.schema:
        raise LookupTableError(
            f"the epoch was planned with a table of the columns {_shown(table.schema)}, and the join is declared with"
            f" {_shown(node.table.schema)} now",
            cure="start the pipeline once as it was, until what was planned is committed; or give the operator another"
            " name: then the table is used as it is now",
            operator=node.name,
            epoch=epoch,
        )
    return replace(node, table=table, unique=not table.select(node.on).is_duplicated().any())


def _late_join(edge: Edge, nodes: dict[str, Node]) -> Edge:
    """The edge without a join after the lift where a key of this version has several rows."""
    join = None if edge.before_join is None else nodes[edge.before_join]
    return edge if not isinstance(join, JoinTable) or join.unique else replace(edge, before_join=None)


def _shown(schema: pl.Schema) -> str:
    return ", ".join(f"{name} {dtype}" for name, dtype in schema.items())
