"""Output files that appear whole epoch by whole epoch: Parquet, NDJSON, Arrow IPC.

    out/epoch=000000000012/part-0.parquet         what readers see
    .out.staging/12/0-a1.parquet                  what tasks prepared, by part and attempt
    .out.staging/12/ready/part-0.parquet          the epoch while it is being published

Tasks write and sync in a directory beside that of the output: not all readers leave out hidden directories inside
of it (Polars reads them). To publish, the winning files are moved into `ready`, and one rename of that directory
makes the epoch visible: a reader sees all of an epoch or nothing of it. Every step can be interrupted and done again.

Not promised: that an epoch without rows leaves a directory, or any order of the rows between the files of
an epoch.
"""

from __future__ import annotations

import io
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import quote

import polars as pl

from holdfast.connect.base import Receipt, TaskSink
from holdfast.errors import CorruptFileError, DeclarationError, OutputConflictError
from holdfast.store import durable_write, full_disk_named, make_directories, sync_directory

__all__ = ["FileSink", "SinkFormat", "arrow", "ndjson", "parquet", "published_epochs", "read_output"]

SinkFormat = Literal["parquet", "ndjson", "arrow"]
AnyPath = str | os.PathLike[str]

_EPOCH = re.compile(r"epoch=(\d{12,})")


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

    def __init__(self, path: AnyPath, format: SinkFormat) -> None:
        # Absolute, because tasks may run in another working directory than the driver.
        self.path = Path(path).absolute()
        self.format = format

    @property
    def staging(self) -> Path:
        """Where tasks write: on the same file system, so that a rename suffices, and out of the way of readers."""
        return self.path.with_name(f".{self.path.name}.staging")

    def describe(self) -> str:
        return f"{self.format} files in {self.path}"

    def prepare(self, rows: pl.DataFrame, *, epoch: int, part: str, attempt: str) -> Receipt:
        name = _safe(part)
        if rows.height == 0:
            return {"part": name, "rows": 0, "bytes": 0}
        staged = self._staging(epoch) / f"{name}-{_safe(attempt)}.{self.format}"
        make_directories(staged.parent)
        # Through memory, because only our own writes tell a full disk from a fault of the encoder.
        buffer = io.BytesIO()
        _WRITERS[self.format](rows, buffer)
        durable_write(staged, buffer.getbuffer())
        return {"part": name, "file": staged.name, "rows": rows.height, "bytes": buffer.tell()}

    def publish(self, epoch: int, receipts: Sequence[Receipt]) -> None:
        target = self._target(epoch)
        winners = [receipt for receipt in receipts if receipt["rows"]]
        if not winners:
            return
        with full_disk_named(target):
            if not target.exists():
                make_directories(self.path)
                self._gather(epoch, winners)
                self._show(epoch)
            # Also where the epoch is visible already: who made it so may have died before this line.
            sync_directory(self.path)

    def check(self, committed: int) -> None:
        inside = self.path / "_staging"  # where earlier versions had it
        if inside.is_dir() and not self.staging.exists():
            os.rename(inside, self.staging)
        newest = max(published_epochs(self.path), default=0)
        if newest > committed:
            raise OutputConflictError(
                f"{self.path} holds epoch {newest}, and the store knows of {committed or 'no'} committed epochs",
                cure="the files are of another run: remove them, write elsewhere, or use the store of that run",
            )

    def discard(self, epoch: int, receipts: Sequence[Receipt]) -> None:
        for receipt in receipts:
            if receipt["rows"]:
                (self._staging(epoch) / receipt["file"]).unlink(missing_ok=True)

    def sweep(self, before_epoch: int) -> None:
        if not self.staging.is_dir():
            return
        for place in self.staging.iterdir():
            if not place.name.isdecimal() or int(place.name) >= before_epoch:
                continue
            # `ready` exists only for a committed epoch. If it is not visible yet, its publication was cut
            # short and will be done again: these are rows, not leftovers.
            if (place / "ready").exists() and not self._target(int(place.name)).exists():
                continue
            shutil.rmtree(place, ignore_errors=True)

    def _gather(self, epoch: int, winners: Sequence[Receipt]) -> None:
        staging, ready = self._staging(epoch), self._staging(epoch) / "ready"
        try:
            ready.mkdir(parents=True, exist_ok=True)
            for receipt in winners:
                wanted = ready / f"part-{receipt['part']}.{self.format}"
                try:
                    if not wanted.exists():
                        os.rename(staging / receipt["file"], wanted)
                except FileNotFoundError:
                    if not wanted.exists():  # another host publishes the epoch, too, and has moved it meanwhile
                        raise
            sync_directory(ready)
        except FileNotFoundError as error:
            if self._target(epoch).exists():
                return  # another host of the pipeline published the epoch meanwhile
            raise CorruptFileError(
                f"a file prepared for {self._target(epoch)} is gone: {error.filename}",
                cure=f"the epoch is committed but its rows are no longer under {staging}; if they"
                " were removed by hand, put them back, otherwise run the pipeline again from an"
                " epoch before this one",
                epoch=epoch,
            ) from error

    def _show(self, epoch: int) -> None:
        target = self._target(epoch)
        try:
            os.rename(self._staging(epoch) / "ready", target)
        except OSError:
            # A rename onto a directory with files fails: another host was first, with the same rows.
            if not target.exists():
                raise

    def _staging(self, epoch: int) -> Path:
        return self.staging / str(epoch)

    def _target(self, epoch: int) -> Path:
        return self.path / f"epoch={epoch:012d}"


def parquet(path: AnyPath) -> FileSink:
    """Write rows as Parquet files under `path`, one directory per epoch."""
    return FileSink(path, "parquet")


def ndjson(path: AnyPath) -> FileSink:
    """Write rows as newline-delimited JSON files under `path`, one directory per epoch."""
    return FileSink(path, "ndjson")


def arrow(path: AnyPath) -> FileSink:
    """Write rows as Arrow IPC files under `path`, one directory per epoch."""
    return FileSink(path, "arrow")


def published_epochs(path: AnyPath) -> list[int]:
    """The numbers of the epochs that are visible under a file sink's path, in order."""
    root = Path(path)
    if not root.is_dir():
        return []
    return sorted(int(match[1]) for place in root.iterdir() if (match := _EPOCH.fullmatch(place.name)))


def read_output(path: AnyPath, format: SinkFormat, schema: pl.Schema | None = None) -> pl.DataFrame:
    """All rows that a file sink has published, in the order of their epochs, then of their files' names.

    `schema` types the rows where the format does not (NDJSON) and the frame where there are none.
    """
    if format not in get_args(SinkFormat):
        raise DeclarationError(f"unknown format '{format}'", cure=f"use one of {', '.join(get_args(SinkFormat))}")
    frames = [
        _read(file, format, schema)
        for epoch in published_epochs(path)
        for file in sorted((Path(path) / f"epoch={epoch:012d}").glob(f"*.{format}"))
    ]
    return pl.concat(frames) if frames else pl.DataFrame(schema=schema)


def _read(file: Path, format: SinkFormat, schema: pl.Schema | None) -> pl.DataFrame:
    content = file.read_bytes()
    if format == "parquet":
        return pl.read_parquet(content)
    if format == "arrow":
        return pl.read_ipc(content)
    return pl.read_ndjson(content, schema=schema, infer_schema_length=None)


def _safe(name: str) -> str:
    """A name that stays one component of a path, whatever is in it; different names stay different."""
    return quote(name, safe="")
