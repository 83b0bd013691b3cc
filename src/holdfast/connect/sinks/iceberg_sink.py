"""Rows into an Iceberg table, exactly once; `lake_sink.py` says how.

A commit to the table adds the files and writes how far the sink is, twice: into the summary of the snapshot, for those
who look at snapshots, and into the properties of the table, which stay when snapshots are expired. A commit asks for
the snapshot that was looked at to be the current one. `pyiceberg` would by itself try a commit that failed again, on
what is there then: of this sink it does not, because another host may have brought the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from holdfast.connect.extra_library import require_library
from holdfast.connect.iceberg_catalog import IcebergName, iceberg_name
from holdfast.connect.lake_columns import fitted, partition_text, table_columns
from holdfast.connect.sinks.lake_sink import LakeSink
from holdfast.connect.sinks.rhythm import Rhythm
from holdfast.connect.sinks.table_files import TableFile, Values
from holdfast.connect.sources.push import parse_size
from holdfast.errors import DeclarationError, OutputUnwritableError
from holdfast.hidden_columns import HIDDEN
from holdfast.spans import Duration, seconds_of

if TYPE_CHECKING:
    from pyiceberg.table import Table

__all__ = ["IcebergSink", "iceberg"]

_TRIES = 20
_RETRIES = "commit.retry.num-retries"
_TRANSFORMS: dict[str, Callable[[pl.Expr], pl.Expr]] = {
    "identity": lambda column: column,
    "year": lambda column: column.dt.year(),
    "month": lambda column: column.dt.strftime("%Y-%m"),
    "day": lambda column: column.dt.date(),
    "hour": lambda column: column.dt.strftime("%Y-%m-%d-%H"),
}
"""What tells the rows of one partition from those of another."""


class IcebergSink(LakeSink):
    """See `iceberg`."""

    guarantee = "exactly once: a snapshot of the table has whole epochs, and the table says which is the last one"

    def __init__(
        self,
        named: IcebergName,
        partition_by: str | Sequence[str] | None,
        evolve: bool,
        rhythm: Rhythm,
        writer: str | None,
    ) -> None:
        super().__init__("iceberg", partition_by, evolve, rhythm, writer)
        self.named = named
        self._root: Path | None = None
        self._table: Table | None = None
        self._fields: tuple[tuple[str, str, str], ...] = ()
        """What the table is partitioned by: the name, the column, and the transform."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None}

    @property
    def root(self) -> Path:
        assert self._root is not None, "bind comes first"
        return self._root

    @property
    def _data(self) -> Path:
        return self.root / "data"

    @property
    def place(self) -> str:
        return f"Iceberg table {self.named}"

    def writes(self) -> Sequence[Path]:
        """Where the table is, its catalog says when it is opened; before that nobody can tell."""
        return () if self._root is None else super().writes()

    def describe(self) -> str:
        by = f", partitioned by {', '.join(self.partition_by)}" if self.partition_by else ""
        return f"Iceberg table {self.named}{by}"

    def bind(self, schema: pl.Schema) -> None:
        """Open the table, or make it; add the columns that it has not, if that was asked for."""
        with self._faults_named():
            self._table = table = self._opened(schema)
            self._root = self.named.root(table)
            known = _polars_schema(table)
            missing = [name for name in schema if name not in known]
            if missing and self.evolve:
                with table.update_schema() as update:
                    update.union_by_name(_arrow_schema(schema))
                known = _polars_schema(table)
            elif missing:
                raise DeclarationError(
                    f"the Iceberg table {self.named} has no column '{missing[0]}'",
                    cure="declare hf.sink.iceberg(..., evolve=True) to have it added, drop it before the sink, or write"
                    " to another table",
                )
        for column in table.schema().fields:
            if column.required:
                raise DeclarationError(
                    f"column '{column.name}' of the Iceberg table {self.named} is required; a stream may have nulls",
                    cure="make the column optional, or write to another table",
                )
        self._check_partitions(table)
        self._written = fitted("iceberg()", known, schema)

    def _opened(self, schema: pl.Schema) -> Table:
        catalog = self.named.opened()
        if not catalog.table_exists(self.named.table):
            catalog.create_namespace_if_not_exists(self.named.table.rpartition(".")[0])
            columns = _arrow_schema(schema)
            try:
                with (
                    catalog.create_table_transaction(self.named.table, schema=columns) as making,
                    making.update_spec() as partitions,
                ):
                    for name in self.partition_by or ():
                        partitions.add_identity(name)
            except _already_there():
                pass  # another host was first
        return catalog.load_table(self.named.table)

    def _check_partitions(self, table: Table) -> None:
        fields = table.spec().fields
        columns = tuple(table.schema().find_field(field.source_id).name for field in fields)
        others = [str(field.transform) for field in fields if str(field.transform) not in _TRANSFORMS]
        if others:
            raise DeclarationError(
                f"the Iceberg table {self.named} is partitioned by {others[0]}, which this sink does not know",
                cure="write to a table that is partitioned by columns, or by years, months, days or hours of them",
            )
        if self.partition_by is not None and self.partition_by != columns:
            raise DeclarationError(
                f"the Iceberg table {self.named} is partitioned by {list(columns)}, not {list(self.partition_by)}",
                cure="leave partition_by out, name the columns of the table, or write to another table",
            )
        self._cuts = bool(fields)
        self._fields = tuple(
            (field.name, column, str(field.transform)) for field, column in zip(fields, columns, strict=True)
        )

    def _cut(self, rows: pl.DataFrame) -> Iterator[tuple[Values, pl.DataFrame]]:
        """By what the table's transforms make of the rows; files keep all columns, from which the table takes it."""
        if not self._cuts:
            yield {}, rows
            return
        made = {f"{HIDDEN}{name}": _TRANSFORMS[how](pl.col(column)) for name, column, how in self._fields}
        parts = rows.with_columns(**made).partition_by(*made, as_dict=True, include_key=False, maintain_order=True)
        names = [name for name, _, _ in self._fields]
        for values, some in parts.items():
            yield dict(zip(names, map(partition_text, values), strict=True)), some

    def _fresh(self) -> Table:
        if self._table is None:
            self._table = self.named.loaded()
        else:
            self._table.refresh()
        return self._table

    def _account(self) -> str:
        return f"holdfast.published.{self.name}"

    def _published(self) -> tuple[int | None, str | None]:
        return self._said(self._fresh())

    def _said(self, table: Table) -> tuple[int | None, str | None]:
        """As the table has it now: the last epoch, and its store."""
        said = table.properties.get(self._account())
        if said is None:
            return None, None
        epoch, _, store = said.partition(" ")
        return int(epoch), store

    def _commit(self, epoch: int, files: Sequence[TableFile]) -> None:
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException  # noqa: PLC0415 - an extra

        # Not as a URI has it: `pyiceberg` takes what follows for the path as it is.
        paths = [f"file://{self._data / file.path(self._prefix(epoch))}" for file in files]
        said = {
            "holdfast.writer": self.name,
            "holdfast.store": self.owner.store,
            "holdfast.epoch": str(epoch),
        }
        for left in reversed(range(_TRIES)):
            table = self._table = self.named.loaded()
            last, _ = self._said(table)
            if last is not None and last >= epoch:
                return
            table.metadata.properties[_RETRIES] = "0"  # of this object alone: we look again before we try again
            try:
                with table.transaction() as transaction:
                    transaction.set_properties({self._account(): f"{epoch} {self.owner.store}"})
                    transaction.add_files(paths, snapshot_properties=said, check_duplicate_files=False)
                return
            except (CommitFailedException, CommitStateUnknownException):
                if not left:
                    raise
            finally:
                self._table = None

    @contextmanager
    def _faults_named(self) -> Iterator[None]:
        from pyiceberg import exceptions  # noqa: PLC0415 - an extra
        from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415 - as late as the catalog

        try:
            yield
        except Exception as error:
            if type(error).__module__ != exceptions.__name__ and not isinstance(error, SQLAlchemyError):
                raise
            raise OutputUnwritableError(
                f"cannot write to the Iceberg table {self.named}: {error}",
                cure="see what the message says about the catalog and the table, then start again: committed"
                " epochs are then published",
            ) from error


def _already_there() -> tuple[type[Exception], ...]:
    from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError  # noqa: PLC0415 - an extra

    return CommitFailedException, TableAlreadyExistsError


def _arrow_schema(schema: pl.Schema) -> pa.Schema:
    """As Iceberg has them: it knows no whole numbers of less than 32 bits."""
    columns = {
        name: pl.Int32() if isinstance(dtype, pl.Int8 | pl.Int16) else dtype
        for name, dtype in table_columns("iceberg()", schema).items()
    }
    return pl.DataFrame(schema=columns).to_arrow(compat_level=pl.CompatLevel.oldest()).schema


def _polars_schema(table: Table) -> pl.Schema:
    return pl.DataFrame(table.schema().as_arrow().empty_table()).schema


def iceberg(
    table: str,
    catalog: str | Mapping[str, str],
    *,
    partition_by: str | Sequence[str] | None = None,
    evolve: bool = False,
    every: Duration = "5s",
    bytes: int | str = "128 MB",
    writer: str | None = None,
) -> IcebergSink:
    """Append rows to an Iceberg table, named as in "shop.orders", exactly once. It is made if it is not there.

    `catalog` is the name of one that `pyiceberg` is configured with, or its properties, as in {"type": "sql", "uri":
    "sqlite:///catalog.db", "warehouse": "file:///data"}. Snapshots come at least `every` so often apart, unless so many
    `bytes` have gathered before; small files of the epochs between become one. `partition_by` names the columns to
    partition a new table by. `evolve=True` adds columns to the table that the stream has and it has not. `writer` is
    the name under which the table keeps how far this sink is; by default the names of fragment and sink.
    """
    require_library("pyiceberg", "iceberg", "hf.sink.iceberg()")
    rhythm = Rhythm(seconds_of("iceberg(): every", every), parse_size("bytes", bytes))
    return IcebergSink(iceberg_name("iceberg()", table, catalog), partition_by, evolve, rhythm, writer)
