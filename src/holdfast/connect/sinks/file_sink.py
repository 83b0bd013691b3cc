"""Output files that appear whole epoch by whole epoch: Parquet, NDJSON, Arrow IPC.

    out/epoch=000000000012/part-00000.parquet

A directory holds the rows of one epoch, or of all since the one before: epochs are gathered and published together, so
that a short latency does not make a directory every few milliseconds. `staging_directory.py` says how a publication
becomes visible as a whole and once, `ownership.py` how two pipelines are kept out of one directory.

Not promised: that an epoch without rows leaves a directory, or any order of the rows between the files of a directory.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

import polars as pl

from holdfast.connect.base import Owner, Receipt, TaskSink
from holdfast.connect.object_store.bucket import bucket_at
from holdfast.connect.object_store.storage_options import AnyOptions
from holdfast.connect.sinks.object_output import ObjectOutput
from holdfast.connect.sinks.object_sink import ObjectSink
from holdfast.connect.sinks.ownership import OutputDirectory, unwritable_named
from holdfast.connect.sinks.part_content import EPOCH_KEY, SinkFormat, check_columns, encoded_part, rows_of_parts
from holdfast.connect.sinks.rhythm import Rhythm
from holdfast.connect.sinks.staging_directory import Staging, safe_name
from holdfast.connect.sources.push import parse_size
from holdfast.errors import CorruptFileError, DeclarationError, InputError, OutputConflictError, WrongTypeError
from holdfast.spans import Duration, parse_duration
from holdfast.store import Right, full_disk_named, remove_tree
from holdfast.store.location import local_path

__all__ = [
    "FileSink",
    "SinkFormat",
    "arrow",
    "epoch_files",
    "ndjson",
    "parquet",
    "published_epochs",
    "read_output",
]

AnyPath = str | os.PathLike[str]

_EPOCH = re.compile(rf"{EPOCH_KEY}=(\d{{12,}})")
_LONGEST_NAME = 255 - len("..staging")
_EVERY: Duration = "1s"
_BYTES = "128 MB"


class FileSink(TaskSink):
    """See `parquet`, `ndjson` and `arrow`."""

    guarantee = "exactly once: whole epochs become visible, each of them once, and are synced to disk"

    def __init__(
        self, path: AnyPath, format: SinkFormat, *, every: Duration = _EVERY, bytes: int | str = _BYTES
    ) -> None:
        # Absolute, because tasks may run in another working directory than the driver.
        self.path = local_path(path, f"{format}()").absolute()
        self.format = format
        self.rhythm = _rhythm(every, bytes)
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
        check_columns(schema)

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
        content = encoded_part(rows, self.format)
        with unwritable_named(self.path):
            file = self.staging.prepare(epoch, f"{name}-{safe_name(attempt)}.{self.format}", content)
        return {"part": name, "file": file, "rows": rows.height, "bytes": len(content)}

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
                    f"a file prepared for {target} is missing: {error.filename}",
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

    def seen(self, epoch: int, receipts: Sequence[Receipt], schema: pl.Schema) -> pl.DataFrame | None:
        """Of an epoch that was published on its own, and whose files are as they were."""
        files = sorted(self._target(epoch).glob(f"*.{self.format}"))
        try:
            parts = ((file.name, file.read_bytes) for file in files)
            rows = rows_of_parts(parts, self.format, schema).select(schema.names()).cast(schema)
        except (OSError, pl.exceptions.PolarsError):
            return None
        return rows if rows.height == sum(int(receipt["rows"]) for receipt in receipts) else None

    def forget(self, epoch: int, receipts: Sequence[Receipt], right: Right) -> None:
        self.staging.forget(epoch, _names(receipts), right)

    def discard(self, epoch: int, receipts: Sequence[Receipt], right: Right) -> None:
        self.staging.discard(_names(receipts), right)

    def sweep(self, before_epoch: int, right: Right) -> None:
        self.staging.sweep(before_epoch, right)
        staging = self._directory.staging
        for place in staging.iterdir() if staging.is_dir() else ():
            if place.name.isdecimal() and int(place.name) < before_epoch:  # of version 0.1
                remove_tree(place, right)

    def _target(self, epoch: int) -> Path:
        return self.path / f"{EPOCH_KEY}={epoch:012d}"


def _names(receipts: Sequence[Receipt]) -> list[str]:
    return [receipt["file"] for receipt in receipts if receipt["rows"]]


def _rhythm(every: Duration, bytes: int | str) -> Rhythm:
    seconds = parse_duration(every) / 1e9
    if seconds < 0:
        raise WrongTypeError(f"every={every!r} is negative", cure="give 0 or more; 0 publishes each epoch separately")
    return Rhythm(seconds, parse_size("bytes", bytes))


def _file_sink(
    path: AnyPath, format: SinkFormat, every: Duration, bytes: int | str, options: AnyOptions | None
) -> FileSink | ObjectSink:
    found = bucket_at(path, options, f"{format}()")
    if found is None:
        return FileSink(path, format, every=every, bytes=bytes)
    return ObjectSink(ObjectOutput(*found), format, _rhythm(every, bytes))


def parquet(
    path: AnyPath, *, every: Duration = _EVERY, bytes: int | str = _BYTES, storage_options: AnyOptions | None = None
) -> FileSink | ObjectSink:
    """Write rows as Parquet files under `path`: directories of whole epochs, each of them once.

    Directories come at least `every` so often apart, unless so many `bytes` have gathered before; `every=0` publishes
    each epoch on its own. What is gathered is durable. A clean stop publishes it, and so does the next start after any
    other end.

    `path` may be an address in an object store (`s3://`, `gs://`, `az://`), where a publication is complete when its
    manifest is there. `storage_options` say how to talk to it; secrets in them are references, "env:NAME" or
    "file:PATH".
    """
    return _file_sink(path, "parquet", every, bytes, storage_options)


def ndjson(
    path: AnyPath, *, every: Duration = _EVERY, bytes: int | str = _BYTES, storage_options: AnyOptions | None = None
) -> FileSink | ObjectSink:
    """Write rows as newline-delimited JSON files under `path`. See `parquet`."""
    return _file_sink(path, "ndjson", every, bytes, storage_options)


def arrow(
    path: AnyPath, *, every: Duration = _EVERY, bytes: int | str = _BYTES, storage_options: AnyOptions | None = None
) -> FileSink | ObjectSink:
    """Write rows as Arrow IPC files under `path`. See `parquet`."""
    return _file_sink(path, "arrow", every, bytes, storage_options)


def published_epochs(path: AnyPath) -> list[int]:
    """The numbers of the epochs that are visible under a file sink's path, in order."""
    root = local_path(path, "the output of a sink")
    if not root.is_dir():
        return []
    return sorted(int(match[1]) for place in root.iterdir() if (match := _EPOCH.fullmatch(place.name)))


def read_output(
    path: AnyPath,
    format: SinkFormat | None = None,
    schema: pl.Schema | None = None,
    *,
    storage_options: AnyOptions | None = None,
) -> pl.DataFrame:
    """All rows that a file sink has published, in the order of their epochs, then of their files' names. In an object
    store, those are the files that its manifests name.

    The format follows from the files, if it is not given. A column that the sink did not have at first is null in the
    rows before it. `schema` types the rows where the format does not (NDJSON) and the frame where there are none.
    """
    if format is not None and format not in get_args(SinkFormat):
        raise DeclarationError(f"unknown format '{format}'", cure=f"use one of {', '.join(get_args(SinkFormat))}")
    remote = bucket_at(path, storage_options, "read_output()")
    if remote is not None:
        return ObjectOutput(*remote).read(format, schema)
    root = local_path(path, "read_output()")
    if not root.is_dir():
        raise InputError(
            f"read_output(): there is no directory '{root}'",
            cure="give the path of the sink; no run has written there yet, or it ran elsewhere",
        )
    files = (file for epoch in published_epochs(root) for file in epoch_files(root, epoch))
    return rows_of_parts(((file.name, file.read_bytes) for file in files), format, schema)


def epoch_files(root: Path, epoch: int) -> list[Path]:
    """The files of an epoch that is published under a file sink's path, in order."""
    return sorted((root / f"{EPOCH_KEY}={epoch:012d}").iterdir())
