"""Drills that are asked for in the dashboard. Each is a `holdfast drill` of its own: it runs the pipeline's code, which
has no business in the process of the dashboard."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.dashboard.drill_run import Drill
from holdfast.errors import AlreadyRunningError

__all__ = ["DrillDesk", "DrillUnderWay"]

_META_VARIABLE = "HOLDFAST_META"
_LONG = 2_000


@dataclass(slots=True)
class DrillUnderWay:
    """A drill that was asked for here, and what it has said until now. `code` is None until it is over: then it is 0 if
    the drill was passed, and otherwise `said` ends with what went wrong."""

    pipeline: str
    fragment: str
    kill: str
    since: float
    said: list[str] = field(default_factory=list)
    code: int | None = None


class DrillDesk:
    """Starts drills, one at a time."""

    def __init__(self, store: Path, meta: str | None) -> None:
        self._store = store
        self._meta = meta
        self._lock = threading.Lock()
        self._last: DrillUnderWay | None = None

    def last(self, pipeline: str) -> DrillUnderWay | None:
        """The last one that was asked for here, if it was one of this pipeline."""
        return self._last if self._last is not None and self._last.pipeline == pipeline else None

    def begin(self, drill: Drill) -> DrillUnderWay:
        with self._lock:
            if self._last is not None and self._last.code is None:
                raise AlreadyRunningError(
                    f"a drill of '{self._last.fragment}' is under way", cure="wait until it has its verdict"
                )
            self._last = DrillUnderWay(drill.pipeline, drill.fragment, drill.kill, time.time())
        environment = {**os.environ, **({_META_VARIABLE: self._meta} if self._meta is not None else {})}
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "drill", drill.pipeline, "--kill", drill.kill, "--fragment",
             drill.fragment, "--yes", "--by", "dashboard", "--store", str(self._store)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        )  # fmt: skip
        threading.Thread(target=_follow, args=(process, self._last), name="drill", daemon=True).start()
        return self._last


def _follow(process: subprocess.Popen[str], drill: DrillUnderWay) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip():
            drill.said.append(line.strip()[:_LONG])
    drill.code = process.wait()
