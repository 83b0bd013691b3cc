"""A table of a DuckDB file with a key that grows, read as Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import polars as pl

from holdfast.connect.duckdb_file import opened_duckdb, quoted
from holdfast.connect.sources.growing_table import TableReader, missing_column, no_whole_number, unreadable
from holdfast.errors import InputError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

__all__ = ["DuckdbTable", "duckdb_schema"]

_CHUNK_ROWS = 100_000
_UTC_NAMES = ("Etc/UTC", "UTC")


class DuckdbTable:
    """See `GrowingTable`."""

    def __init__(self, path: str, table: str, key: str) -> None:
        self._path = path
        self._table = table
        self._key = key

    @contextmanager
    def reading(self) -> Iterator[TableReader]:
        with _faults_named(self._table), opened_duckdb(self._path) as connection:
            yield _DuckdbReader(connection, quoted(self._table), quoted(self._key))

    def check(self, schema: pl.Schema) -> None:
        there = duckdb_schema(self._path, self._table)
        for name in (self._key, *schema):
            if name not in there:
                raise missing_column(self._table, name, there.names())
        if not there[self._key].is_integer():
            raise no_whole_number(self._table, self._key, str(there[self._key]))


class _DuckdbReader:
    def __init__(self, connection: DuckDBPyConnection, table: str, key: str) -> None:
        self._connection = connection
        self._table = table
        self._key = key

    def _one(self, query: str, **values: object) -> Any:
        found = self._connection.execute(query, values or None).fetchall()
        return found[0][0]

    def least(self) -> int | None:
        return self._end("min")

    def greatest(self) -> int | None:
        return self._end("max")

    def _end(self, which: str) -> int | None:
        found = self._one(f"SELECT {which}({self._key}) FROM {self._table}")
        return None if found is None else int(found)

    def open_transactions(self) -> tuple[int | None, int | None]:
        return None, None

    def piece(self, after: int | None, last: int, rows: int) -> tuple[int, int] | None:
        above = "" if after is None else f" AND {self._key} > {int(after)}"
        until = self._one(
            f"SELECT max(k) FROM (SELECT {self._key} AS k FROM {self._table} WHERE {self._key} <= {int(last)}{above}"
            f" ORDER BY k LIMIT {int(rows)})"
        )
        if until is None:
            return None
        return int(until), int(
            self._one(f"SELECT count(*) FROM {self._table} WHERE {self._key} <= {int(until)}{above}")
        )

    def rows(self, columns: pl.Schema, after: int | None, until: int) -> Iterator[pl.DataFrame]:
        above = "" if after is None else f" AND {self._key} > {int(after)}"
        listed = ", ".join(map(quoted, columns)) or "1"
        found = self._connection.sql(
            f"SELECT {listed} FROM {self._table} WHERE {self._key} <= {int(until)}{above} ORDER BY {self._key}"
        )
        for batch in found.to_arrow_reader(_CHUNK_ROWS):
            frame = pl.DataFrame(batch)
            yield frame.select(_fitting(frame[name], dtype) for name, dtype in columns.items())


def _fitting(column: pl.Series, dtype: pl.DataType) -> pl.Series:
    zone = column.dtype.time_zone if isinstance(column.dtype, pl.Datetime) else None
    if zone in _UTC_NAMES and zone is not None:
        column = column.dt.convert_time_zone("UTC")
    if column.dtype == dtype:
        return column
    if isinstance(dtype, pl.Datetime) and dtype.time_zone is None and zone is not None:
        column = column.dt.replace_time_zone(None)
    return column.cast(dtype)


def duckdb_schema(path: str, table: str) -> pl.Schema:
    """The types that the columns of a table have here."""
    with _faults_named(table), opened_duckdb(path) as connection:
        found = pl.DataFrame(connection.sql(f"SELECT * FROM {quoted(table)} LIMIT 0").to_arrow_table())
    return pl.Schema(
        {
            name: pl.Datetime(dtype.time_unit, "UTC")
            if isinstance(dtype, pl.Datetime) and dtype.time_zone in _UTC_NAMES
            else dtype
            for name, dtype in found.schema.items()
        }
    )


@contextmanager
def _faults_named(table: str) -> Iterator[None]:
    import duckdb  # noqa: PLC0415 - an extra

    try:
        yield
    except duckdb.CatalogException:
        raise InputError(f"cannot read table '{table}': it does not exist", cure="name a table of the file") from None
    except duckdb.Error as error:
        raise unreadable(table, error) from error
