"""What sinks for tables of a lake (Delta, Iceberg) have in common: how rows are staged, merged, put into the table's
directory and committed there, once.

    table/_holdfast/<owner>/12/0-a1-0.parquet     what a task prepared for epoch 12; no reader of the table looks there
    table/day=2026-01-01/part-<owner>-000000000012-00000.parquet

Nobody sees a file before the table's own commit names it. That commit also keeps the number of the last epoch under the
name of the sink, so a publication that is asked for again is found done, whoever did it. Of two hosts that commit the
same one at a time the table refuses one, which then looks again.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from io import BytesIO
from pathlib import Path

import polars as pl

from holdfast.connect.base import Owner, Receipt, TaskSink
from holdfast.connect.lake_columns import check_lake_columns
from holdfast.connect.sinks.ownership import unwritable_named
from holdfast.connect.sinks.rhythm import Rhythm
from holdfast.connect.sinks.staging_directory import Staging, safe_name
from holdfast.connect.sinks.table_files import (
    SMALL,
    StagedFile,
    TableFile,
    Values,
    read_index,
    show_files,
    write_table_files,
)
from holdfast.errors import CorruptFileError, OutputConflictError
from holdfast.store import Right, full_disk_named, make_directories

__all__ = ["LakeSink"]

_STAGING = "_holdfast"


class LakeSink(TaskSink):
    """A sink whose tasks write Parquet files into the directory of a table."""

    def __init__(
        self, maker: str, partition_by: str | Sequence[str] | None, evolve: bool, rhythm: Rhythm, writer: str | None
    ) -> None:
        self.maker = maker
        names = (partition_by,) if isinstance(partition_by, str) else partition_by
        self.partition_by = None if names is None else tuple(names)
        self.evolve = evolve
        self.rhythm = rhythm
        self.writer = writer
        self._owner: Owner | None = None
        self._written = pl.Schema()
        """The columns of staged files, in the types of the table."""
        self._cuts = False
        """Whether the table is partitioned."""

    @property
    @abstractmethod
    def root(self) -> Path:
        """The directory of the table."""

    @property
    def _data(self) -> Path:
        """Where the table has its files."""
        return self.root

    @abstractmethod
    def _cut(self, rows: pl.DataFrame) -> Iterator[tuple[Values, pl.DataFrame]]:
        """The rows of each partition, as files of the table have them."""

    @abstractmethod
    def _published(self) -> tuple[int | None, str | None]:
        """The last epoch that the table has now under the name of this sink, and the store that it is of."""

    @abstractmethod
    def _commit(self, epoch: int, files: Sequence[TableFile]) -> None:
        """Make the files part of the table, unless it has the epoch."""

    @abstractmethod
    def _faults_named(self) -> AbstractContextManager[None]:
        """Says which table an error of its library is about."""

    def accept(self, schema: pl.Schema) -> None:
        check_lake_columns(f"{self.maker}()", schema, self.partition_by or ())

    def attach(self, owner: Owner) -> None:
        self._owner = owner

    @property
    def owner(self) -> Owner:
        """Whose output it is."""
        assert self._owner is not None, "attach comes first"
        return self._owner

    @property
    def name(self) -> str:
        """Under which the table keeps how far this sink is."""
        return self.writer or f"{self.owner.pipeline}.{self.owner.sink}"

    @property
    def staging(self) -> Staging:
        """Where tasks write."""
        return Staging.of(self.owner, self.root / _STAGING)

    def check(self, committed: int, retained: Mapping[int, Sequence[Receipt]]) -> None:
        with self._faults_named():
            last, store = self._published()
        if last is not None and store != self.owner.store:
            raise OutputConflictError(
                f"{self.describe()} has rows of '{self.name}' from another store than {self.owner.store}",
                cure="the epochs of another store have the same numbers: give writer=..., write to another table, or"
                " use that store",
            )
        if last is not None and last > committed:
            raise OutputConflictError(
                f"{self.describe()} has epoch {last} of '{self.name}', but the store knows of {committed or 'no'}"
                " committed epochs",
                cure="the store is older than the table: restore the table to a version of that time, give writer=...,"
                " or write to another table",
            )
        with unwritable_named(self.root):
            make_directories(self.root / _STAGING)

    def writes(self) -> Sequence[Path]:
        return (self.root / _STAGING,)

    def prepare(self, rows: pl.DataFrame, *, epoch: int, part: str, attempt: str) -> Receipt:
        rows = rows.select(pl.col(name).cast(dtype) for name, dtype in self._written.items())
        pieces: list[tuple[Values | None, pl.DataFrame]] = [(None if self._cuts else {}, rows)]
        if self._cuts and rows.estimated_size() >= SMALL:
            pieces = list(self._cut(rows))
        staged = []
        for number, (values, some) in enumerate(pieces):
            # Through memory, because only our own writes tell a full disk from a fault of the encoder.
            buffer = BytesIO()
            some.write_parquet(buffer)
            name = f"{safe_name(part)}-{safe_name(attempt)}-{number}.parquet"
            with unwritable_named(self.root):
                file = self.staging.prepare(epoch, name, buffer.getbuffer())
            staged.append(asdict(StagedFile(file, some.height, buffer.tell(), values)))
        return {"part": part, "rows": rows.height, "bytes": sum(file["bytes"] for file in staged), "files": staged}

    def files(self, receipt: Receipt) -> Mapping[Path, int]:
        return {self.staging.path(file.file): file.bytes for file in _staged([receipt])}

    def publish(self, epoch: int, receipts: Sequence[Receipt]) -> None:
        staged = _staged(receipts)
        if not staged:
            return
        with full_disk_named(self.root), unwritable_named(self.root), self._faults_named():
            if self._is_published(epoch):
                return
            try:
                files = self._shown_files(epoch, staged)
            except FileNotFoundError as error:
                if self._is_published(epoch):
                    return  # by another host, which has removed what was left
                raise CorruptFileError(
                    f"a file prepared for {self.describe()} is missing: {error.filename}",
                    cure=f"the epoch is committed but its rows are no longer under {self.root / _STAGING}; if they were"
                    " removed by hand, put them back, otherwise run the pipeline again from an epoch before this one",
                    epoch=epoch,
                ) from error
            self._commit(epoch, files)

    def _is_published(self, epoch: int) -> bool:
        last, _ = self._published()
        return last is not None and last >= epoch

    def _shown_files(self, epoch: int, staged: Sequence[StagedFile]) -> list[TableFile]:
        root = self.staging.root
        closed = self.staging.close(epoch, lambda into: write_table_files(root, staged, self._cut, into))
        files = read_index(closed)
        show_files(closed, files, self._data, self._prefix(epoch))
        return files

    def _prefix(self, epoch: int) -> str:
        """With which the files of a publication begin; no other sink's do."""
        digest = hashlib.sha256(f"{self.name}\0{self.owner.store}".encode()).hexdigest()[:16]
        return f"part-{digest}-{epoch:012d}"

    def forget(self, epoch: int, receipts: Sequence[Receipt], right: Right) -> None:
        self.staging.forget(epoch, _names(receipts), right)

    def discard(self, epoch: int, receipts: Sequence[Receipt], right: Right) -> None:
        self.staging.discard(_names(receipts), right)

    def sweep(self, before_epoch: int, right: Right) -> None:
        self.staging.sweep(before_epoch, right)


def _staged(receipts: Sequence[Receipt]) -> list[StagedFile]:
    return [StagedFile(**file) for receipt in receipts for file in receipt["files"]]


def _names(receipts: Sequence[Receipt]) -> list[str]:
    return [file.file for file in _staged(receipts)]
