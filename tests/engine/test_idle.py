"""A run until idle: it ends when all is read that was there, and not while input is on its way."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

import holdfast as hf
from holdfast.connect.sources.files import FileSource
from holdfast.connect.sources.settled_files import SettlingFiles
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.engine.options import RunOptions

SCHEMA = pl.Schema({"k": pl.Int64})
SETTLE = 5.0


class Clock:
    """Stands still until it is told."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class SettlingBehindTheLook(FileSource):
    """Files settle right after they were looked at in vain."""

    clock: Clock

    def take(self, position: Mapping[str, Any], rows: int, pieces: int) -> hf.source.Take:
        take = super().take(position, rows, pieces)
        self.clock.now += SETTLE
        return take


def test_a_file_that_settles_between_two_looks_is_read(tmp_path: Path) -> None:
    place = tmp_path / "in"
    place.mkdir()
    (place / "a.ndjson").write_text('{"k": 1}\n')
    found = hf.source.files(place, schema=SCHEMA, grow=True, settle=SETTLE)
    source = SettlingBehindTheLook(found.files, found.format, SCHEMA, grow=True, bad_rows="fail", settle=SETTLE)
    source.clock = Clock((place / "a.ndjson").stat().st_mtime)
    source.arrivals = SettlingFiles(SETTLE, source.clock)
    pipeline = hf.Pipeline("idle")
    pipeline.source("rows", source).sink("out", hf.sink.parquet(tmp_path / "out"))
    options = RunOptions(store=tmp_path / "store", durable=False, until_idle=True)
    FragmentRun(pipeline, InProcessPlatform(), options).run()
    assert hf.read_output(tmp_path / "out", "parquet")["k"].to_list() == [1]
