"""What stateful operators keep: the tables of each, with all their columns.

The steps of `epoch/` write these tables, and the shape of a pipeline names them, so that state can be read, moved and
replaced without the code that wrote it.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from holdfast.graph.aggregates import ROW_SEQ
from holdfast.graph.nodes import KeyedProcess, Stateful, StreamJoin, WindowAggregate
from holdfast.graph.windows import CountWindow, SessionWindow
from holdfast.plan.lift import FROM
from holdfast.plan.program import Program
from holdfast.state.footprints import TAU
from holdfast.state.layout import ALL
from holdfast.state.tables import PANE

__all__ = [
    "LAST",
    "OPEN",
    "SEEN",
    "START",
    "TIMER",
    "TOUCHED",
    "KeptTable",
    "count_schema",
    "process_schema",
    "session_schema",
    "tables_of",
]

TOUCHED, TIMER = "__hf_touched", "__hf_timer"
START, LAST = "__hf_start", "__hf_last"
SEEN, OPEN = "__hf_seen", "__hf_open"


@dataclass(frozen=True, slots=True)
class KeptTable:
    """A table of an operator: by key, or else by pane. `filled` are the hidden columns that are never null."""

    name: str
    keyed: bool
    schema: pl.Schema
    filled: tuple[str, ...] = ()


def process_schema(node: KeyedProcess, key_types: pl.Schema) -> pl.Schema:
    """The columns a keyed process keeps: keys, the user's state, and as needed when it was touched and its timer."""
    hidden: dict[str, pl.DataType] = {TOUCHED: pl.Int64()} if node.ttl is not None else {}
    hidden |= {TIMER: pl.Int64()} if node.timers else {}
    return pl.Schema({**key_types, **node.state, **hidden})


def session_schema(node: WindowAggregate) -> pl.Schema:
    """Keys, and the list of open sessions."""
    fields = {START: pl.Int64(), LAST: pl.Int64(), **node.state_schema}
    return pl.Schema({**{key: node.schema[key] for key in node.keys}, OPEN: pl.List(pl.Struct(fields))})


def count_schema(node: WindowAggregate, *, traced: bool = False) -> pl.Schema:
    """Keys, rows seen, and the partials of open panes; where windows leave footprints, the epoch of the last one."""
    fields = {PANE: pl.Int64(), **node.state_schema}
    keys = {key: node.schema[key] for key in node.keys}
    tau: dict[str, pl.DataType] = {TAU: pl.Int64()} if traced else {}
    return pl.Schema({**keys, SEEN: pl.Int64(), OPEN: pl.List(pl.Struct(fields)), **tau})


def tables_of(node: Stateful, program: Program) -> tuple[KeptTable, ...]:
    """The tables of an operator, in the order in which they are shown."""
    rows = [program.nodes[upstream].schema for upstream in node.inputs]
    keys = pl.Schema({key: rows[0][key] for key in node.keys})
    if isinstance(node, KeyedProcess):
        filled = (TOUCHED,) if node.ttl is not None else ()
        kept = KeptTable("keyed", True, process_schema(node, keys), filled)
        return (kept, _timers(keys)) if node.timers else (kept,)
    if isinstance(node, StreamJoin):
        hidden: dict[str, pl.DataType] = {name: pl.Int64() for name in (*ROW_SEQ, PANE, FROM)}
        return tuple(
            KeptTable(side, False, pl.Schema({**columns, **hidden}), (*ROW_SEQ, PANE))
            for side, columns in zip(("left", "right"), rows, strict=True)
        )
    assert isinstance(node, WindowAggregate)
    if not isinstance(node.window, CountWindow | SessionWindow):
        return (KeptTable("panes", False, pl.Schema({**keys, PANE: pl.Int64(), FROM: pl.Int64(), **node.state_schema}),
                          (PANE,)),)  # fmt: skip
    one: dict[str, pl.DataType] = {} if node.keys else {ALL: pl.Int8()}
    if isinstance(node.window, CountWindow):
        return (KeptTable("counts", True, pl.Schema({**one, **count_schema(node)}), (SEEN,)),)
    sessions = KeptTable("sessions", True, pl.Schema({**one, **session_schema(node)}), (OPEN,))
    return (sessions, _timers(pl.Schema({**one, **keys})))


def _timers(keys: pl.Schema) -> KeptTable:
    return KeptTable("timers", False, pl.Schema({**keys, PANE: pl.Int64()}), (PANE,))
