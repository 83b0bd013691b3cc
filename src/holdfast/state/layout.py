"""The layout of an operator's state: its tables and their columns, as the shape of the pipeline names them.

People see the tables of an operator as one: hidden columns under plain names, and a column `table` where there are
several. The names depend on the layout alone, so that what was shown can be put back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from holdfast.hidden_columns import ALL, DELETED, FROM, HIDDEN, PANE, POSITION, is_hidden
from holdfast.state.dtypes import decode_default, parse_dtype
from holdfast.state.pipeline_shape import OperatorShape

__all__ = ["TABLE", "OperatorLayout", "TableLayout", "layout_of"]

TABLE = "table"


@dataclass(frozen=True, slots=True)
class TableLayout:
    """A table by key, or else by pane. `schema` has neither positions nor tombstones; `filled` are columns that are
    never null."""

    name: str
    keyed: bool
    schema: pl.Schema
    keys: tuple[str, ...]
    filled: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def identity(self) -> list[str]:
        """What tells rows apart: in a table by key the key, in one by pane the pane too."""
        panes = () if self.keyed else (PANE, FROM)
        return [*self.keys, *(name for name in panes if name in self.schema)]


@dataclass(frozen=True, slots=True)
class OperatorLayout:
    """All tables of an operator, with the columns that people use as its key."""

    operator: str
    keys: pl.Schema
    tables: tuple[TableLayout, ...]

    def shown(self, table: TableLayout) -> dict[str, str]:
        """The name under which each column is shown; a column that says nothing has none."""
        taken = {name for known in self.tables for name in known.schema if not is_hidden(name)} | {TABLE}
        names = {}
        for name, dtype in table.schema.items():
            if name == ALL:
                continue
            plain = name.removeprefix(HIDDEN)
            plain = plain if plain == name or plain not in taken else name
            several = any(known.schema.get(name, dtype) != dtype for known in self.tables)
            names[name] = f"{table.name}.{plain}" if several or (plain == TABLE and self.several) else plain
        return names

    @property
    def several(self) -> bool:
        return len(self.tables) > 1

    @property
    def shown_schema(self) -> pl.Schema:
        """The columns of the state as one table."""
        columns: dict[str, pl.DataType] = {TABLE: pl.String()} if self.several else {}
        for table in self.tables:
            columns |= {plain: table.schema[name] for name, plain in self.shown(table).items()}
        return pl.Schema(columns)


def layout_of(operator: str, shape: OperatorShape, units: Mapping[str, Iterable[pl.Schema]]) -> OperatorLayout:
    """The layout that a shape names. The shapes of older stores name none: there it is that of the p-units."""
    keys = pl.Schema({name: parse_dtype(text) for name, text in shape.keys.items()})
    defaults = shape.defaults or {}
    tables = []
    for name, table in (shape.tables or {}).items():
        schema = pl.Schema({column: parse_dtype(text) for column, text in table.columns.items()})
        values = {column: decode_default(value, schema[column]) for column, value in defaults.items()
                  if column in schema} if table.keyed else {}  # fmt: skip
        tables.append(TableLayout(
            name, table.keyed, schema, _keys_in(schema, keys), table.filled, values
        ))  # fmt: skip
    if not tables:
        for name, found in units.items():
            every = {column: dtype for schema in found for column, dtype in schema.items()}
            schema = pl.Schema({column: dtype for column, dtype in every.items() if column not in (POSITION, DELETED)})
            tables.append(TableLayout(name, DELETED in every, schema, _keys_in(schema, keys)))
    return OperatorLayout(operator, keys, tuple(tables))


def _keys_in(schema: pl.Schema, keys: pl.Schema) -> tuple[str, ...]:
    return (ALL,) if ALL in schema else tuple(keys)
