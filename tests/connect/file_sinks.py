"""File sinks for tests: owned, with a run that has begun, and with rows that are prepared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl

from holdfast.connect.sinks.file_sink import FileSink
from holdfast.sink import Owner, Receipt, arrow, ndjson, parquet
from holdfast.store import Private

OWNER = Owner("store", "pipeline", "out")
OWN = Private("a directory of the test")


def attached(make: Callable[[Path], FileSink], path: Path, owner: Owner = OWNER) -> FileSink:
    sink = make(path)
    sink.attach(owner)
    return sink


def made(make: Callable[[Path], FileSink], path: Path) -> FileSink:
    """A sink whose run has begun."""
    sink = attached(make, path)
    sink.check(0, {})
    return sink


SINKS: list[Callable[[Path], FileSink]] = [parquet, ndjson, arrow]


def rows(*keys: int) -> pl.DataFrame:
    return pl.DataFrame({"k": keys, "s": [f"text {k}" for k in keys]}, schema={"k": pl.Int64, "s": pl.String})


def prepared(sink: FileSink, epoch: int) -> list[Receipt]:
    return [
        sink.prepare(rows(epoch * 10, epoch * 10 + 1), epoch=epoch, part="0", attempt="a"),
        sink.prepare(rows(), epoch=epoch, part="1", attempt="a"),
        sink.prepare(rows(epoch * 10 + 2), epoch=epoch, part="2", attempt="a"),
    ]


def staged(sink: FileSink) -> list[str]:
    """All files of the sink that readers are not to see."""
    return sorted(str(file.relative_to(sink.staging.root)) for file in sink.staging.root.rglob("*") if file.is_file())


def parts(place: Path) -> int:
    return len([file for file in place.rglob("part-*") if file.is_file()])
