"""A Spark cluster of its own on this machine: a master and workers, each a process, gone when their driver is.

The paper's virtual machines are the workers here. A worker is a Spark slot count and some memory; Spark starts one
executor on it when a session asks for one. Everything listens on the loopback address, on ports the system picks, and
keeps its files in one temporary directory.

Nobody but the driver needs the cluster, so it must not outlive it, however the driver ends. A guardian sees to that: a
shell that waits at the end of a pipe whose other end only the driver holds. The kernel closes the pipe when the driver
dies of anything, kill -9 included; the guardian then ends its process group, which the master, the workers and their
executors belong to. (`PR_SET_PDEATHSIG` would end a worker when the *thread* that started it ends, and is Linux only; a
sweep at the next start would come too late for who never starts again.)
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from types import TracebackType

import polars
import psutil
import pyspark

from holdfast.errors import ClusterError
from holdfast.spark.java import ensure_java

__all__ = ["HOST", "Cluster", "Worker", "executor_ids"]

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_MASTER_IS_UP = re.compile(r"Starting Spark master at (spark://\S+)")
_WORKER_IS_UP = re.compile(r"Successfully registered with master")
_ANY_UI_PORT = ("--webui-port", "0")  # it cannot be turned off; it is bound to the loopback address
_SECONDS_TO_START = 60.0
_SECONDS_TO_END = 5.0
_PAUSE_SECONDS = 0.02
_LOG_LINES = 5
_LONGEST_PARENT = 30  # sockets of Python workers are made below it, and a socket's path may have about 100 bytes

_GUARDIAN = """\
trap '' HUP INT TERM
read -r nothing
kill -TERM 0
sleep 3
rm -rf -- "$1"
sleep 2  # Python workers, which have groups of their own, may have written in between
rm -rf -- "$1"
kill -KILL 0
"""
# Small processes that start often: the first compiler tier, one collector thread.
_DAEMON_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# A session outlives any number of killed executors; jobs come from sessions only.
_MASTER_OPTIONS = "-Dspark.deploy.maxExecutorRetries=-1 -Dspark.master.rest.enabled=false"
_WORKER_OPTIONS = "-Dspark.worker.cleanup.enabled=true -Dspark.decommission.enabled=true"
_LOGGING = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
logger.deploy.name = org.apache.spark.deploy
logger.deploy.level = info
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n
"""


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker as it was seen: `up` once the master knows it, with the executors it runs now."""

    id: str
    pid: int
    cores: int
    up: bool
    executors: tuple[str, ...] = ()


class _Daemon:
    """A process of the cluster, with its log. It may be asked for anything from any thread."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path, sign: re.Pattern[str]) -> None:
        self.name = name
        self.process = process
        self._log = log
        self._sign = sign
        self._said: str | None = None

    def said(self) -> str | None:
        """What it wrote when it was ready; None before."""
        if self._said is None:
            found = self._sign.search(self._log.read_text(errors="replace"))
            self._said = found[found.re.groups] if found else None
        return self._said

    def alive(self) -> bool:
        return self.process.poll() is None

    def wait(self, until: float) -> str:
        """Wait until it is ready; an error if it ends before, or is not ready in time."""
        while (said := self.said()) is None:
            if not self.alive() or time.monotonic() > until:
                state = "takes too long to start" if self.alive() else f"ended with code {self.process.poll()}"
                raise ClusterError(
                    f"{self.name} of the cluster {state}:\n{self.tail()}",
                    cure="see the log lines above; free memory, or give fewer workers or a smaller `memory`",
                )
            time.sleep(_PAUSE_SECONDS)
        return said

    def tail(self) -> str:
        return "\n".join(f"  {line}" for line in self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:])


class Cluster:
    """A master and any number of workers with `cores` slots and `memory` each. A context manager; the master runs
    inside of it."""

    def __init__(self, cores: int = 2, memory: str = "1g") -> None:
        if cores < 1:
            raise ClusterError(f"a worker with {cores} cores", cure="give a worker at least one core")
        if not re.fullmatch(r"[1-9][0-9]*[mg]", memory):
            raise ClusterError(f"memory of '{memory}'", cure="write it as Spark does, e.g. '512m' or '1g'")
        self.cores = cores
        self.memory = memory
        self.master = ""
        """The URL for `open_spark`, once the cluster runs."""
        self.directory = Path()
        self._guardian: subprocess.Popen[bytes] | None = None
        self._master: _Daemon | None = None
        self._workers: dict[str, _Daemon] = {}
        self._started = 0
        self._secret = secrets.token_hex(32)
        self._lock = threading.Lock()

    def __enter__(self) -> Cluster:
        ensure_java()
        self.directory = Path(tempfile.mkdtemp(prefix="hf-cluster-", dir=_short_temporary()))
        try:
            for name in ("conf", "log", "work", "local"):
                (self.directory / name).mkdir()
            (self.directory / "conf" / "log4j2.properties").write_text(_LOGGING)
            # The directory is nobody else's (mkdtemp), and arguments and environments of processes are not as private.
            lines = "".join(f"{name} {value}\n" for name, value in self.secrets().items())
            (self.directory / "conf" / "spark-defaults.conf").write_text(lines)
            self._guardian = subprocess.Popen(
                ["/bin/sh", "-c", _GUARDIAN, "holdfast-cluster", str(self.directory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,
            )
            self._master = self._spawn("master", _MASTER, _MASTER_IS_UP, "--host", HOST, "--port", "0", *_ANY_UI_PORT)
            self.master = self._master.wait(time.monotonic() + _SECONDS_TO_START)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add_worker(self, *, wait: bool = True) -> str:
        """Start a worker and return its id: when the master knows it, or without `wait` at once."""
        with self._lock:
            if not self.master:
                raise ClusterError(
                    "the cluster does not run", cure="use it as a context manager: `with Cluster() as …`"
                )
            self._started += 1
            name = f"worker-{self._started}"
            work = self.directory / "work" / name
            worker = self._workers[name] = self._spawn(
                name, _WORKER, _WORKER_IS_UP, "--host", HOST, "--port", "0", *_ANY_UI_PORT,
                "--cores", str(self.cores), "--memory", self.memory, "--work-dir", str(work), self.master,
            )  # fmt: skip
        if wait:
            worker.wait(time.monotonic() + _SECONDS_TO_START)
        return name

    def wait_for(self, names: Iterable[str]) -> None:
        """Wait until the master knows these workers; an error if one of them does not start."""
        with self._lock:
            starting = [self._workers[name] for name in names]
        until = time.monotonic() + _SECONDS_TO_START
        for worker in starting:
            worker.wait(until)

    def remove_worker(self, name: str) -> None:
        """End a worker and its executors. One that has ended by itself, or is not known, is none any more."""
        with self._lock:
            worker = self._workers.pop(name, None)
        if worker is not None:
            _end([worker.process])
            shutil.rmtree(self.directory / "work" / name, ignore_errors=True)

    def workers(self) -> list[Worker]:
        """The workers that live, oldest first, with the executors that they run."""
        with self._lock:
            for name, worker in list(self._workers.items()):
                if not worker.alive():
                    log.warning("%s of the cluster ended with code %s", name, worker.process.poll())
                    del self._workers[name]
                    self._end_orphans(name)
            living = list(self._workers.items())
        return [
            Worker(name, worker.process.pid, self.cores, worker.said() is not None, executor_ids(worker.process.pid))
            for name, worker in living
        ]

    def secrets(self) -> dict[str, str]:
        """What a session on this cluster must set: no one else may run anything on it."""
        return {"spark.authenticate": "true", "spark.authenticate.secret": self._secret}

    def python_environment(self) -> dict[str, str]:
        """What makes Python start faster on a worker. Where libraries were installed without bytecode, every process
        compiles them, for seconds: the first one leaves it to the others here."""
        if Path(cache_from_source(str(polars.__file__))).exists():
            return {}
        return {"PYTHONPYCACHEPREFIX": str(self.directory / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}

    def close(self) -> None:
        """End every process, and remove the directory."""
        with self._lock:
            self.master = ""
            daemons = [*self._workers.values(), *([self._master] if self._master else [])]
            self._workers.clear()
            self._master = None
        _end([daemon.process for daemon in daemons])
        guardian, self._guardian = self._guardian, None
        if guardian is not None:
            assert guardian.stdin is not None
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(guardian.pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
            guardian.stdin.close()
            guardian.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _end_orphans(self, name: str) -> None:
        """A machine that dies takes all with it. An executor notices that its worker died, but not while it starts."""
        assert self._guardian is not None
        home = self.directory / "work" / name
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError, PermissionError):
                if os.getpgid(process.pid) == self._guardian.pid and home in Path(process.cwd()).parents:
                    process.kill()

    def _spawn(self, name: str, program: str, sign: re.Pattern[str], *arguments: str) -> _Daemon:
        assert self._guardian is not None
        home = Path(pyspark.__path__[0])
        log = self.directory / "log" / name
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(home / "bin" / "spark-class"), program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.directory,
                env=self._environment(home),
                process_group=self._guardian.pid,
            )
        return _Daemon(name, process, log, sign)

    def _environment(self, home: Path) -> dict[str, str]:
        """The user's environment, but nothing of the user's Spark: this cluster is Holdfast's own."""
        users = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
        return users | {
            "SPARK_HOME": str(home),
            "SPARK_CONF_DIR": str(self.directory / "conf"),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_PUBLIC_DNS": HOST,
            "SPARK_LOCAL_DIRS": str(self.directory / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _DAEMON_OPTIONS,
            "SPARK_MASTER_OPTS": _MASTER_OPTIONS,
            "SPARK_WORKER_OPTS": _WORKER_OPTIONS,
        }


def executor_ids(pid: int) -> tuple[str, ...]:
    """The ids of the executors that the worker with this process id runs."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children():
            with contextlib.suppress(psutil.NoSuchProcess, ValueError):
                words = child.cmdline()
                if _EXECUTOR in words:
                    found.append(words[words.index("--executor-id") + 1])
    return tuple(found)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End processes and all that they started: politely, then not. Returns when all are gone."""
    started: list[psutil.Process] = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.poll() is None:
                started += psutil.Process(process.pid).children(recursive=True)
                process.terminate()
    until = time.monotonic() + _SECONDS_TO_END
    for process in processes:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    _, left = psutil.wait_procs(started, timeout=max(0.5, until - time.monotonic()))
    for child in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(left, timeout=_SECONDS_TO_END)


def _short_temporary() -> str:
    usual = tempfile.gettempdir()
    return usual if len(usual) <= _LONGEST_PARENT else "/tmp"
