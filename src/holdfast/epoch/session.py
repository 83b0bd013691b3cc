"""The Spark session that epochs run in, set up for many small jobs of Python tasks.

Spark's defaults suit few large queries. An epoch is the opposite: two short stages of Python workers, several
times a second. `open_session` starts Spark so that such a job costs as little as possible, workers can import
Holdfast, and the terminal stays quiet; `close_session` ends every process it started.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import psutil
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from holdfast.epoch.classes import archive_options
from holdfast.epoch.daemon import ONE_THREAD
from holdfast.epoch.java import ensure_java

__all__ = [
    "close_session",
    "import_roots",
    "is_lost",
    "kill_python_workers",
    "on_this_machine",
    "open_session",
    "slots",
]

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_LOGGING = Path(__file__).with_name("log4j2.properties")
_LONGEST_SOCKET_DIR = 50  # a Unix socket's path may have about 100 bytes, and Spark's file name takes 42
_SECONDS_TO_END = 10.0
_ON_THIS_MACHINE = ("local", "spark://127.0.0.1:", "spark://localhost:")
_TASK_ATTEMPTS = 4  # Spark's own default is one on a local master: a killed Python worker would fail the job

# Code generation and the optimising compiler pay for large queries. An epoch moves a few blobs, its work is
# done in Python, and its plan is a new one every time: Java has to plan and schedule quickly, from the start.
# Median `collect` of an idle two-stage epoch, sessions taking turns on a 2-core machine busy with other work.
# Run 1, epochs 41-80 / 81-120: with neither 137 / 153 ms, first compiler tier only 89 / 96 ms. Run 2, epochs
# 41-80: first tier 94 ms, no code generation 116 ms, both 72 ms. Longer runs were not compared. A session
# whose own JVM queries are heavy should set both back through `config`.
_FOR_SMALL_JOBS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.unix.domain.socket.enabled": "true",  # cheaper than TCP
    "spark.python.daemon.module": "holdfast.epoch.daemon",
}
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1"
_SECRET = re.compile(r"secret|password|token|credential", re.IGNORECASE)
_SETTINGS = {
    **_FOR_SMALL_JOBS,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": f"{_JAVA_OPTIONS} -Dlog4j2.configurationFile={_LOGGING.as_uri()}",
    "spark.executor.extraJavaOptions": _JAVA_OPTIONS,
}


def open_session(
    master: str | None = None,
    *,
    app: str,
    config: Mapping[str, str] | None = None,
    slots: int | None = None,
    java: str | None = None,
) -> SparkSession:
    """Start Spark and return its session.

    Without `master`, Spark runs on this machine with `slots` tasks at a time, by default two per core: one
    epoch is assembled while the next one is read. `config` has the last word over every setting made here. `java`
    are further options of Java, by default those that make it use the archive of `epoch.classes`, if there is one.

    A process has one session: while one is open, it is returned as it is. Changes `JAVA_HOME` and, for a
    master on this machine, `PYSPARK_PYTHON` in the environment of the process.
    """
    if master is not None and slots is not None:
        raise ValueError("slots are counted by the master: give one of the two, master or slots")
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    ensure_java()
    where = master or f"local[{slots or 2 * _cores()},{_TASK_ATTEMPTS}]"
    settings = {"spark.app.name": app, **_SETTINGS, **_worker_environment()}
    settings["spark.driver.extraJavaOptions"] += (
        f" {archive_options(Path(os.environ['JAVA_HOME'])) if java is None else java}"
    )
    if where.startswith(_ON_THIS_MACHINE):
        os.environ["PYSPARK_PYTHON"] = sys.executable
        workspace = _Workspace.make()
        settings |= _local_settings(workspace)
        # A Java process that is killed leaves temporary files of its own, e.g. native libraries.
        settings["spark.driver.extraJavaOptions"] += f' -Djava.io.tmpdir="{workspace}"'
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if where.startswith("local"):
        settings["spark.authenticate"] = "true"  # Spark makes a secret of its own for the session
    settings |= {"spark.master": where, **(config or {})}
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        _start_java({key: value for key, value in settings.items() if not _SECRET.search(key)})
        return builder.getOrCreate()
    except BaseException:
        _end_java()
        raise


def _start_java(settings: Mapping[str, str]) -> None:
    """Start Java with these settings as its arguments, which everybody on the machine can read."""
    SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(settings.items())))


def slots(spark: SparkSession) -> int:
    """How many tasks run at a time, as far as the session can tell; 0 where it cannot (Spark Connect)."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except (PySparkException, AttributeError):
        return 0


def on_this_machine(spark: SparkSession) -> bool:
    """Whether all tasks run here, as far as the session can tell."""
    try:
        return (spark.sparkContext.master or "").startswith(("local", "spark://127.0.0.1", "spark://localhost"))
    except (PySparkException, AttributeError):
        return False


def is_lost(spark: SparkSession) -> bool:
    """Whether the Java process of the session has died, as far as can be told: then it is of no use any more."""
    java: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    return java is not None and java.poll() is not None


def kill_python_workers(*, and_their_parent: bool) -> None:
    """Kill the Python workers of a session whose tasks run in its own Java process; Spark starts new ones. The process
    that forks them takes seconds to start again: it is killed if it is stopped itself, or if that is asked for.
    Workers of executors are killed by Spark, which knows where they are."""
    java: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    context = SparkContext._active_spark_context
    if java is None or context is None or not str(context.master).startswith("local"):
        return
    for process in _descendants(java.pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            forks = process.ppid() == java.pid
            if not forks or and_their_parent or process.status() == psutil.STATUS_STOPPED:
                process.kill()


def close_session(spark: SparkSession, *, patience: float = _SECONDS_TO_END) -> None:
    """Stop Spark, and return when its Java process, after `patience` seconds by force, and all workers have ended."""
    if not is_lost(spark):
        spark.stop()
    _end_java(patience)


def _end_java(patience: float = _SECONDS_TO_END) -> None:
    """End the Java process, which `SparkSession.stop` leaves running, and everything it started."""
    gateway = SparkContext._gateway
    SparkContext._gateway = None
    SparkContext._jvm = None
    java: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if gateway is not None and java is not None:
        started = _descendants(java.pid)
        with contextlib.suppress(Exception):  # the other side may be gone already
            gateway.shutdown()
        if java.stdin is not None:
            java.stdin.close()  # the sign to exit that Java also gets when this process is killed
        try:
            java.wait(patience)
        except subprocess.TimeoutExpired:
            java.kill()
            java.wait()
        _, left = psutil.wait_procs(started, timeout=_SECONDS_TO_END)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    _Workspace.discard()


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _worker_environment() -> dict[str, str]:
    """What Python workers, also those of executors on other machines, need in their environment."""
    variables = {**ONE_THREAD, "PYTHONPATH": os.pathsep.join(import_roots())}
    return {f"spark.executorEnv.{name}": value for name, value in variables.items()}


def import_roots() -> list[str]:
    """Where this process imports from, Holdfast's own root first; without what every interpreter adds."""
    own = {Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)}
    entries = [Path(entry or os.curdir).resolve() for entry in sys.path]
    users = [entry for entry in entries if entry.exists() and own.isdisjoint(entry.parents)]
    return list(dict.fromkeys(str(root) for root in (_PACKAGE_ROOT, *users)))


def _local_settings(workspace: Path) -> dict[str, str]:
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(workspace),
        "spark.python.unix.domain.socket.dir": str(workspace),
        "spark.sql.warehouse.dir": str(workspace / "warehouse"),
    }


class _Workspace:
    """The directory for Spark's shuffle files and sockets, removed with the session.

    A process that is killed cannot remove its own; a lock, which dies with the process, tells the next one
    that it may.
    """

    _prefix = "holdfast-spark-"
    _current: tuple[Path, IO[str]] | None = None

    @classmethod
    def make(cls) -> Path:
        cls.discard()
        parent = cls._parent()
        cls._sweep(parent)
        path = Path(tempfile.mkdtemp(prefix=cls._prefix, dir=parent))
        draft = path / "draft"
        lock = draft.open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        draft.rename(path / "lock")  # appears locked: a sweep never sees it free
        cls._current = (path, lock)
        return path

    @classmethod
    def discard(cls) -> None:
        if cls._current is not None:
            path, lock = cls._current
            cls._current = None
            shutil.rmtree(path, ignore_errors=True)
            lock.close()

    @classmethod
    def _parent(cls) -> Path:
        usual = tempfile.gettempdir()
        return Path(usual if len(usual) <= _LONGEST_SOCKET_DIR - len(cls._prefix) else "/tmp")

    @classmethod
    def _sweep(cls, parent: Path) -> None:
        for path in parent.glob(f"{cls._prefix}*/lock"):
            with contextlib.suppress(OSError), path.open() as lock:  # held, gone, or somebody else's
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)
