"""The lookup tables of an epoch: the program of a task, with the versions that the plan names.

A process keeps what it has loaded: as long as plans name the same versions, they give the same program.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

import polars as pl

from holdfast.epoch.plan import EpochPlan
from holdfast.errors import HoldfastError, LookupTableError
from holdfast.graph.nodes import Node
from holdfast.graph.stateless.stateless_operator import LookupUse, Stateless
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
    joins = program.lookups
    if not joins:
        return program
    units = {name: plan.tables[name].unit for name in joins}
    with _loading:
        for known in _loaded:
            if known.of is program and known.units == units:
                return known.program
        before = next((known.program for known in reversed(_loaded) if known.of is program), None)
        last = next((known.units for known in reversed(_loaded) if known.of is program), {})
        nodes: dict[str, Node] = dict(program.nodes)
        for name, use in joins.items():
            node = nodes[name]
            assert isinstance(node, Stateless)
            if before is not None and last.get(name) == units[name]:
                nodes[name] = before.nodes[name]
            else:
                nodes[name] = node.with_table(_planned_table(name, use, units[name], epoch))
        made = replace(
            program,
            nodes=nodes,
            edges=tuple(_late_join(edge, nodes) for edge in program.edges),
            lifts=tuple(_late_join(edge, nodes) for edge in program.lifts),
        )
        _loaded.append(_Loaded(program, units, made))
        del _loaded[:-_MOST_LOADED]
        return made


def _planned_table(name: str, use: LookupUse, unit: PUnit, epoch: int) -> pl.DataFrame:
    assert use.versions is not None
    try:
        table = as_frame(open_table(use.versions, unit), unit)
    except HoldfastError as error:
        raise error.at(operator=name, epoch=epoch) from error.__cause__
    if table.schema != use.schema:
        raise LookupTableError(
            f"the epoch was planned with a table of the columns {_shown(table.schema)}, but the join now declares"
            f" {_shown(use.schema)}",
            cure="start the pipeline once as it was, until the planned epochs are committed; or give the operator"
            " another name: then the table is used as it is now",
            operator=name,
            epoch=epoch,
        )
    return table


def _late_join(edge: Edge, nodes: dict[str, Node]) -> Edge:
    """The edge without a join after the lift where a key of this version has several rows."""
    join = None if edge.before_join is None else nodes[edge.before_join]
    no_longer = isinstance(join, Stateless) and join.key_join is None
    return replace(edge, before_join=None) if no_longer else edge


def _shown(schema: pl.Schema) -> str:
    return ", ".join(f"{name} {dtype}" for name, dtype in schema.items())
