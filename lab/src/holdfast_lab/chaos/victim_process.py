"""The victim as its parent sees it: a session of processes that can be started, watched and killed in parts."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pyspark

from holdfast.errors import EpochFailedError
from holdfast.meta import Commands, MetaStore
from holdfast.plan.scale_command import ScaleCommand
from holdfast.plurals import counted
from holdfast.process_session import ProcessSession, kill
from holdfast.state.inspection import kept_shape
from holdfast_lab.chaos.fellow_connections import cut_between, make_unreachable
from holdfast_lab.chaos.run_events import events_since
from holdfast_lab.chaos.victim import VictimSettings

__all__ = ["VictimProcess", "ask_to_scale", "is_worker", "take_memory"]

_WORKER = "holdfast.spark.worker_daemon"
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_LOG_LINES = 15
_SECONDS_TO_NOTICE = 120.0


class VictimProcess:
    """One victim: at most one process at a time, started again on the same store after a kill. `module` is what it
    runs, with the settings as JSON."""

    module: ClassVar[str] = "holdfast_lab.chaos.victim"

    def __init__(self, settings: VictimSettings, temporary: Path) -> None:
        self.settings = settings
        self._temporary = temporary
        self._log = Path(settings.home) / "log"
        self._session: ProcessSession | None = None
        self._read = 0
        self.started_at = 0.0
        Path(settings.home).mkdir(parents=True, exist_ok=True)
        temporary.mkdir(parents=True, exist_ok=True)

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def _running(self) -> ProcessSession:
        assert self._session is not None, "it was not started"
        return self._session

    def start(self) -> None:
        """Start the process; it goes on where the last one was killed."""
        environment = {**os.environ, "TMPDIR": str(self._temporary)}
        if (self.settings.master or "").startswith("local-cluster"):
            environment["SPARK_HOME"] = str(_spark_home_in(self._temporary))
        self.started_at = time.time()
        self._session = ProcessSession(
            [sys.executable, "-m", self.module, self.settings.to_json()], self._log, environment
        )

    def events(self) -> list[dict[str, Any]]:
        """What the victim has told since the last call. A line that a kill cut off is left out."""
        found, self._read = events_since(self.settings.events, self._read)
        return found

    def ended(self) -> bool:
        """Whether the process has ended well by itself; an error if it has ended badly."""
        code = self._running.exit_code()
        if code is None:
            return False
        if code != 0:
            raise EpochFailedError(
                f"the run under faults ended by itself with code {code}:\n{self.log_tail()}",
                cure="a fault was not survived; run again with the same seed, and see the log above",
            )
        return True

    def log_tail(self) -> str:
        """The end of what the victim printed, and the problems that it told."""
        problems = [
            event["problem"] for event in map(json.loads, self._lines(self.settings.events)) if "problem" in event
        ]
        return "\n".join(["  " + line for line in (*self._lines(self._log)[-_LOG_LINES:], *problems)])

    def _lines(self, path: Path) -> list[str]:
        return path.read_text(errors="replace").splitlines() if path.exists() else []

    def kill_all(self) -> None:
        """kill -9 of the driver, Java and every worker, and wait until all are gone."""
        if self._session is not None:
            self._session.kill()

    def lose_host(self) -> None:
        """kill -9 of everything, and the loss of what only the host had."""
        self.kill_all()
        shutil.rmtree(self.settings.volatile, ignore_errors=True)

    def scale(self, pick: float, partitions: int) -> str | None:
        """Ask for another parallelism of one of the operators; None if there is nothing to ask yet."""
        if not (self.settings.store / "meta.db").exists():
            return None
        meta = MetaStore(self.settings.store)
        try:
            return ask_to_scale(meta, pick, partitions)
        finally:
            meta.close()

    def kill_java(self) -> bool:
        """kill -9 of Java; the driver has to notice it, and ends. False if there is no Java now."""
        found = [process for process in self._running.members() if _is(process, lambda one: one.name() == "java")]
        if not sum(kill(process) for process in found):
            return False
        deadline = time.monotonic() + _SECONDS_TO_NOTICE
        while self._running.exit_code() is None:
            if time.monotonic() > deadline:
                raise EpochFailedError(
                    f"the driver goes on {_SECONDS_TO_NOTICE:.0f} s after the death of its Java:\n{self.log_tail()}",
                    cure="run again with the same seed; the machine may be too busy",
                )
            time.sleep(0.05)
        self.kill_all()
        return True

    def strike(self, kind: str, pick: float) -> bool:
        """Do something to Python workers or executors; False if it cannot be done now."""
        wanted = (lambda process: _runs(_EXECUTOR, process)) if kind == "executor" else is_worker
        found = sorted(
            (process for process in self._running.members() if _is(process, wanted)), key=lambda process: process.pid
        )
        if not found:
            return False
        if kind == "workers":
            return sum(kill(process) for process in found) > 0
        if kind in ("cut", "unreachable"):
            strike = cut_between if kind == "cut" else make_unreachable
            return strike([process.pid for process in found], pick)
        one = found[int(pick * len(found))]
        if kind == "memory":
            return _is(one, take_memory)
        return _is(one, _stop) if kind == "stop" else kill(one)


def ask_to_scale(meta: MetaStore, pick: float, partitions: int) -> str | None:
    """Ask for another parallelism of one of the operators; None if there is nothing to ask yet."""
    found = [
        (name, operator)
        for name in meta.pipelines()
        if (kept := kept_shape(meta, name)) is not None
        for operator, shape in kept.operators.items()
        if shape.keys
    ]
    if not found:
        return None
    pipeline, operator = found[int(pick * len(found))]
    Commands(meta).ask(pipeline, ScaleCommand(operator, partitions).encode(), time.time())
    return f"{operator} to {counted(partitions, 'partition')}"


def is_worker(process: psutil.Process) -> bool:
    """The daemon's parent is Java, the workers' parent is the daemon."""
    return _runs(_WORKER, process) and _runs(_WORKER, process.parent())


def _is(process: psutil.Process, condition: Callable[[psutil.Process], bool]) -> bool:
    """Whether it holds of a process that is still there."""
    try:
        return condition(process)
    except psutil.NoSuchProcess:
        return False


def take_memory(process: psutil.Process) -> bool:
    """Whatever it asks the system for from now on, it gets no more. False where that cannot be had."""
    if not hasattr(process, "rlimit"):
        return False
    size = process.memory_info().vms
    try:
        process.rlimit(psutil.RLIMIT_AS, (size, size))
    except psutil.AccessDenied:
        return False
    return True


def _stop(process: psutil.Process) -> bool:
    process.suspend()
    return True


def _runs(program: str, process: psutil.Process | None) -> bool:
    # As an argument of its own: Spark's launcher has the daemon's name among its settings.
    return process is not None and program in process.cmdline()


def _spark_home_in(directory: Path) -> Path:
    """A Spark home of links to the real one: executors of a local cluster leave their directories in it."""
    home = directory / "spark"
    real = Path(os.environ.get("SPARK_HOME") or pyspark.__path__[0])
    home.mkdir(exist_ok=True)
    for entry in real.iterdir():
        link = home / entry.name
        if entry.name != "work" and not link.exists():
            link.symlink_to(entry)
    return home
