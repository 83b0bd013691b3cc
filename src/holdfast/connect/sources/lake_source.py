"""What sources of growing tables have in common: they read the table as it is at first, then what each step of it adds.

A step is a version of a Delta table, or a snapshot of an Iceberg table. A slice names files of the table and ranges of
their rows, so that it gives the same rows for as long as the files are there: files of a table are never changed. Steps
that put the same rows into other files (compaction) add nothing. A step that deletes or changes rows is an error, or
passed over: what was read cannot be taken back.

If the files of a step have no order, none of their rows makes another one late, and the watermark moves when all of
them have been read. So an epoch has rows of one step at most. If one file comes after the other, an epoch may have many
steps.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self

import polars as pl

from holdfast.connect.base import Chunk, Position, Slice, Source, Take
from holdfast.connect.formats.columnar import ParquetFormat
from holdfast.connect.source_need import SourceNeed
from holdfast.connect.sources.table_ranges import TableRange, cut_table_ranges
from holdfast.errors import DeclarationError, InputError

__all__ = ["PARQUET", "LakeFile", "LakeSource", "LakeStep", "TableChanges", "check_words"]

TableChanges = Literal["fail", "skip"]

PARQUET = ParquetFormat()


class LakeFile(Protocol):
    """A file of a table. `rows` is None where its writer has not said how many there are."""

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def rows(self) -> int | None: ...


class LakeStep(Protocol):
    """What a step did to the rows of the table."""

    @property
    def operation(self) -> str: ...
    @property
    def files(self) -> Sequence[LakeFile]: ...
    @property
    def removes(self) -> bool: ...


class LakeSource(Source):
    """`after` is the step whose rows, and those before, are not read; `in_order` whether files have an order."""

    keeps = True
    function: ClassVar[str]
    """That declares it."""
    step: ClassVar[str]
    """What a step is called."""

    def __init__(
        self, schema: pl.Schema, *, after: int | None, grow: bool, changes: TableChanges, in_order: bool
    ) -> None:
        self.schema = self._declared = schema
        self.need = SourceNeed(tuple(schema))
        self.after = after
        self.bounded = not grow
        self.changes = changes
        self.in_order = in_order

    # What differs from format to format.

    @property
    @abstractmethod
    def table(self) -> str:
        """The table in words."""

    @abstractmethod
    def _newest(self) -> int | None:
        """The step that the table is at; None if it has none yet."""

    @abstractmethod
    def _following(self, done: int) -> int | None:
        """The step after one; None if there is none yet."""

    @abstractmethod
    def _is_reached(self, done: int | None, last: int | None) -> bool:
        """Whether all up to the last step was read."""

    @abstractmethod
    def _step(self, step: int) -> LakeStep:
        """What a step did."""

    @abstractmethod
    def _whole(self, step: int) -> Sequence[LakeFile]:
        """All files that the table has at a step."""

    @abstractmethod
    def _columns_of(self, file: Any) -> dict[str, Any]:
        """What a slice says about the columns of a file."""

    @abstractmethod
    def _path(self, name: str, step: int) -> Path:
        """A file of the table, if it is there."""

    @abstractmethod
    def _chunks(self, path: Path, part: dict[str, Any]) -> Iterator[Chunk]:
        """The rows of a part of a slice."""

    # What they have in common.

    def start(self) -> Position:
        return {"base": 0, "done": self.after, "reading": None, "file": 0, "row": 0, "last": None}

    def narrowed(self, need: SourceNeed) -> Self:
        other = copy(self)
        other.schema = pl.Schema({name: self._declared[name] for name in need.columns})
        other.need = need
        return other

    def settled(self, position: Position) -> bool:
        return position["reading"] is None

    def take(self, position: Position, rows: int, pieces: int) -> Take:
        at, missing = dict(position), max(1, rows)
        ranges: list[TableRange] = []
        if self.bounded and at["last"] is None:
            at["last"] = self._newest()
        while missing > 0 and self._begin(at, ranges):
            for part in self._next_ranges(at, missing):
                missing -= part.rows
                ranges.append(part)
            if ranges and at["reading"] is None and not self.in_order:
                break
        done = self.bounded and at["reading"] is None and self._is_reached(at["done"], at["last"])
        if not ranges:
            return Take((), position, done)
        slices = tuple(cut_table_ranges(ranges, int(position["base"]), pieces))
        at["base"] = int(position["base"]) + sum(part.rows for part in ranges)
        return Take(slices, at, done)

    def _begin(self, at: dict[str, Any], ranges: Sequence[TableRange]) -> bool:
        """Go to the next step that adds rows, unless there is one that is being read."""
        while at["reading"] is None:
            if at["done"] is None:
                at.update(reading=at["last"] if self.bounded else self._newest(), file=0, row=0)
                return at["reading"] is not None
            if self.bounded and self._is_reached(at["done"], at["last"]):
                return False
            step = self._following(at["done"])
            if step is None:
                return False
            change = self._step(step)
            if change.removes and self.changes == "fail":
                if ranges:
                    return False  # what came before it is read first
                raise InputError(
                    f"{self.step} {step} of the {self.table} ({change.operation}) deletes or changes rows, which a"
                    " stream has already emitted",
                    cure=f"declare {self.function}(..., changes='skip') to skip such {self.step}s, or read the"
                    " table into a new store as it is now",
                )
            if change.removes or not change.files:
                at["done"] = step
                continue
            at.update(reading=step, file=0, row=0)
        return True

    def _files(self, at: Position) -> Sequence[LakeFile]:
        """Those of the step that is being read: all that the table has, if nothing was read before."""
        return self._whole(at["reading"]) if at["done"] is None else self._step(at["reading"]).files

    def _next_ranges(self, at: dict[str, Any], rows: int) -> Iterator[TableRange]:
        """The next rows of the step that is being read; `at` is moved past them."""
        files, step = self._files(at), at["reading"]
        while rows > 0 and at["file"] < len(files):
            file, start = files[at["file"]], at["row"]
            count = self._rows_of(file, step)
            stop = min(count, start + rows)
            if start < stop < count:
                stop = PARQUET.cut(self._path(file.path, step), start, stop, count)
            if start < stop:
                said = {"path": file.path, "size": file.size, "step": step, **self._columns_of(file)}
                yield TableRange(said, start, stop)
                rows -= stop - start
            at["row"] = stop
            if stop >= count:
                at.update(file=at["file"] + 1, row=0)
        if at["file"] >= len(files):
            at.update(done=step, reading=None, file=0, row=0)

    def _rows_of(self, file: LakeFile, step: int) -> int:
        return file.rows if file.rows is not None else PARQUET.extent(self._path(file.path, step)).stop

    def read(self, piece: Slice) -> Iterator[Chunk]:
        for part in piece.where["parts"]:
            path = self._path(part["path"], part["step"])
            if path.stat().st_size != part["size"]:
                raise InputError(
                    f"{path} has {path.stat().st_size:,} bytes, but {part['size']:,} according to its table",
                    cure="restore it: files of a table must not be changed",
                ).of(str(path))
            yield from self._chunks(path, part)

    def describe(self) -> str:
        since = "" if self.after is None else f" after {self.step} {self.after}"
        return f"{self.table}{since}{'' if self.bounded else ', growing'}"


def check_words(function: str, **given: tuple[str, Sequence[str]]) -> None:
    """Refuse words that are none of those which an argument takes."""
    for name, (value, known) in given.items():
        if value not in known:
            raise DeclarationError(f"{function}(): unknown {name}={value!r}", cure=f"use one of {', '.join(known)}")
