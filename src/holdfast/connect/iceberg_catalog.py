"""Catalogs of Iceberg: how a user names one, and the tables in it.

A catalog is the name that it has in the configuration of `pyiceberg`, or its properties, as in {"type": "sql", "uri":
"sqlite:///catalog.db", "warehouse": "file:///data"}. Properties may hold passwords, so they are never shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from holdfast.database_url import shown_url
from holdfast.errors import DeclarationError
from holdfast.store.location import local_path

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

__all__ = ["IcebergName", "iceberg_name"]


@dataclass(frozen=True, slots=True)
class IcebergName:
    """A table in a catalog."""

    table: str
    catalog: str
    properties: tuple[tuple[str, str], ...] = field(repr=False)

    def opened(self) -> Catalog:
        """The catalog."""
        from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - an extra, slow to import

        return load_catalog(self.catalog, **dict(self.properties))

    def loaded(self) -> Table:
        """The table as it is now."""
        return self.opened().load_table(self.table)

    def root(self, table: Table) -> Path:
        """The directory of the table."""
        return local_path(table.location(), f"the Iceberg table {self.table}").absolute()

    def __str__(self) -> str:
        where = dict(self.properties).get("uri")
        return f"{self.table} of {_shown(where)}" if where else f"{self.table} of catalog '{self.catalog}'"


def iceberg_name(by: str, table: str, catalog: str | Mapping[str, str]) -> IcebergName:
    """What a user has named; `by` is the function that it was given to."""
    if not isinstance(table, str) or "." not in table.strip("."):
        raise DeclarationError(
            f"{by}: {table!r} does not name a table in a namespace", cure="write namespace.table, as in 'shop.orders'"
        )
    if isinstance(catalog, str):
        return IcebergName(table, catalog, ())
    if not isinstance(catalog, Mapping) or not all(isinstance(value, str) for value in catalog.values()):
        raise DeclarationError(
            f"{by}: the catalog is neither a name nor a dictionary of text properties",
            cure="give the name of a catalog in .pyiceberg.yaml, or properties such as"
            " {'type': 'sql', 'uri': 'sqlite:///catalog.db', 'warehouse': 'file:///data'}",
        )
    return IcebergName(table, catalog.get("name", "default"), tuple(sorted(catalog.items())))


def _shown(uri: str) -> str:
    try:
        return shown_url(sa.make_url(uri))
    except (SQLAlchemyError, ValueError):
        return "a catalog"
