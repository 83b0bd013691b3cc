"""Output files that appear whole epoch by whole epoch: Parquet, NDJSON, Arrow IPC.

    out/epoch=000000000012/part-00000.parquet

A directory holds the rows of one epoch, or of all since the one before: epochs are gathered and published together, so
that a short latency does not make a directory every few milliseconds. `connect/sinks/staging.py` says how a publication
becomes visible as a whole and once, `connect/sinks/ownership.py` how two pipelines are kept out of one directory.

Not promised: that an epoch without rows leaves a directory, or any order of the rows between the files of a directory.
"""

from __future__ import annotations

import errno
import io
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

import polars as pl

from holdfast.connect.base import Owner, Receipt, TaskSink
from holdfast.connect.sinks.ownership import OutputDirectory, unwritable_named
from holdfast.connect.sinks.rhythm import Rhythm
from holdfast.connect.sinks.staging import Staging, safe_name
from holdfast.connect.sources.push import parse_size
from holdfast.errors import CorruptFileError, DeclarationError, InputError, OutputConflictError, WrongTypeError
from holdfast.spans import Duration, parse_duration
from holdfast.store import Right, full_disk_named, remove_tree
from holdfast.store.location import local_path

__all__ = ["FileSink", "SinkFormat", "arrow", "ndjson", "parquet", "published_epochs", "read_output"]

SinkFormat = Literal["parquet", "ndjson", "arrow"]
AnyPath = str | os.PathLike[str]

_KEY = "epoch"
_EPOCH = re.compile(rf"{_KEY}=(\d{{12,}})")
_LONGEST_NAME = 255 - len("..staging")
_EVERY: Duration = "1s"
_BYTES = "128 MB"


def _write_parquet(rows: pl.DataFrame, to: io.BytesIO) -> None:
    rows.write_parquet(to)


def _write_ndjson(rows: pl.DataFrame, to: io.BytesIO) -> None:
    rows.write_ndjson(to)


def _write_arrow(rows: pl.DataFrame, to: io.BytesIO) -> None:
    # The oldest layout: Spark and older Arrow readers do not know string views.
    rows.write_ipc(to, compression="uncompressed", compat_level=pl.CompatLevel.oldest())


_WRITERS: dict[SinkFormat, Callable[[pl.DataFrame, io.BytesIO], None]] = {
    "parquet": _write_parquet,
    "ndjson": _write_ndjson,
    "arrow": _write_arrow,
}


class FileSink(TaskSink):
    """See `parquet`, `ndjson` and `arrow`."""

    guarantee = "exactly once: whole epochs become visible, each of them once, and are synced to disk"

    def __init__(
        self, path: AnyPath, format: SinkFormat, *, every: Duration = _EVERY, bytes: int | str = _BYTES
    ) -> None:
        # Absolute, because tasks may run in another working directory than the driver.
        self.path = local_path(path, f"{format}()").absolute()
        self.format = format
        seconds = parse_duration(every) / 1e9
        if seconds < 0:
            raise WrongTypeError(f"every={every!r} is negative", cure="give 0 for each epoch on its own, or more")
        self.rhythm = Rhythm(seconds, parse_size("bytes", bytes))
        self._owner: Owner | None = None
        name = self.path.name
        if name in ("", "..") or len(os.fsencode(name)) > _LONGEST_NAME:
            raise DeclarationError(
                f"{os.fspath(path)!r} does not name a directory to write to",
                cure=f"give a path whose last part is a name of at most {_LONGEST_NAME} bytes",
            )

    @property
    def place(self) -> str:
        return str(self.path.resolve())

    def accept(self, schema: pl.Schema) -> None:
        for column in schema:
            if column.casefold() == _KEY:
                raise DeclarationError(
                    f"column '{column}' would be lost: who reads the directories '{_KEY}=…' of the output gets their"
                    " number in its place",
                    cure=f"give it another name before the sink, e.g. .select(pl.exclude('{column}'),"
                    f" pl.col('{column}').alias('{column}_'))",
                )

    @property
    def _directory(self) -> OutputDirectory:
        return OutputDirectory(self.path.resolve())  # one place has one owner, whatever it is called

    @property
    def staging(self) -> Staging:
        """Where tasks write."""
        assert self._owner is not None, "attach comes first"
        return Staging.of(self._owner, self._directory.staging)

    def attach(self, owner: Owner) -> None:
        self._owner = owner

    def describe(self) -> str:
        return f"{self.format} files in {self.path}"

    def check(self, committed: int, retained: Mapping[int, Sequence[Receipt]]) -> None:
        assert self._owner is not None
        with unwritable_named(self.path):
            inside = self.path / "_staging"  # where the first versions had it
            if inside.is_dir() and not self._directory.staging.exists():
                os.rename(inside, self._directory.staging)
            self._directory.claim(self._owner, lambda: self._adopt(committed, retained))

    def writes(self) -> Sequence[Path]:
        return (self._directory.staging,)

    def _adopt(self, committed: int, retained: Mapping[int, Sequence[Receipt]]) -> None:
        """Refuse what version 0.1, which did not say whose output it is, has not written for this pipeline."""
        problem = None
        newest = max(published_epochs(self.path), default=0)
        if newest > committed:
            problem = f"holds epoch {newest}, and the store knows of {committed or 'no'} committed epochs"
        for epoch, receipts in retained.items():
            for receipt in receipts:
                part = self._target(epoch) / f"part-{receipt['part']}.{self.format}"
                if part.exists() and part.stat().st_size != receipt["bytes"]:
                    problem = f"holds {part.relative_to(self.path)}, which is not what this pipeline has committed"
        if problem is not None:
            raise OutputConflictError(
                f"{self.path} {problem}",
                cure="the files are of another run: remove them, write elsewhere, or use the store of that run",
            )

    def prepare(self, rows: pl.DataFrame, *, epoch: int, part: str, attempt: str) -> Receipt:
        name = safe_name(part)
        if rows.height == 0:
            return {"part": name, "rows": 0, "bytes": 0}
        # Through memory, because only our own writes tell a full disk from a fault of the encoder.
        buffer = io.BytesIO()
        _WRITERS[self.format](rows, buffer)
        with unwritable_named(self.path):
            file = self.staging.prepare(epoch, f"{name}-{safe_name(attempt)}.{self.format}", buffer.getbuffer())
        return {"part": name, "file": file, "rows": rows.height, "bytes": buffer.tell()}

    def files(self, receipt: Receipt) -> Mapping[Path, int]:
        return {self.staging.path(receipt["file"]): receipt["bytes"]} if receipt["rows"] else {}

    def publish(self, epoch: int, receipts: Sequence[Receipt]) -> None:
        assert self._owner is not None
        winners = [receipt for receipt in receipts if receipt["rows"]]
        if not winners:
            return
        target = self._target(epoch)
        with full_disk_named(target), unwritable_named(self.path):
            self._directory.confirm(self._owner)
            try:
                self._publish(epoch, winners, target)
            except FileNotFoundError as error:
                raise CorruptFileError(
                    f"a file prepared for {target} is gone: {error.filename}",
                    cure=f"the epoch is committed but its rows are no longer under {self._directory.staging}; if they"
                    " were removed by hand, put them back, otherwise run the pipeline again from an"
                    " epoch before this one",
                    epoch=epoch,
                ) from error

    def _publish(self, epoch: int, winners: Sequence[Receipt], target: Path) -> None:
        if all("/" in receipt["file"] for receipt in winners):
            files = [(self.staging.path(receipt["file"]), int(receipt["bytes"])) for receipt in winners]
        else:
            files = self._staged_before(epoch, winners)
        if files:
            several = len({file.parent for file, _ in files}) > 1
            self.staging.publish(epoch, files, target, merge=several)

    def _staged_before(self, epoch: int, winners: Sequence[Receipt]) -> list[tuple[Path, int]]:
        """What version 0.1 has staged for its last epoch and not published; nothing if it has published it."""
        staged = self._directory.staging / str(epoch)
        files = []
        for receipt in winners:
            places = (staged / receipt["file"], staged / "ready" / f"part-{receipt['part']}.{self.format}")
            files += [(place, int(receipt["bytes"])) for place in places if place.exists()]
        if files and len(files) != len(winners):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(staged))
        return files

    def forget(self, epoch: int, receipts: Sequence[Receipt], right: Right) -> None:
        self.staging.forget(epoch, _names(receipts), right)

    def discard(self, epoch: int, receipts: Sequence[Receipt], right: Right) -> None:
        self.staging.discard(_names(receipts), right)

    def sweep(self, before_epoch: int, right: Right) -> None:
        self.staging.sweep(before_epoch, right)
        beside = self._directory.staging
        for place in beside.iterdir() if beside.is_dir() else ():
            if place.name.isdecimal() and int(place.name) < before_epoch:  # of version 0.1
                remove_tree(place, right)

    def _target(self, epoch: int) -> Path:
        return self.path / f"{_KEY}={epoch:012d}"


def _names(receipts: Sequence[Receipt]) -> list[str]:
    return [receipt["file"] for receipt in receipts if receipt["rows"]]


def parquet(path: AnyPath, *, every: Duration = _EVERY, bytes: int | str = _BYTES) -> FileSink:
    """Write rows as Parquet files under `path`: directories of whole epochs, each of them once.

    Directories come at least `every` so often apart, unless so many `bytes` have gathered before; `every=0` publishes
    each epoch on its own. What is gathered is durable. A clean stop publishes it, and so does the next start after any
    other end.
    """
    return FileSink(path, "parquet", every=every, bytes=bytes)


def ndjson(path: AnyPath, *, every: Duration = _EVERY, bytes: int | str = _BYTES) -> FileSink:
    """Write rows as newline-delimited JSON files under `path`. See `parquet`."""
    return FileSink(path, "ndjson", every=every, bytes=bytes)


def arrow(path: AnyPath, *, every: Duration = _EVERY, bytes: int | str = _BYTES) -> FileSink:
    """Write rows as Arrow IPC files under `path`. See `parquet`."""
    return FileSink(path, "arrow", every=every, bytes=bytes)


def published_epochs(path: AnyPath) -> list[int]:
    """The numbers of the epochs that are visible under a file sink's path, in order."""
    root = local_path(path, "the output of a sink")
    if not root.is_dir():
        return []
    return sorted(int(match[1]) for place in root.iterdir() if (match := _EPOCH.fullmatch(place.name)))


def read_output(path: AnyPath, format: SinkFormat, schema: pl.Schema | None = None) -> pl.DataFrame:
    """All rows that a file sink has published, in the order of their epochs, then of their files' names.

    `schema` types the rows where the format does not (NDJSON) and the frame where there are none.
    """
    if format not in get_args(SinkFormat):
        raise DeclarationError(f"unknown format '{format}'", cure=f"use one of {', '.join(get_args(SinkFormat))}")
    root = local_path(path, "read_output()")
    if not root.is_dir():
        raise InputError(
            f"read_output(): there is no directory '{root}'",
            cure="give the path that the sink was declared with; no run has written there yet, or it ran elsewhere",
        )
    frames = [
        _read(file, format, schema)
        for epoch in published_epochs(root)
        for file in sorted((root / f"{_KEY}={epoch:012d}").glob(f"*.{format}"))
    ]
    return pl.concat(frames) if frames else pl.DataFrame(schema=schema)


def _read(file: Path, format: SinkFormat, schema: pl.Schema | None) -> pl.DataFrame:
    content = file.read_bytes()
    if format == "parquet":
        return pl.read_parquet(content)
    if format == "arrow":
        return pl.read_ipc(content)
    return pl.read_ndjson(content, schema=schema, infer_schema_length=None)
