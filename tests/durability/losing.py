"""Runs that die, hosts that are lost, and what would have come out without that."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.epoch.report import EpochReport
from holdfast.graph.policies import DELTA

Build = Callable[[hf.sink.Sink], hf.Pipeline]


class KilledError(Exception):
    pass


def dying_after(epoch: int) -> Callable[[EpochReport], None]:
    """Stands for a kill: no clean end, so nothing is made durable that was not."""

    def on_epoch(report: EpochReport) -> None:
        if report.epoch == epoch:
            raise KilledError

    return on_epoch


def lose(volatile: Path) -> None:
    """The host is gone. Tasks that a run has left behind in this session may still be writing."""
    while volatile.exists():
        shutil.rmtree(volatile, ignore_errors=True)


def rows(path: Path) -> list[tuple[object, ...]]:
    frame = hf.read_output(path, "parquet")
    return sorted(frame.rows())


def plain(build: Build, spark: SparkSession, place: Path) -> list[tuple[object, ...]]:
    hf.run(build(hf.sink.parquet(place / "plain")), spark=spark, store=place / "plain-store", checkpoint=DELTA)
    return rows(place / "plain")
