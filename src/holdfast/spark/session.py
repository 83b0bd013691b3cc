"""The Spark session that epochs run in, set up for many small jobs of Python tasks.

Spark's defaults suit few large queries. An epoch is the opposite: two short stages of Python workers, several
times a second. `open_spark` starts Spark so that such a job costs as little as possible, workers can import
Holdfast, and the terminal stays quiet; `close_spark` ends every process it started.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from holdfast.epoch.deadline import DETECTION
from holdfast.errors import ClusterError, gist
from holdfast.signals import undisturbed
from holdfast.spark.class_archive import archive_options
from holdfast.spark.executor_watch import Waiting, runs_in_driver
from holdfast.spark.gateway import end_java, is_java_lost, open_in_background
from holdfast.spark.java import ensure_java
from holdfast.spark.worker_daemon import ONE_THREAD

__all__ = [
    "close_spark",
    "import_roots",
    "is_lost",
    "log_file",
    "log_of",
    "open_spark",
    "parallelism",
    "shared_session",
    "slots",
]

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_LOGGING = Path(__file__).with_name("log4j2.properties")
_LOGGING_TO_FILE = Path(__file__).with_name("log4j2-file.properties")
_LOG_SETTING = "spark.holdfast.log"
_LOGS_KEPT = 9
_SHORTEST_DETECTION, _SHORTEST_FETCH = 3.0, 5.0
_LONGEST_SOCKET_DIR = 50  # a Unix socket's path may have about 100 bytes, and Spark's file name takes 42
_SECONDS_TO_END = 10.0
_ON_THIS_MACHINE = ("local", "spark://127.0.0.1:", "spark://localhost:")
_LEAST_SLOTS, _SLOTS_PER_CORE = 64, 16
"""On this machine. A slot costs nothing: what is shared is the CPU, and workers of crews hold their slots while they
wait."""
_TASKS_PER_CORE = 2
_TASK_ATTEMPTS = 4
"""Spark's own default is one on a local master: a killed Python worker would fail the job."""

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
    "spark.python.daemon.module": "holdfast.spark.worker_daemon",
    # A worker that stays is no straggler, and a second copy of it is of no use. A worker of a crew that has failed is
    # started again by Spark so many times, and then by another job.
    "spark.speculation": "false",
    "spark.task.maxFailures": str(_TASK_ATTEMPTS),
}
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1"
_SECRET = re.compile(r"secret|password|token|credential", re.IGNORECASE)
_SETTINGS = {
    **_FOR_SMALL_JOBS,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "1g",
    "spark.executor.extraJavaOptions": _JAVA_OPTIONS,
}


def open_spark(
    master: str | None = None,
    *,
    app: str,
    config: Mapping[str, str] | None = None,
    slots: int | None = None,
    java: str | None = None,
    log: Path | str | None = None,
    detection: float = DETECTION,
) -> SparkSession:
    """Start Spark and return its session.

    Without `master`, Spark runs on this machine with `slots` tasks at a time, by default enough for the crews of many
    fragments. `config` has the last word over every setting made here. `java`
    are further options of Java, by default those that make it use the archive of `epoch.classes`, if there is one.
    What Spark logs goes to the file `log`; without one, its errors go to the terminal. An executor on a cluster that is
    silent for `detection` seconds is given up.

    A process has one session: while one is open, it is returned as it is. Changes `JAVA_HOME` and, for a
    master on this machine, `PYSPARK_PYTHON` in the environment of the process.
    """
    if master is not None and slots is not None:
        raise ValueError("the master determines the slots: give either master or slots")
    running = _running()
    if running is not None:
        return running
    ensure_java()
    settings = {"spark.app.name": app, **_SETTINGS, **_worker_environment()}
    if master is None:
        where = f"local[{slots or max(_LEAST_SLOTS, _SLOTS_PER_CORE * _cores())},{_TASK_ATTEMPTS}]"
        # One epoch is assembled while the next one is read. Spark's own queries are cut into as many tasks, too.
        settings["spark.default.parallelism"] = str(slots or _TASKS_PER_CORE * _cores())
    else:
        where = master
    options = [_JAVA_OPTIONS, archive_options(Path(os.environ["JAVA_HOME"])) if java is None else java, _logging(log)]
    if log is not None:
        settings[_LOG_SETTING] = str(log)
    if where.startswith(_ON_THIS_MACHINE):
        os.environ["PYSPARK_PYTHON"] = sys.executable
        workspace = _Workspace.make()
        settings |= _local_settings(workspace)
        # A Java process that is killed leaves temporary files of its own, e.g. native libraries.
        options.append(f'-Djava.io.tmpdir="{workspace}"')
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if where.startswith("local"):
        settings["spark.authenticate"] = "true"  # Spark makes a secret of its own for a master in its own process
    if where.startswith("local-cluster"):
        settings["spark.authenticate.secret"] = secrets.token_hex(32)
    if not runs_in_driver(where):
        settings |= _noticing(detection)
    settings["spark.driver.extraJavaOptions"] = " ".join(options)
    settings |= {"spark.master": where, **(config or {})}
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)

    def start() -> SparkSession:
        # With these settings as Java's arguments, which everybody on the machine can read.
        shown = [(key, value) for key, value in settings.items() if not _SECRET.search(key)]
        SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(shown))
        return builder.getOrCreate()

    waiting = Waiting(f"Spark to start on {where}: does its master run, and is that its address?")
    try:
        return open_in_background(start, (lambda: None) if runs_in_driver(where) else waiting.look)
    except BaseException as error:
        with undisturbed():
            _Workspace.discard()
        if isinstance(error, PySparkException | Py4JError | OSError):
            why = "Java has given up" if isinstance(error, OSError) else gist(error)
            raise ClusterError(
                f"Spark does not start on {where}: {why}",
                cure="check that the master runs, that its address is correct, and that each --conf is as Spark"
                f" expects it{'' if log is None else f'; all of it is in {log}'}",
            ) from error
        raise


@contextlib.contextmanager
def shared_session(
    master: str | None, *, app: str, config: Mapping[str, str] | None, log: Path | None, detection: float
) -> Iterator[SparkSession]:
    """The session of this process, for callers that have not opened one: closed with the last of them, and not at all
    if somebody else has opened it."""
    spark = _Shared.enter(master, app=app, config=config, log=log, detection=detection)
    try:
        yield spark
    finally:
        _Shared.leave(spark)


class _Shared:
    _lock = threading.Lock()
    _users = 0
    _ours = False

    @classmethod
    def enter(cls, master: str | None, *, config: Mapping[str, str] | None, **settings: Any) -> SparkSession:
        with cls._lock:
            running = _running()
            if running is None:
                cls._ours = True
            elif not cls._users:
                cls._ours = False
            if running is not None and (config or master not in (None, _master_of(running))):
                raise ClusterError(
                    "this process already has a Spark session: no other can be opened on a master or with its own"
                    " settings",
                    cure="close it first with `holdfast.close_spark`, or leave `master` and `conf` out to use it",
                )
            spark = running or open_spark(master, config=config, **settings)
            cls._users += 1
            return spark

    @classmethod
    def leave(cls, spark: SparkSession) -> None:
        with cls._lock:
            cls._users -= 1
            if not cls._users and cls._ours:
                close_spark(spark)


def _master_of(spark: SparkSession) -> str | None:
    try:
        return str(spark.sparkContext.master)
    except (PySparkException, AttributeError):
        return None


def log_file(store: Path, name: str = "spark") -> Path | None:
    """Where Spark's log of a new run goes: into the store, of which the logs of the last runs are kept. None where the
    store cannot be written to, which its own error will say."""
    place = store.resolve() / "logs"
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.mkdir(mode=0o700, exist_ok=True)
        for old in sorted(place.glob(f"{name}-[0-9]*.log*"), key=lambda path: path.stat().st_mtime)[:-_LOGS_KEPT]:
            old.unlink(missing_ok=True)
    except OSError:
        return None
    return place / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"


def log_of(spark: SparkSession) -> str | None:
    """The file that Spark logs to, if the session was opened so."""
    try:
        return spark.conf.get(_LOG_SETTING, None)
    except (PySparkException, Py4JError):
        return None


def _logging(log: Path | str | None) -> str:
    if log is None:
        return f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"
    return f'-Dlog4j2.configurationFile={_LOGGING_TO_FILE.as_uri()} "-Dholdfast.log={log}"'


def _noticing(detection: float) -> dict[str, str]:
    """Have Spark notice within `detection` seconds that an executor is silent; its own limits are minutes. Not less
    than three: a collection of garbage takes Java a second, too."""
    part = max(detection, _SHORTEST_DETECTION) / 5
    return {
        "spark.executor.heartbeatInterval": _millis(part),
        "spark.network.timeoutInterval": _millis(part),
        "spark.storage.blockManagerHeartbeatTimeoutMs": _millis(3 * part),
        # A minute of beats without an answer, as by default: the driver may be the one that is slow.
        "spark.executor.heartbeat.maxFailures": str(max(60, round(60 / part))),
        # Who fetches from an executor that is gone does not wait for it longer than the driver does.
        "spark.shuffle.io.connectionTimeout": _millis(max(5 * part, _SHORTEST_FETCH)),
        "spark.shuffle.io.connectionCreationTimeout": _millis(5 * part),
        "spark.shuffle.io.maxRetries": "1",
        "spark.shuffle.io.retryWait": _millis(part),
    }


def _millis(seconds: float) -> str:
    return f"{round(1000 * seconds)}ms"


def _running() -> SparkSession | None:
    """The session of this process, whichever thread has opened it."""
    return SparkSession.getActiveSession() or SparkSession._instantiatedSession


def slots(spark: SparkSession) -> int:
    """How many tasks run at a time, as far as the session can tell; 0 where it cannot (Spark Connect)."""
    on_this_machine = re.match(r"local\[(\d+)[],]", _master_of(spark) or "")
    return parallelism(spark) if on_this_machine is None else int(on_this_machine[1])


def parallelism(spark: SparkSession) -> int:
    """How many tasks it makes sense to run at a time: the slots of a cluster, two per core of this machine; 0 where the
    session cannot tell (Spark Connect)."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except (PySparkException, AttributeError):
        return 0


def is_lost(spark: SparkSession) -> bool:
    """Whether the Java process of the session has died, as far as can be seen: then it is of no more use."""
    return is_java_lost()


def close_spark(spark: SparkSession, *, patience: float = _SECONDS_TO_END) -> None:
    """Stop Spark, and return when its Java process, after `patience` seconds by force, and all workers have ended."""
    with undisturbed():
        end_java(patience, stop=lambda: None if is_lost(spark) else spark.stop())
        _Workspace.discard()


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
            with contextlib.suppress(OSError), path.open() as lock:  # held, gone, or another user's
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)
