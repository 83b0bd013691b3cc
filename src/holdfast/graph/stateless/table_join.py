"""`join_table`: the join with a table that never changes, or with a lookup table that is read again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import polars as pl

from holdfast.connect.lookups.lookup_table import Lookup
from holdfast.errors import DeclarationError, WrongTypeError
from holdfast.graph.checks import check_choice, check_columns, infer
from holdfast.graph.nodes import Node
from holdfast.graph.stateless.stateless_operator import KeyJoin, LookupUse, Stateless
from holdfast.plurals import counted
from holdfast.spans import duration
from holdfast.store import DirectoryStore

__all__ = ["AnyTable", "JoinTable", "RefreshedJoin", "joined_with_table"]

AnyTable = pl.DataFrame | Lookup


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinTable(Stateless):
    """Join with a static table. `unique` says that the table has one row per key."""

    table: pl.DataFrame
    on: tuple[str, ...]
    how: Literal["inner", "left"]
    unique: bool
    keeps_time: ClassVar[bool] = True

    def apply(self, frames: Sequence[pl.LazyFrame]) -> pl.LazyFrame:
        [frame] = frames
        return frame.join(self.table.lazy(), on=list(self.on), how=self.how, maintain_order="left")

    def reads(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        return None if wanted is None else (wanted - set(self.table.columns)) | set(self.on)

    def changes(self, column: str, rows: pl.Schema) -> bool:
        return False

    @property
    def key_join(self) -> KeyJoin | None:
        return KeyJoin(self.table, self.on, self.how) if self.unique else None

    def explain(self) -> list[str]:
        return [f"{self.how} join with a table of {counted(self.table.height, 'row')} on {', '.join(self.on)}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshedJoin(JoinTable):
    """Join with a table that changes while the pipeline runs. The plan of an epoch says which version is used; until a
    task has loaded that version, `table` has its columns only."""

    lookup: Lookup | None
    versions: DirectoryStore | None = None

    @property
    def sampled(self) -> bool:
        return False  # its output is not known before it has a table

    @property
    def lookup_use(self) -> LookupUse | None:
        return LookupUse(self.table.schema, self.lookup, self.versions)

    def with_versions(self, versions: DirectoryStore) -> RefreshedJoin:
        return replace(self, versions=versions)

    def with_table(self, table: pl.DataFrame) -> RefreshedJoin:
        return replace(self, table=table, unique=not table.select(self.on).is_duplicated().any())

    def for_tasks(self) -> RefreshedJoin:
        return replace(self, lookup=None)

    def explain(self) -> list[str]:
        if self.lookup is None:
            return JoinTable.explain(self)
        often = f"looked at every {duration(self.lookup.every)}"
        return [f"{self.how} join with {self.lookup.describe()}, {often}, on {', '.join(self.on)}"]


def joined_with_table(
    name: str, stream: Node, table: AnyTable, on: str | list[str], how: Literal["inner", "left"]
) -> JoinTable:
    """The operator that joins the rows of a stream with a table, checked."""
    keys = (on,) if isinstance(on, str) else tuple(on)
    if not isinstance(table, AnyTable):
        raise WrongTypeError(
            f"the table is a {type(table).__name__}",
            cure="give a Polars DataFrame, e.g. pl.DataFrame({'user': [1], 'country': ['DE']}), or a table that is read"
            " anew, e.g. hf.lookup.files('users.parquet')",
            operator=name,
        )
    columns = table.schema
    check_columns(name, keys, stream.schema)
    check_columns(name, keys, columns, of="the table")
    for key in keys:
        if stream.schema[key] != columns[key]:
            cast = f"cast the table: table.with_columns(pl.col('{key}').cast({stream.schema[key]}))"
            given = f"declare the lookup table with schema=..., where '{key}' is {stream.schema[key]}"
            raise WrongTypeError(
                f"key '{key}' is {stream.schema[key]} in the stream and {columns[key]} in the table",
                cure=cast if isinstance(table, pl.DataFrame) else f"{given}, or cast the stream",
                operator=name,
            )
    check_choice(name, "how", how, ("inner", "left"))
    clash = set(columns) & set(stream.schema) - set(keys)
    if clash:
        raise DeclarationError(
            f"columns {sorted(clash)} are on both sides",
            cure="rename or drop them in the table before the join",
            operator=name,
        )
    empty = pl.DataFrame(schema=columns)
    schema = infer(name, stream.schema, lambda lf: lf.join(empty.lazy(), on=list(keys), how=how))
    if isinstance(table, Lookup):
        return RefreshedJoin(
            name=name, inputs=(stream.name,), schema=schema, time=stream.time, table=empty, on=keys, how=how,
            unique=True, lookup=table,
        )  # fmt: skip
    unique = not table.select(keys).is_duplicated().any()
    return JoinTable(
        name=name, inputs=(stream.name,), schema=schema, time=stream.time, table=table, on=keys, how=how,
        unique=unique,
    )  # fmt: skip
