"""The changes of a PostgreSQL table, as the database itself writes them down: inserts, updates, deletes.

The receiver reads a logical replication slot, keeps the changes in the source's p-stream, and tells the slot so when
they are durable: so the database keeps little of its log for us, however slow or stopped the pipeline is. How far it
has come is committed in one transaction with the changes; what the slot sends again after a crash is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl
import sqlalchemy as sa

from holdfast.connect.database_engine import ANSWER_SECONDS, answer_seconds
from holdfast.connect.extra_library import require_library
from holdfast.connect.schema import AnySchema, as_schema
from holdfast.connect.sources.database_table import schema_of_table
from holdfast.connect.sources.growing_table import reflected_table
from holdfast.connect.sources.push import Address
from holdfast.connect.sources.received import ReceivedSource, check_received_schema, parse_size
from holdfast.database_url import parse_url
from holdfast.errors import DeclarationError, WrongTypeError

__all__ = ["CHANGE_COLUMNS", "ChangesSource", "postgres_changes"]

CHANGE_COLUMNS: dict[str, pl.DataType] = {
    "op": pl.String(),
    "lsn": pl.Int64(),
    "seq": pl.Int64(),
    "committed_at": pl.Datetime("us", "UTC"),
    "unchanged": pl.List(pl.String()),
}
"""What each change has besides the columns of the table: see docs/sources.md."""
_BEFORE = "before_"
_SLOT = re.compile(r"[a-z0-9_]{1,63}")
_READABLE = (
    pl.String, pl.Boolean, pl.Binary, pl.Date, pl.Time, pl.Datetime, pl.Decimal, pl.Float32, pl.Float64,
    pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64,
)  # fmt: skip
_PIECE_BYTES = 8 << 20
_BY = "postgres_changes()"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ChangesSource(ReceivedSource):
    """See `postgres_changes`."""

    url: str = field(repr=False)
    server: Address
    answer_seconds: float
    """So long is the next answer of the database awaited, e.g. the next rows of a snapshot."""
    table: str
    columns: pl.Schema
    """Those of the table."""
    key: tuple[str, ...]
    slot: str
    publication: str
    snapshot: bool
    prefix: str

    def describe(self) -> str:
        return f"changes of table {self.table} of PostgreSQL at {self.server}, by slot {self.slot}"

    def named(self, column: str) -> str:
        """The name of a column that each change has."""
        return f"{self.prefix}{column}"

    def before(self, key: str) -> str:
        """The name of the column with a key as it was before the change."""
        return f"{self.prefix}{_BEFORE}{key}"


def postgres_changes(
    url: str,
    table: str,
    *,
    key: str | Sequence[str],
    slot: str,
    schema: AnySchema | None = None,
    publication: str | None = None,
    snapshot: bool = True,
    prefix: str = "",
    budget: str | int = "4 GB",
    push_up: bool = True,
    compress: bool = True,
) -> ChangesSource:
    """The changes of a table of PostgreSQL, read from a logical replication slot, exactly once.

    `key` are the columns by which the table knows its rows (its primary key). `slot` is the name of the replication
    slot; it is made if it is not there, as is the publication, which has the same name unless another is given. With
    `snapshot` the rows that the table has at the start come first. A change has the columns of the table (those of
    `schema`; without one, all) as they are after it, and `op`, `lsn`, `seq`, `committed_at`, `unchanged` and, for each
    column of the key, `before_<column>`; `prefix` is put before these names. `budget` bounds what waits on disk for the
    pipeline. The database needs `wal_level = logical`, and the user the right to replicate.
    """
    found = parse_url(url, "the database", "'postgresql://user@host/database'")
    if found.get_backend_name() != "postgresql":
        raise DeclarationError(
            f"{_BY}: the URL is one of {found.get_backend_name()}", cure="give one of PostgreSQL, 'postgresql://...'"
        )
    require_library("psycopg", "postgresql", "hf.source.postgres_changes()")
    seconds = answer_seconds(found, ANSWER_SECONDS, "the database")
    found = found.set(drivername="postgresql").difference_update_query(["timeout"])
    plain = found.render_as_string(hide_password=False)
    keys = (key,) if isinstance(key, str) else tuple(key)
    columns = _table_schema(url, table) if schema is None else as_schema(schema, _BY)
    check_received_schema(_BY, columns)
    _check_columns(columns, keys)
    for name, value in (("slot", slot), ("publication", publication or slot)):
        if not isinstance(value, str) or not _SLOT.fullmatch(value):
            raise WrongTypeError(f"{_BY}: {name}={value!r}", cure="use up to 63 of a-z, 0-9 and _")
    source = ChangesSource(
        schema=columns,
        max_body=_PIECE_BYTES,
        budget=parse_size(f"{_BY}: budget", budget),
        bad_rows="fail",
        idle=60.0,
        push_up=push_up,
        compress=compress,
        url=plain,
        server=Address(found.host or "localhost", found.port or 5432),
        answer_seconds=seconds,
        table=table,
        columns=columns,
        key=keys,
        slot=slot,
        publication=publication or slot,
        snapshot=snapshot,
        prefix=prefix,
    )
    own = {source.named(name): dtype for name, dtype in CHANGE_COLUMNS.items()}
    own |= {source.before(name): columns[name] for name in keys}
    for name in own:
        if name in columns:
            raise DeclarationError(
                f"{_BY}: the table has a column '{name}', which each change has, too",
                cure=f"give prefix='change_', to call the one of the change 'change_{name}'",
            )
    object.__setattr__(source, "schema", pl.Schema({**columns, **own}))
    return source


def _table_schema(url: str, table: str) -> pl.Schema:
    where, _, name = table.rpartition(".")
    driver = sa.make_url(url).set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
    return schema_of_table(reflected_table(driver, name, where or None)[1], _BY)


def _check_columns(columns: pl.Schema, keys: tuple[str, ...]) -> None:
    if not keys:
        raise WrongTypeError(f"{_BY}: there is no key", cure="give the columns of the primary key")
    for name in keys:
        if name not in columns:
            raise DeclarationError(
                f"{_BY}: the key '{name}' is not a column", cure=f"name some of {', '.join(columns.names())}"
            )
    for name, dtype in columns.items():
        if not isinstance(dtype, _READABLE):
            raise WrongTypeError(
                f"{_BY}: column '{name}' is {dtype}, which cannot be read from PostgreSQL",
                cure="declare it as pl.String: arrays, JSON and others arrive as PostgreSQL writes them",
            )
