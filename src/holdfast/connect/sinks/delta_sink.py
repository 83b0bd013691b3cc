"""Rows into a Delta table, exactly once; `lake_sink.py` says how.

A version of the table carries an *application transaction*: the sink's name and the number of the last epoch. The log
keeps the greatest number of each name, and of two commits at a time with the same name it refuses one. A second
transaction has the store in its name: by it another store with a sink of the same name is noticed.

Not promised: that the log survives the loss of power while `deltalake` writes it; it is synced when the commit is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from holdfast.connect.base import Receipt
from holdfast.connect.extra_library import require_library
from holdfast.connect.lake_columns import fitted, table_columns
from holdfast.connect.sinks.delta_statistics import modified_ms, statistics_of
from holdfast.connect.sinks.file_sink import AnyPath
from holdfast.connect.sinks.lake_sink import LakeSink
from holdfast.connect.sinks.ownership import unwritable_named
from holdfast.connect.sinks.rhythm import Rhythm
from holdfast.connect.sinks.table_files import TableFile, Values, cut_by_partition
from holdfast.connect.sources.push import parse_size
from holdfast.errors import DeclarationError, OutputUnwritableError
from holdfast.spans import Duration, seconds_of
from holdfast.store import make_directories, sync_directory, synced
from holdfast.store.location import local_path
from holdfast.threads import SYSTEM, Thread

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = ["DeltaSink", "delta"]

_TRIES = 20


class DeltaSink(LakeSink):
    """See `delta`."""

    guarantee = "exactly once: a version of the table has whole epochs, and the log says which is the last one"

    def __init__(
        self,
        path: Path,
        partition_by: str | Sequence[str] | None,
        evolve: bool,
        rhythm: Rhythm,
        optimize: float | None,
        writer: str | None,
    ) -> None:
        super().__init__("delta", partition_by, evolve, rhythm, writer)
        self.path = path
        self.optimize = optimize
        self._columns: tuple[str, ...] = ()
        """Those that the table is partitioned by."""
        self._table: DeltaTable | None = None
        self._compaction: Thread | None = None
        self._compacted = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None, "_compaction": None}

    @property
    def root(self) -> Path:
        return self.path

    @property
    def place(self) -> str:
        return str(self.path.resolve())

    def describe(self) -> str:
        by = f", partitioned by {', '.join(self.partition_by)}" if self.partition_by else ""
        return f"Delta table {self.path}{by}"

    def bind(self, schema: pl.Schema) -> None:
        """Open the table, or make it; add the columns that it has not, if that was asked for."""
        with unwritable_named(self.path), self._faults_named():
            table = self._opened(schema)
            known = _polars_schema(table)
            missing = [name for name in schema if name not in known]
            if missing and self.evolve:
                self._add_columns(table, pl.Schema({name: schema[name] for name in missing}))
                known = _polars_schema(table)
            elif missing:
                raise DeclarationError(
                    f"the Delta table {self.path} has no column '{missing[0]}'",
                    cure="declare hf.sink.delta(..., evolve=True) to have it added, drop it before the sink, or write"
                    " to another table",
                )
            needed = [field.name for field in table.schema().fields if not field.nullable and field.name not in schema]
            if needed:
                raise DeclarationError(
                    f"the Delta table {self.path} needs a value in column '{needed[0]}', which the stream lacks",
                    cure="add the column before the sink, or write to another table",
                )
            self._columns = tuple(table.metadata().partition_columns)
            self._cuts = bool(self._columns)
        if self.partition_by is not None and self.partition_by != self._columns:
            raise DeclarationError(
                f"the Delta table {self.path} is partitioned by {list(self._columns)}, not {list(self.partition_by)}",
                cure="leave partition_by out, name the columns of the table, or write to another table",
            )
        self._written = fitted("delta()", known, schema)

    def _opened(self, schema: pl.Schema) -> DeltaTable:
        from deltalake import DeltaTable  # noqa: PLC0415 - an extra

        if not DeltaTable.is_deltatable(str(self.path)):
            make_directories(self.path)
            DeltaTable.create(
                str(self.path), _delta_schema(schema), mode="ignore", partition_by=list(self.partition_by or ())
            )
        self._table = DeltaTable(str(self.path))
        return self._table

    def _add_columns(self, table: DeltaTable, schema: pl.Schema) -> None:
        from deltalake.exceptions import DeltaError  # noqa: PLC0415 - an extra

        fields = _delta_schema(schema).fields
        try:
            table.alter.add_columns(fields)
        except DeltaError:
            table.update_incremental()
            if any(field.name not in _polars_schema(table) for field in fields):  # another host may have been first
                raise

    def _cut(self, rows: pl.DataFrame) -> Iterator[tuple[Values, pl.DataFrame]]:
        return cut_by_partition(rows, self._columns)

    def _fresh(self) -> DeltaTable:
        """The table as it is now."""
        from deltalake import DeltaTable  # noqa: PLC0415 - an extra

        if self._table is None:
            self._table = DeltaTable(str(self.path))
        else:
            self._table.update_incremental()
        return self._table

    def _applications(self) -> tuple[str, str]:
        """The names of the application transactions: of this sink, and of it in this store."""
        return f"holdfast:{self.name}", f"holdfast:{self.name}@{self.owner.store}"

    def _published(self) -> tuple[int | None, str | None]:
        table = self._fresh()
        last, own = (table.transaction_version(name) for name in self._applications())
        return last, self.owner.store if last == own else None

    def publish(self, epoch: int, receipts: Sequence[Receipt]) -> None:
        super().publish(epoch, receipts)
        self._compact_when_due()

    def _commit(self, epoch: int, files: Sequence[TableFile]) -> None:
        from deltalake import CommitProperties, Transaction  # noqa: PLC0415 - an extra
        from deltalake.exceptions import CommitFailedError  # noqa: PLC0415 - an extra
        from deltalake.transaction import AddAction  # noqa: PLC0415 - an extra

        adds: list[Any] = []
        for file in files:
            name = file.path(self._prefix(epoch))
            path = self.path / name
            size = path.stat().st_size
            adds.append(AddAction(name, size, file.values, modified_ms(path), True, statistics_of(path, file.rows)))
        transactions = [Transaction(name, epoch) for name in self._applications()]
        properties = CommitProperties(app_transactions=transactions)
        for left in reversed(range(_TRIES)):
            table = self._fresh()
            if (table.transaction_version(self._applications()[0]) or 0) >= epoch:
                return
            try:
                table.create_write_transaction(
                    adds, "append", table.schema(), list(self._columns), commit_properties=properties
                )
            except CommitFailedError:
                # Somebody else has committed meanwhile: this sink on another host, or others of whom it wants to know.
                self._table = None
                if not left:
                    raise
                continue
            self._sync_log(table.version())
            return

    def _sync_log(self, version: int) -> None:
        log = self.path / "_delta_log"
        for found in log.glob(f"{version:020d}.*"):
            with found.open("rb") as handle:
                synced(handle.fileno())
        sync_directory(log)

    def _compact_when_due(self) -> None:
        """Beside what goes on here: a compaction takes as long as the table is large. One that fails because others
        have written the same files, or that is interrupted, leaves the table as it was."""
        if self.optimize is None or SYSTEM.monotonic() - self._compacted < self.optimize:
            return
        if self._compaction is None or not self._compaction.is_alive():
            self._compacted = SYSTEM.monotonic()
            self._compaction = SYSTEM.start(self._compact, "holdfast-delta-compaction")

    def _compact(self) -> None:
        from deltalake import DeltaTable  # noqa: PLC0415 - an extra
        from deltalake.exceptions import DeltaError  # noqa: PLC0415 - an extra

        try:
            table = DeltaTable(str(self.path))
            table.optimize.compact()
            self._sync_log(table.version())
        except (DeltaError, OSError):
            pass  # the next one tries again

    @contextmanager
    def _faults_named(self) -> Iterator[None]:
        from deltalake.exceptions import DeltaError  # noqa: PLC0415 - an extra

        try:
            yield
        except DeltaError as error:
            raise OutputUnwritableError(
                f"cannot write to the Delta table {self.path}: {error}",
                cure="see what the message says about the table, then start again: committed epochs are then published",
            ) from error


def _delta_schema(schema: pl.Schema) -> Any:
    from deltalake import Schema  # noqa: PLC0415 - an extra

    columns = pl.DataFrame(schema=table_columns("delta()", schema))
    return Schema.from_arrow(columns.to_arrow(compat_level=pl.CompatLevel.oldest()).schema)


def _polars_schema(table: DeltaTable) -> pl.Schema:
    empty = pa.schema(table.schema().to_arrow()).empty_table()
    return pl.DataFrame(empty).schema


def delta(
    path: AnyPath,
    *,
    partition_by: str | Sequence[str] | None = None,
    evolve: bool = False,
    every: Duration = "5s",
    bytes: int | str = "128 MB",
    optimize: Duration | None = None,
    writer: str | None = None,
) -> DeltaSink:
    """Append rows to a Delta table in a directory, exactly once. The table is made if it is not there.

    Versions of the table come at least `every` so often apart, unless so many `bytes` have gathered before; small files
    of the epochs between become one. `optimize="1 h"` has small files of several versions compacted about so often.
    `partition_by` names the columns to partition a new table by. `evolve=True` adds columns to the table that the
    stream has and it has not; a column of another type is refused. `writer` is the name under which the log keeps how
    far this sink is; by default the names of fragment and sink.
    """
    require_library("deltalake", "delta", "hf.sink.delta()")
    return DeltaSink(
        local_path(path, "delta()").absolute(),
        partition_by,
        evolve,
        Rhythm(seconds_of("delta(): every", every), parse_size("bytes", bytes)),
        None if optimize is None else seconds_of("delta(): optimize", optimize),
        writer,
    )
