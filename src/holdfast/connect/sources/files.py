"""Files as a source: a fixed set that ends, or a directory that grows.

A slice is a run of ranges of files: rows of Parquet and Arrow files, bytes between newlines of CSV and
NDJSON files. So big files are read by several tasks and small ones are read together by one. The size and
modification time of each file are part of the slice: a file that is no longer the one that was planned is
refused, because its slice would not give the same rows again.

With `order="file"` one file comes after the other, in the order of their names, and a row is late by all the rows
before it. With `order="arrival"` files that were found together have no order: a position keeps the change time of the
newest of them until all are read. What is found together does not depend on how rows are cut into epochs, but, where
the directory grows, on when somebody looked.

Promised, with `grow=True`: every file that is renamed or written whole into the directory is read once,
also when its name sorts before names that were read already. Files that arrive between two takes are read
in the order of their names.

A file that is still being written is waited for (`settled_files.py`), and with `order="file"` those behind it wait:
`notices` says so when it takes long. Rows that are appended to a file after it was read are not read, and `notices`
says that as well.

Not promised: that a writer who pauses for longer than `settle` is waited for (write a file under a name that
starts with "." or "_" or ends with ".tmp", then rename it); that an old file is left alone when it is changed,
linked or given other permissions after a thousand newer ones were read (such a file looks new: remove read files
or leave them alone); anything on file systems that do not set the change time of a file that is renamed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Any, Literal, get_args

import polars as pl

from holdfast.connect.base import DEAD_LETTER_SCHEMA, BadRows, Chunk, Position, Slice, Source, Take, check_bad_rows
from holdfast.connect.formats.csv import CsvFormat
from holdfast.connect.formats.file_format import BadRow, Extent, FileFormat
from holdfast.connect.formats.format_names import FormatName, file_format, guessed_format
from holdfast.connect.formats.input_file import InputFile
from holdfast.connect.formats.lines import LineFormat, line_number
from holdfast.connect.object_store.object_file import ObjectFile
from holdfast.connect.object_store.storage_options import AnyOptions
from holdfast.connect.schema import AnySchema, as_schema
from holdfast.connect.source_need import SourceNeed
from holdfast.connect.sources.file_notices import FileNotices
from holdfast.connect.sources.file_ranges import FileRange, cut_into_slices, recall, remember
from holdfast.connect.sources.file_set import FileId, FileSet, Memory
from holdfast.connect.sources.object_set import ObjectSet
from holdfast.connect.sources.settled_files import SettlingFiles
from holdfast.errors import BadRowError, CorruptFileError, DeclarationError, HoldfastError, InputError
from holdfast.spans import Duration, seconds_of

__all__ = ["FileOrder", "FileSource", "FormatName", "files"]

FileOrder = Literal["file", "arrival"]
AnyPath = str | os.PathLike[str]

_ALL = (1 << 63) - 1
"""As a change time: behind that of every file."""
_SAMPLE = 3


class FileSource(Source):
    """See `files`."""

    def __init__(
        self,
        found: FileSet | ObjectSet,
        format: FileFormat,
        schema: pl.Schema,
        *,
        grow: bool,
        bad_rows: BadRows,
        settle: float = 0.0,
        order: FileOrder = "file",
    ) -> None:
        self.files = found
        self.format = format
        self.schema = self._declared = schema
        self.need = SourceNeed(tuple(schema))
        self.bounded = not grow
        self.bad_rows = bad_rows
        self.arrivals = SettlingFiles(settle if grow and isinstance(found, FileSet) else 0.0)
        self.in_order = order == "file"
        self._odd = FileNotices(found, format, schema, grow)

    def start(self) -> Position:
        memory = Memory(recent=None if self.bounded else {})
        return {"base": 0, "file": None, "at": 0, "together": None, **memory.as_position()}

    def narrowed(self, need: SourceNeed) -> FileSource:
        other = copy(self)
        other.schema = pl.Schema({name: self._declared[name] for name in need.columns})
        other.need = need
        return other

    def take(self, position: Position, rows: int, pieces: int) -> Take:
        memory = Memory.of(position)
        if self.bounded:
            self.files.must_exist(memory)
        new = [file for file in self.files.present(memory) if memory.is_new(file)]
        self.arrivals.see(new)
        # Files that are found together are looked at together; otherwise only those whose turn it is.
        left = [] if self.in_order else [file for file in new if not self._is_complete(file)]
        growing = {file.name for file in left}
        whole = [file for file in new if file.name not in growing]
        together = self._together(position, whole)
        waiting = [file for file in whole if file.ctime_ns <= together]
        later = [file for file in whole if file.ctime_ns > together]
        ranges, taken = [], []
        missing = max(1, rows)
        rest: tuple[FileId, int] | None = None
        if position["file"] is not None:
            part = self._first_rows(recall(position["file"]), int(position["at"]), missing)
            rest = self._rest(part)
            missing -= part.rows
            ranges.append(part)
        while rest is None and waiting and (missing > 0 or self._ends_nothing(waiting[0])):
            if self.in_order and not self._is_complete(waiting[0]):
                break  # those behind it keep their order, and wait with it
            file = waiting.pop(0)
            taken.append(file)
            extent = self._extent(file)
            if extent.start >= extent.stop:
                continue
            part = self._first_rows(file, extent.start, missing)
            rest = self._rest(part)
            missing -= part.rows
            ranges.append(part)
        ended = rest is None and not waiting
        done = self.bounded and ended
        if not ranges and not self.settled(position):
            # The files that were found with the last ones are gone: those that came since are next.
            return self.take({**position, "together": None}, rows, pieces)
        if not ranges:
            return Take((), position, done)
        base = int(position["base"])
        slices = tuple(cut_into_slices(ranges, base, pieces, self._cut))
        left += [*waiting, *later]
        behind = memory.after(taken, left, grows=not self.bounded, behind_ns=self.files.behind_ns)
        where = {"file": None, "at": 0} if rest is None else self._begun(*rest)
        base += sum(part.stop - part.start for part in ranges)
        group = None if self.in_order or ended else together
        return Take(slices, {"base": base, **where, "together": group, **behind.as_position()}, done)

    def settled(self, position: Position) -> bool:
        return position.get("together") is None

    def _together(self, position: Position, new: Sequence[FileId]) -> int:
        """Up to which change time files are read now: those behind it are found together with others, later."""
        if self.in_order or self.bounded:
            return _ALL
        known = position.get("together")
        return max((file.ctime_ns for file in new), default=_ALL) if known is None else int(known)

    def _ends_nothing(self, file: FileId) -> bool:
        """Whether a file has no rows, so that those found with it need not wait for it."""
        if self.in_order:
            return False
        extent = self._extent(file)
        return extent.start >= extent.stop

    def read(self, piece: Slice) -> Iterator[Chunk]:
        for where in piece.where["parts"]:
            file = recall(where)
            path = self.files.opened(file.name)
            with _naming(path):
                file.check(path)
                try:
                    start, stop = int(where["start"]), int(where["stop"])
                    for rows in self.format.read(path, start, stop, self._declared, self.need):
                        bad = self._handle(path, rows.bad)
                        yield Chunk(rows.frame, bad=bad, place=str(path), sifted=rows.sifted)
                except (CorruptFileError, BadRowError):
                    file.check(self.files.path(file.name))  # that it changed under the reader explains more
                    raise
                file.check(self.files.path(file.name))

    def awaits(self, position: Position) -> bool:
        if not self.arrivals.seconds:
            return False
        memory = Memory.of(position)
        return any(memory.is_new(file) and not self._is_complete(file) for file in self.files.present(memory))

    def notices(self, position: Position) -> tuple[str, ...]:
        return self._odd.look(
            Memory.of(position), self._is_complete, lambda file: self.in_order and self.arrivals.is_slow(file.name)
        )

    def resumed(self, position: Position) -> Position:
        if position["file"] is None:
            return position
        file, at = recall(position["file"]), int(position["at"])
        path = self.files.path(file.name)
        try:
            file.check(path)
            return position
        except CorruptFileError as changed:
            now = self.files.identify(file.name)
            if now is None or position.get("trace") is None or self.format.trace(path, at) != position["trace"]:
                unit = "byte" if isinstance(self.format, LineFormat) else "row"
                raise CorruptFileError(
                    f"{changed.problem}; it was read up to {unit} {at}, and that part has changed",
                    cure=f"skip the file, and put its rows from {unit} {at} on into a new one",
                ).of(str(path)) from changed
        memory = Memory.of(position).with_changed(now)
        return {**position, "file": remember(now), **memory.as_position()}

    def named(self, file: str) -> str | None:
        return self.files.named(file)

    def without(self, position: Position, name: str) -> Position:
        memory, begun = Memory.of(position), position["file"]
        if begun is not None and begun["name"] == name:
            return self._closed({**position, "file": None, "at": 0, **memory.without(name).as_position()})
        now = self.files.identify(name)
        gone = self.files.names is None or name <= memory.last  # of a list, a file that is not there is missed
        known = gone if now is None else not memory.is_new(now)
        return position if known else self._closed({**position, **memory.without(name).as_position()})

    def _closed(self, position: Position) -> Position:
        """The position behind a group of files that were found together, if none of them is left to be read."""
        if self.settled(position) or position["file"] is not None:
            return position
        memory, together = Memory.of(position), int(position["together"])
        left = any(memory.is_new(file) and file.ctime_ns <= together for file in self.files.present(memory))
        return position if left else {**position, "together": None}

    def reads(self) -> Sequence[Path]:
        return self.files.sample(_SAMPLE)

    def lists(self, directory: Path) -> bool:
        return self.files.lies_in(directory)

    def lists_below(self, directory: Path) -> bool:
        return self.files.reaches(directory)

    def lag(self, position: Position) -> int | None:
        """None also while a waiting file is damaged or going away: whether that is an error, `take` says when its turn
        comes, and a figure for people is no reason to stop."""
        try:
            return self._lag(position)
        except (HoldfastError, OSError):
            return None

    def _lag(self, position: Position) -> int:
        memory = Memory.of(position)
        waiting = [file for file in self.files.present(memory) if memory.is_new(file)]
        rows = self._estimate(waiting) if isinstance(self.files, ObjectSet) else sum(map(self._rows, waiting))
        if position["file"] is not None:
            extent = self._extent(recall(position["file"]))
            rows += ceil((extent.stop - int(position["at"])) / extent.per_row)
        return rows

    def _rows(self, file: FileId) -> int:
        extent = self._extent(file)
        return ceil((extent.stop - extent.start) / extent.per_row)

    def _estimate(self, files: Sequence[FileId]) -> int:
        """About how many rows there are, by the sizes of the files: opening each would take a request."""
        sample = files[:_SAMPLE]
        size = sum(file.size for file in sample)
        return ceil(sum(map(self._rows, sample)) * sum(file.size for file in files) / size) if size else 0

    def row_bytes(self) -> float | None:
        try:
            for file in self.files.present():
                path = self.files.path(file.name)
                if (found := self.format.row_bytes(path, self.schema.names())) is not None:
                    return found
        except (HoldfastError, OSError):
            pass  # whether that is an error, `take` says
        return None

    def describe(self) -> str:
        name = type(self.format).__name__.removesuffix("Format").lower()
        order = "" if self.in_order else ", no order among files found together"
        return f"{name} files {self.files.describe()}{'' if self.bounded else ', growing'}{order}"

    def _extent(self, file: FileId) -> Extent:
        path = self.files.path(file.name)
        with _naming(path):
            self.files.check(file)
            return _extent(self.format, path, file)

    def _is_complete(self, file: FileId) -> bool:
        return self.arrivals.is_complete(file, self.files.path(file.name), self.format)

    def _begun(self, file: FileId, at: int) -> dict[str, Any]:
        """Where a file is that was not read to its end, and what tells whether the part that was read stays."""
        return {"file": remember(file), "at": at, "trace": self.format.trace(self.files.path(file.name), at)}

    def _first_rows(self, file: FileId, at: int, rows: int) -> FileRange:
        extent = self._extent(file)
        want = at + max(1, ceil(rows * extent.per_row))
        stop = extent.stop
        if want < stop:
            stop = self._cut(file, at, want, stop)
        return FileRange(file, at, stop, extent.per_row)

    def _rest(self, part: FileRange) -> tuple[FileId, int] | None:
        return (part.file, part.stop) if part.stop < self._extent(part.file).stop else None

    def _cut(self, file: FileId, start: int, at: int, stop: int) -> int:
        return self.format.cut(self.files.path(file.name), start, at, stop)

    def _handle(self, path: InputFile, bad: Sequence[BadRow]) -> pl.DataFrame | None:
        if not bad:
            return None
        if self.bad_rows == "fail":
            first = bad[0]
            more = f" ({len(bad) - 1} more near it)" if len(bad) > 1 else ""
            raise BadRowError(
                f"{path}, line {line_number(path, first.at)} (byte {first.at}):"
                f" {first.reason}{more}; the row is: {first.text[:200]}",
                cure="correct the file or the schema, or declare files(..., bad_rows='skip') to drop"
                " such rows or bad_rows='dead_letter' to divert them",
            )
        source = self.describe()
        rows = [(source, f"{path}:byte {row.at}", row.reason, row.text) for row in bad]
        return pl.DataFrame(rows, schema=DEAD_LETTER_SCHEMA, orient="row")


def files(
    path: AnyPath | Sequence[AnyPath],
    format: FormatName | None = None,
    schema: AnySchema | None = None,
    grow: bool = False,
    bad_rows: BadRows = "fail",
    settle: Duration = 2.0,
    order: FileOrder = "file",
    has_header: bool = True,
    separator: str = ",",
    null_values: Sequence[str] = (),
    storage_options: AnyOptions | None = None,
) -> FileSource:
    """Read a directory, a glob pattern, a file or a list of files, of this machine or in an object store (`s3://`,
    `gs://`, `az://`). An object is complete when it is there, so `settle` is not used for them.

    If they are not given, the format follows from the extension and the schema from the first file. With `grow=True`
    the source has no end and reads files as they arrive. A file that may still be being written is not read until it
    has not changed for `settle`, and with `order="file"` the files after it wait for it. If all writers rename files
    into place, `settle=0` reads them as soon as they are found. `bad_rows` says what happens to a line of CSV or NDJSON
    that does not fit the schema, and to a row whose event time is missing or not allowed: "fail", "skip", or
    "dead_letter". `has_header`, `separator` and `null_values` are for CSV. `storage_options` say how to talk to an
    object store; secrets in them are references, "env:NAME" or "file:PATH".

    A missing field of NDJSON is null, and one that is not declared is not read. If a declared column occurs nowhere in
    the first rows of the files, the log and `status` report it: its name may be misspelt.

    With `order="file"` files are read in the order of their names, and a row can be late relative to any row before it,
    in its own file and in earlier ones. `order="arrival"` is for files of several writers whose times overlap: files
    that are found together have no order, none of their rows makes another one late, and the watermark moves when all
    of them have been read. `lateness` must cover how much later another writer's file may arrive, including `settle`. A
    fixed set is found together as a whole, so nothing in it is late, and its windows close at the end.
    """
    found = ObjectSet.of(path, storage_options) or FileSet.of(path)
    check_bad_rows("files()", bad_rows)
    if order not in get_args(FileOrder):
        raise DeclarationError(f"files(): unknown order={order!r}", cure=f"use one of {', '.join(get_args(FileOrder))}")
    nulls = (null_values,) if isinstance(null_values, str) else tuple(null_values)
    names = [file.name for file in found.present()] or [found.pattern or ""] if format is None else []
    reader = file_format(format or guessed_format(names[0], found.describe()), CsvFormat(has_header, separator, nulls))
    wanted = _infer(found, reader) if schema is None else as_schema(schema, "files()")
    reader.check_schema(wanted)
    still = seconds_of("files(): settle", settle)
    return FileSource(found, reader, wanted, grow=grow, bad_rows=bad_rows, settle=still, order=order)


def _infer(found: FileSet | ObjectSet, reader: FileFormat) -> pl.Schema:
    present = found.present()
    if not present:
        raise DeclarationError(
            f"files(): there is no file at {found.describe()} to infer a schema from",
            cure="give files() a schema, or put a first file there before declaring the pipeline",
        )
    return reader.infer(found.path(present[0].name))


@lru_cache(maxsize=4096)
def _extent(format: FileFormat, path: InputFile, file: FileId) -> Extent:
    """Cached by the file's identity: planning asks for the same footer with every take."""
    return format.extent(path.pinned() if isinstance(path, ObjectFile) else path)


@contextmanager
def _naming(path: InputFile) -> Iterator[None]:
    """Say which file an error is about."""
    try:
        yield
    except InputError as error:
        raise error.of(str(path)) from error.__cause__
