"""A run that tells what happens to it in a file of JSON lines, which survives its process."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.durability.checkpoints import CheckpointReport
from holdfast.engine.observer import Observer
from holdfast.engine.recovery import RecoveryReport
from holdfast.epoch.report import EpochReport
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["EventWriter", "WriteEvent", "events_since", "run_with_events"]


class WriteEvent(Protocol):
    def __call__(self, event: str, **facts: Any) -> None: ...


def run_with_events(
    events: Path,
    prepare: Callable[[WriteEvent], Callable[[SparkSession], object]],
    *,
    app: str,
    master: str | None = None,
    warm: Path | None = None,
) -> int:
    """Prepare a run and run it in a session of its own; the exit code of the process.

    Told are the steps of the start (imported, session and, with a place to `warm` up in, warm), what the run itself
    tells, and how it ended: finished, or failed with the problem.
    """
    from holdfast.engine.warmup import warm_up  # noqa: PLC0415 - Spark is slow to import
    from holdfast.spark.session import close_spark, open_spark  # noqa: PLC0415 - Spark is slow to import

    with events.open("a", buffering=1) as lines:

        def tell(event: str, **facts: Any) -> None:
            lines.write(json.dumps({"event": event, "pid": os.getpid(), "at": time.time(), **facts}) + "\n")

        tell("imported")
        run = prepare(tell)
        try:
            spark = open_spark(master, app=app)
            tell("session")
            try:
                if warm is not None:
                    warm_up(spark, warm)
                    tell("warm")
                run(spark)
            finally:
                close_spark(spark)
        except HoldfastError as error:
            tell("failed", problem=str(error))
            return 1
        tell("finished")
        return 0


def events_since(events: Path, place: int) -> tuple[list[dict[str, Any]], int]:
    """What was told behind a place in the file, and the place behind that. A line that a kill has cut off is left out:
    the next process goes on in it."""
    if not events.exists():
        return [], place
    with events.open("rb") as file:
        file.seek(place)
        whole, end, _ = file.read().rpartition(b"\n")
    found = []
    for line in whole.splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found, place + len(whole) + len(end)


@dataclass(frozen=True, slots=True)
class EventWriter(Observer):
    """Writes commits, recoveries and checkpoints."""

    write: WriteEvent

    def epoch_committed(self, report: EpochReport) -> None:
        self.write("commit", **_commit_facts(report))

    def recovered(self, report: RecoveryReport) -> None:
        self.write("recovered", **_recovery_facts(report))

    def checkpoint_copied(self, report: CheckpointReport) -> None:
        self.write("checkpoint", epoch=report.epoch, bytes=report.bytes, seconds=report.seconds)


def _commit_facts(report: EpochReport) -> Mapping[str, Any]:
    seen = [time for time in report.greatest.values() if time is not None]
    return {
        "fragment": report.fragment,
        "epoch": report.epoch,
        "rows": report.rows,
        "output_rows": report.output_rows,
        "started": report.started,
        "committed": report.committed,
        "seen": max(seen, default=0),
    }


def _recovery_facts(report: RecoveryReport) -> Mapping[str, Any]:
    return {
        "epoch": report.epoch,
        "seconds": dict(report.seconds),
        "units": report.units,
        "bytes": report.bytes,
        "replayed": report.replayed,
    }
