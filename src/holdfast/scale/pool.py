"""The pool of workers that are up before they are needed, and the cluster whose session grows and shrinks with it.

A machine takes long to get, so the pool asks for it before anybody needs it: `size` workers are up and idle. `acquire`
hands some of them to the session, which costs the start of an executor and no more; then the pool is refilled, in the
background. A worker that dies is replaced from the pool too: Spark starts the lost executor on an idle worker, and the
pool starts a worker for the one it lost.

While requests come in quick succession the pool is kept as large as what was lately asked for, and shrinks back to
`size` when they have become rare. `PoolPolicy` decides this; `Pool` does it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

from pyspark import SparkContext
from pyspark.sql import SparkSession

from holdfast.epoch.deadline import DETECTION
from holdfast.errors import ClusterError
from holdfast.scale.cluster import Cluster, Worker
from holdfast.scale.executors import SparkExecutors, executor_settings
from holdfast.spark.session import close_spark, open_spark

__all__ = ["Moves", "OwnCluster", "Pool", "PoolPolicy"]

log = logging.getLogger(__name__)

_REMEMBER_SECONDS = 60.0
_LONGEST_PAUSE = 30.0
_LOOK_EVERY = 1.0
_WAIT_STEP = 0.02
_SECONDS_TO_LEAVE = 30.0


@dataclass(frozen=True, slots=True)
class Moves:
    """What to do next: so many workers to start, these to end."""

    start: int = 0
    end: tuple[str, ...] = ()


class PoolPolicy:
    """How many workers there should be, and which are too many. Knows neither processes nor the clock."""

    def __init__(self, used: int, size: int) -> None:
        """`used` workers are the session's; `size` more should be idle."""
        if used < 1 or size < 0:
            raise ClusterError(
                f"a cluster of {used} workers with a pool of {size}",
                cure="a session needs at least one worker; a pool has none or more",
            )
        self.used = used
        self.size = size
        self.serving = False
        """Whether a run is waiting for executors."""
        self._asked: deque[tuple[float, int]] = deque()
        self._starting: frozenset[str] = frozenset()
        self._failures = 0
        self._not_before = 0.0

    def acquire(self, n: int, now: float) -> None:
        """The session is given `n` more."""
        self.used += n
        self._asked.append((now, n))

    def release(self, n: int) -> int:
        """The session gives up to `n` back, and keeps at least one; how many that is."""
        given = min(n, self.used - 1)
        self.used -= given
        return given

    def spares(self, now: float) -> int:
        """How many workers should be idle: `size`, or what was asked for in the last minute if that is more."""
        while self._asked and self._asked[0][0] <= now - _REMEMBER_SECONDS:
            self._asked.popleft()
        return max(self.size, sum(n for _, n in self._asked)) if self.size else 0

    def idle(self, workers: Sequence[Worker]) -> list[Worker]:
        """The workers that can be handed out: up, without an executor, and not about to get one that the session is
        still owed. The newest come last."""
        owed = max(0, self.used - sum(1 for worker in workers if worker.executors))
        return [worker for worker in workers if worker.up and not worker.executors][owed:]

    def next(self, workers: Sequence[Worker], now: float) -> Moves:
        """What to do, seeing these workers. While the session waits for executors, only workers that it needs
        are started: on one machine, any other that starts would hold them up."""
        self._learn(workers, now)
        waiting = self.serving or sum(1 for worker in workers if worker.executors) < self.used
        missing = self.used + (0 if waiting else self.spares(now)) - len(workers)
        if missing >= 0 or waiting:
            return Moves(start=max(0, missing) if now >= self._not_before else 0)
        surplus = self.idle(workers)[missing:]
        return Moves(end=tuple(worker.id for worker in surplus))

    def _learn(self, workers: Sequence[Worker], now: float) -> None:
        """Workers that end before they are up are not started over and over at full speed."""
        failed = self._starting - {worker.id for worker in workers}
        if failed:
            self._failures += 1
            self._not_before = now + min(_LONGEST_PAUSE, 2.0**self._failures)
        elif any(worker.up and worker.id in self._starting for worker in workers):
            self._failures = 0
        self._starting = frozenset(worker.id for worker in workers if not worker.up)


class Workers(Protocol):
    """Where workers come from: the cluster, or what a test puts in its place."""

    def add_worker(self, *, wait: bool = True) -> str: ...
    def remove_worker(self, name: str) -> None: ...
    def workers(self) -> list[Worker]: ...


class Executors(Protocol):
    """The executors of a session: Spark's, or what a test puts in their place."""

    def ids(self) -> frozenset[str]: ...
    def running(self) -> Mapping[str, int]: ...
    def request(self, total: int) -> None: ...
    def warm(self, name: str) -> None: ...
    def retire(self, ids: Iterable[str]) -> None: ...
    def kill(self, ids: Iterable[str]) -> None: ...


class _Warming:
    """Warms executors as they come, each in a thread of its own."""

    def __init__(self, executors: Executors, before: frozenset[str]) -> None:
        self._executors = executors
        self._before = before
        self._threads: dict[str, threading.Thread] = {}

    def done(self) -> int:
        """How many new executors are ready for tasks."""
        here = self._executors.ids() - self._before
        for name in here - self._threads.keys():
            thread = threading.Thread(target=self._warm, args=(name,), name=f"warm-executor-{name}", daemon=True)
            self._threads[name] = thread
            thread.start()
        return sum(1 for name in here if not self._threads[name].is_alive())

    def _warm(self, name: str) -> None:
        try:
            self._executors.warm(name)
        except Exception as error:  # noqa: BLE001 - a cold executor is one too
            log.warning("executor %s was not warmed up: %s", name, error)


class Pool:
    """Workers for a session that runs. A background thread refills and shrinks it from `attach` to `close`."""

    def __init__(self, workers: Workers, policy: PoolPolicy, clock: Callable[[], float] = time.monotonic) -> None:
        self._workers = workers
        self._policy = policy
        self._clock = clock
        self._executors: Executors | None = None
        self._turn = threading.Lock()  # one acquire or release at a time
        self._known = threading.Lock()  # the policy's
        self._wake = threading.Event()
        self._closed = False
        self._keeper: threading.Thread | None = None

    @property
    def used(self) -> int:
        """How many workers the session has, or has been promised."""
        return self._policy.used

    @property
    def available(self) -> int:
        """How many workers are up and idle: `acquire` hands so many out at once."""
        with self._known:
            return len(self._policy.idle(self._workers.workers()))

    def attach(self, executors: Executors) -> None:
        """Serve a session: limit it to the workers that it has, and begin to fill the pool."""
        executors.request(self._policy.used)
        self._executors = executors
        self._closed = False
        self._keeper = threading.Thread(target=self._keep, name="worker-pool", daemon=True)
        self._keeper.start()

    def acquire(self, n: int, timeout: float = 60.0) -> tuple[str, ...]:
        """Give `n` more workers to the session, and return their ids when tasks run there at full speed.

        Takes the start of an executor and of its Python for those that are `available`; others are started first.
        """
        executors = self._serving(n)
        with self._turn:
            before = executors.ids()
            with self._known:
                self._policy.acquire(n, self._clock())
                self._policy.serving = True
                executors.request(self._policy.used)
            self._wake.set()
            try:
                warming = _Warming(executors, before)
                came = self._until(lambda: warming.done() >= n, timeout)
            finally:
                self._policy.serving = False
                self._wake.set()
            fresh = executors.ids() - before
            if not came:
                self._let_go(executors, sorted(fresh), n)
                raise ClusterError(
                    f"{n} workers were requested, {len(fresh)} started within {timeout:g} s; they were returned",
                    cure="check whether the machine has memory for more workers, or give a longer `timeout`",
                )
            return self._homes(fresh)

    def release(self, n: int, timeout: float = _SECONDS_TO_LEAVE) -> tuple[str, ...]:
        """Take up to `n` workers from the session, which keeps at least one; their ids, when they are idle.

        Executors with the fewest running tasks go first. They finish what they run; one that does not within `timeout`
        is ended, and Spark runs its tasks again. The workers go to the pool, or are ended where it has enough.
        """
        executors = self._serving(n)
        with self._turn:
            running = executors.running()
            leaving = sorted(executors.ids(), key=lambda name: (running.get(name, 0), -int(name)))
            leaving = leaving[: min(n, self._policy.used - 1)]
            homes = self._homes(leaving)
            self._let_go(executors, leaving, n)
            if not self._until(lambda: executors.ids().isdisjoint(leaving), timeout):
                executors.kill(executors.ids().intersection(leaving))
            self._wake.set()
            return homes

    def close(self) -> None:
        """Stop refilling. The workers stay; the cluster ends them."""
        self._closed = True
        self._wake.set()
        if self._keeper is not None:
            self._keeper.join()
            self._keeper = None
        self._executors = None

    def restart(self, policy: PoolPolicy) -> None:
        """Serve no run, and begin with another policy."""
        self.close()
        self._policy = policy

    def _serving(self, n: int) -> Executors:
        if n < 1:
            raise ClusterError(f"{n} workers", cure="ask for at least one")
        if self._executors is None:
            raise ClusterError(
                "the pool serves no session yet", cure="open the session with `cluster.session()`, not with its master"
            )
        return self._executors

    def _let_go(self, executors: Executors, leaving: Sequence[str], n: int) -> None:
        with self._known:
            self._policy.release(n)
            executors.request(self._policy.used)
        executors.retire(leaving)
        self._wake.set()

    def _homes(self, executors: Iterable[str]) -> tuple[str, ...]:
        wanted = set(executors)
        return tuple(worker.id for worker in self._workers.workers() if wanted.intersection(worker.executors))

    def _until(self, true: Callable[[], bool], seconds: float) -> bool:
        until = self._clock() + seconds
        while not true():
            if self._clock() >= until:
                return False
            time.sleep(_WAIT_STEP)
        return True

    def _keep(self) -> None:
        while not self._closed:
            try:
                self.tend()
            except Exception as error:  # noqa: BLE001 - a pool that is not filled now is filled later
                log.warning("the pool cannot be filled: %s", error)
            self._wake.wait(_LOOK_EVERY)
            self._wake.clear()

    def tend(self) -> None:
        """Look at the workers once, and start or end what the policy says."""
        with self._known:
            moves = self._policy.next(self._workers.workers(), self._clock())
        for _ in range(moves.start):
            self._workers.add_worker(wait=False)
        for name in moves.end:
            self._workers.remove_worker(name)


class OwnCluster:
    """A cluster on this machine with a pool, and the session that runs on it. A context manager."""

    def __init__(self, workers: int = 1, pool: int = 1, cores: int = 2, memory: str = "1g") -> None:
        self._size = (workers, pool)
        self._cluster = Cluster(cores, memory)
        self.pool = Pool(self._cluster, PoolPolicy(workers, pool))
        self._session: SparkSession | None = None

    @property
    def master(self) -> str:
        """The URL of the Spark master."""
        return self._cluster.master

    def workers(self) -> list[Worker]:
        """The running workers, including those of the pool."""
        return self._cluster.workers()

    def session(
        self,
        app: str = "holdfast",
        config: Mapping[str, str] | None = None,
        *,
        log: Path | None = None,
        detection: float = DETECTION,
    ) -> SparkSession:
        """The session on this cluster, opened when there is none; the pool serves it. Closed with the cluster."""
        if self._session is not None and self._is_open(self._session):
            return self._session
        if SparkContext._active_spark_context is not None:
            raise ClusterError(
                "this process has a Spark session that does not run on this cluster",
                cure="close it first with `holdfast.close_spark`: a process has one at a time",
            )
        self._start_workers()
        settings = executor_settings(self._cluster.cores, self._cluster.memory)
        settings |= {f"spark.executorEnv.{name}": value for name, value in self._cluster.python_environment().items()}
        settings |= self._cluster.secrets() | dict(config or {})
        self._session = open_spark(self.master, app=app, config=settings, log=log, detection=detection)
        self.pool.attach(SparkExecutors(self._session, self._cluster.cores))
        return self._session

    def __enter__(self) -> OwnCluster:
        self._cluster.__enter__()
        try:
            self._start_workers()
        except BaseException:
            self._cluster.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pool.close()
        try:
            if self._session is not None and self._is_open(self._session):
                close_spark(self._session)
        finally:
            self._cluster.close()

    def _is_open(self, session: SparkSession) -> bool:
        return session.sparkContext is SparkContext._active_spark_context

    def _start_workers(self) -> None:
        """Have exactly the workers that a session begins with: it takes every one that is free when it starts."""
        self.pool.restart(PoolPolicy(*self._size))
        now = [worker.id for worker in self._cluster.workers()]
        for name in now[self._size[0] :]:
            self._cluster.remove_worker(name)
        self._cluster.wait_for([self._cluster.add_worker(wait=False) for _ in range(self._size[0] - len(now))])
