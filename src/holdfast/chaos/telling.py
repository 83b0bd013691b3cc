"""A run that tells what happens to it in a file of JSON lines, which survives its process."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.epoch.recovery import RecoveryReport
from holdfast.epoch.report import EpochReport
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Tell", "commit_facts", "recovery_facts", "telling_run", "told_since"]


class Tell(Protocol):
    def __call__(self, event: str, **facts: Any) -> None: ...


def telling_run(
    events: Path,
    prepare: Callable[[Tell], Callable[[SparkSession], object]],
    *,
    app: str,
    master: str | None = None,
    warm: Path | None = None,
) -> int:
    """Prepare a run and run it in a session of its own; the exit code of the process.

    Told are the steps of the start (imported, session and, with a place to `warm` up in, warm), what the run itself
    tells, and how it ended: finished, or failed with the problem.
    """
    from holdfast.epoch.session import close_session, open_session
    from holdfast.epoch.warming import warm_up

    with events.open("a", buffering=1) as lines:

        def tell(event: str, **facts: Any) -> None:
            lines.write(json.dumps({"event": event, "pid": os.getpid(), "at": time.time(), **facts}) + "\n")

        tell("imported")
        run = prepare(tell)
        try:
            spark = open_session(master, app=app)
            tell("session")
            try:
                if warm is not None:
                    warm_up(spark, warm)
                    tell("warm")
                run(spark)
            finally:
                close_session(spark)
        except HoldfastError as error:
            tell("failed", problem=str(error))
            return 1
        tell("finished")
        return 0


def told_since(events: Path, place: int) -> tuple[list[dict[str, Any]], int]:
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


def commit_facts(report: EpochReport) -> Mapping[str, Any]:
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


def recovery_facts(report: RecoveryReport) -> Mapping[str, Any]:
    return {
        "epoch": report.epoch,
        "seconds": dict(report.seconds),
        "units": report.units,
        "bytes": report.bytes,
        "replayed": report.replayed,
    }
