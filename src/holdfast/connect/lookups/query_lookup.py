"""The result of a database query as a lookup table."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime
from typing import Any

import polars as pl
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from holdfast.connect.database_engine import open_engine
from holdfast.connect.extra_library import require_library
from holdfast.connect.lookups.lookup_table import Lookup, look_seconds
from holdfast.connect.schema import AnySchema, as_schema
from holdfast.database_url import parse_url, shown_url
from holdfast.errors import DeclarationError, InputError, LookupTableError
from holdfast.spans import Duration

__all__ = ["Parameter", "QueryLookup", "database"]

Parameter = str | int | float | bool | bytes | date | datetime | None
"""A value for a name in a query."""


class QueryLookup(Lookup):
    """See `database`."""

    def __init__(
        self, url: sa.URL, query: str, changed: str | None, parameters: Mapping[str, Parameter], every: float
    ) -> None:
        self.every = every
        self._url = url
        self._query, self._changed = sa.text(query), None if changed is None else sa.text(changed)
        self._parameters = dict(parameters)

    def mark(self) -> str | None:
        if self._changed is None:
            return None
        with self._connected() as connection:
            return repr([tuple(row) for row in connection.execute(self._changed)])

    def read(self) -> pl.DataFrame:
        names, rows = self._rows()
        for name in self.schema:
            if name not in names:
                raise LookupTableError(
                    f"the result of the query has no column '{name}'; it has {', '.join(names)}",
                    cure="correct the query, or declare the columns that it has: lookup.database(..., schema=...)",
                )
        try:
            return pl.DataFrame(
                {
                    name: pl.Series(name, [row[names.index(name)] for row in rows], dtype=dtype, strict=True)
                    for name, dtype in self.schema.items()
                }
            )
        except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
            raise LookupTableError(
                f"the result of the query does not fit the columns {dict(self.schema)}: {error}",
                cure="declare the columns in types that hold the values: lookup.database(..., schema=...)",
            ) from error

    def inferred(self) -> pl.Schema:
        """The columns of the result as it is now."""
        names, rows = self._rows()
        found = pl.DataFrame(rows, schema=names, orient="row", infer_schema_length=None).schema
        unknown = [name for name, dtype in found.items() if dtype == pl.Null]
        if unknown:
            raise DeclarationError(
                f"lookup.database(): the type of column '{unknown[0]}' is unknown: the query returns no value for it",
                cure="give lookup.database() a schema, e.g. schema={'id': pl.Int64, 'name': pl.String}",
            )
        return found

    def _rows(self) -> tuple[list[str], list[tuple[Any, ...]]]:
        with self._connected() as connection:
            result = connection.execute(self._query, self._parameters)
            return list(result.keys()), [tuple(row) for row in result]

    @contextmanager
    def _connected(self) -> Iterator[sa.Connection]:
        """A connection for one look: the next one may be minutes later, and in another thread."""
        try:
            engine = open_engine(self._url, poolclass=sa.NullPool)
            try:
                with engine.connect() as connection:
                    yield connection
            finally:
                engine.dispose()
        except (SQLAlchemyError, ImportError) as error:
            raise InputError(
                f"the query at {shown_url(self._url)} failed: {getattr(error, 'orig', None) or error}",
                cure="check that the database can be reached, its driver is installed, and that the query runs there",
            ) from error

    def describe(self) -> str:
        return f"a query of {shown_url(self._url)}"


def database(
    url: str,
    query: str,
    *,
    every: Duration | None = None,
    changed: str | None = None,
    parameters: Mapping[str, Parameter] | None = None,
    schema: AnySchema | None = None,
) -> QueryLookup:
    """The result of a SQL query, in a database given as an SQLAlchemy URL, as a lookup table.

    The query is run again as often as `every` says. With `changed`, a query that is quick to answer, e.g. "SELECT
    max(updated_at) FROM users", it is run only when the result of that one is another; without `every` that is asked
    once a second. `parameters` are values for the `:names` in the query. Without a `schema` the query is run once when
    the pipeline is declared, to find its columns.
    """
    found = parse_url(url, "the database", "'postgresql://user@host/database' or 'sqlite:///users.db'")
    if found.drivername in ("postgresql", "postgresql+psycopg"):
        require_library("psycopg", "postgresql", "hf.lookup.database() with a URL of PostgreSQL")
    if every is None and changed is None:
        raise DeclarationError(
            "lookup.database(): neither every= nor changed= is given",
            cure="say how often to run the query, e.g. every='5 min', or give a query whose result shows that it"
            " changed, e.g. changed='SELECT max(updated_at) FROM users'",
        )
    if found.get_backend_name() == "sqlite" and found.database:
        found = found.set(database=os.path.abspath(found.database))
    table = QueryLookup(found, query, changed, parameters or {}, look_seconds("lookup.database", every))
    table.schema = table.inferred() if schema is None else as_schema(schema, "lookup.database()")
    return table
