"""The pool: what the policy decides, and that the pool does it, with workers and executors that are only made up."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest

from holdfast.errors import ClusterError
from holdfast.scale.cluster import Worker
from holdfast.scale.pool import Moves, Pool, PoolPolicy


def worker(n: int, *executors: str, up: bool = True) -> Worker:
    return Worker(f"worker-{n}", 1000 + n, 2, up, executors)


# What is decided.


def test_the_pool_is_filled_to_its_size() -> None:
    policy = PoolPolicy(used=1, size=2)
    assert policy.next([worker(1, "0")], now=0.0) == Moves(start=2)


def test_workers_that_are_still_starting_are_not_started_twice() -> None:
    policy = PoolPolicy(used=1, size=2)
    assert policy.next([worker(1, "0"), worker(2, up=False)], now=0.0) == Moves(start=1)


def test_the_pool_is_refilled_after_the_session_got_its_executors_and_not_before() -> None:
    policy = PoolPolicy(used=1, size=1)
    policy.acquire(1, now=0.0)
    assert policy.next([worker(1, "0"), worker(2)], now=0.0) == Moves()
    policy.serving = True
    assert policy.next([worker(1, "0"), worker(2, "1")], now=0.1) == Moves()
    policy.serving = False
    assert policy.next([worker(1, "0"), worker(2, "1")], now=0.2) == Moves(start=1)


def test_what_the_pool_cannot_serve_is_started_at_once() -> None:
    policy = PoolPolicy(used=1, size=1)
    policy.acquire(3, now=0.0)
    assert policy.next([worker(1, "0"), worker(2)], now=0.0) == Moves(start=2)


def test_a_pool_of_none_stays_empty() -> None:
    policy = PoolPolicy(used=1, size=0)
    policy.acquire(1, now=0.0)
    assert policy.next([worker(1, "0"), worker(2, "1")], now=1.0) == Moves()


def test_after_many_requests_the_pool_is_larger_for_a_minute_and_then_shrinks() -> None:
    policy = PoolPolicy(used=1, size=1)
    policy.acquire(3, now=0.0)
    busy = [worker(n, str(n)) for n in range(4)]
    assert policy.next(busy, now=1.0) == Moves(start=3)
    full = [*busy, worker(5), worker(6), worker(7)]
    assert policy.next(full, now=59.0) == Moves()
    assert policy.next(full, now=61.0) == Moves(end=("worker-6", "worker-7"))


def test_released_workers_go_to_the_pool_and_those_above_its_size_are_ended() -> None:
    policy = PoolPolicy(used=3, size=1)
    assert policy.release(2) == 2
    leaving = [worker(1, "0"), worker(2, "1"), worker(3, "2"), worker(4)]
    assert policy.next(leaving, now=0.0).end in {(), ("worker-4",)}, "never one that still has an executor"
    left = [worker(1, "0"), worker(2), worker(3), worker(4)]
    assert policy.next(left, now=1.0) == Moves(end=("worker-3", "worker-4"))


def test_the_session_keeps_one_worker() -> None:
    policy = PoolPolicy(used=2, size=1)
    assert policy.release(5) == 1
    assert policy.release(1) == 0
    assert policy.used == 1


def test_a_lost_worker_is_started_again() -> None:
    policy = PoolPolicy(used=2, size=1)
    assert policy.next([worker(1, "0"), worker(2, "1"), worker(3)], now=0.0) == Moves()
    assert policy.next([worker(1, "0"), worker(3, "2")], now=1.0) == Moves(start=1)


def test_an_idle_worker_that_the_session_is_owed_is_not_available() -> None:
    policy = PoolPolicy(used=2, size=1)
    assert policy.idle([worker(1, "0"), worker(2), worker(3), worker(4, up=False)]) == [worker(3)]


def test_workers_that_do_not_come_up_are_started_less_and_less_often() -> None:
    policy = PoolPolicy(used=1, size=1)
    starts = []
    numbers = itertools.count(2)
    for now in range(60):
        if policy.next([worker(1, "0")], float(now)).start:
            starts.append(now)
            policy.next([worker(1, "0"), worker(next(numbers), up=False)], now + 0.5)
    pauses = [b - a for a, b in itertools.pairwise(starts)]
    assert pauses == sorted(pauses)
    assert len(starts) <= 7
    policy.next([worker(1, "0"), worker(99, up=False)], 100.0)
    policy.next([worker(1, "0"), worker(99)], 101.0)
    assert policy.next([worker(1, "0")], 102.0) == Moves(start=1), "one that came up was lost: no reason to wait"


@pytest.mark.parametrize(("used", "size"), [(0, 1), (1, -1)])
def test_sizes_that_make_no_sense_are_refused(used: int, size: int) -> None:
    with pytest.raises(ClusterError, match="at least one worker"):
        PoolPolicy(used, size)


# What is done.


class FakeSpark:
    """Workers that are up at once, and executors that the master puts on them up to what was asked for."""

    def __init__(self, workers: int) -> None:
        self.homes: dict[str, str | None] = {f"worker-{n}": None for n in range(workers)}
        self.total = 0
        self.busy: dict[str, int] = {}
        self.warmed: list[str] = []
        self.killed: list[str] = []
        self.stuck = False
        self._names = itertools.count(workers)
        self._executors = itertools.count()
        self.lock = threading.RLock()

    def add_worker(self, *, wait: bool = True) -> str:
        with self.lock:
            name = f"worker-{next(self._names)}"
            self.homes[name] = None
            self._place()
            return name

    def remove_worker(self, name: str) -> None:
        with self.lock:
            del self.homes[name]

    def workers(self) -> list[Worker]:
        with self.lock:
            return [Worker(name, 1, 2, True, (at,) if at else ()) for name, at in self.homes.items()]

    def ids(self) -> frozenset[str]:
        with self.lock:
            return frozenset(at for at in self.homes.values() if at)

    def running(self) -> Mapping[str, int]:
        return self.busy

    def request(self, total: int) -> None:
        with self.lock:
            self.total = total
            self._place()

    def warm(self, name: str) -> None:
        self.warmed.append(name)

    def retire(self, ids: Iterable[str]) -> None:
        if not self.stuck:
            self.kill(ids)
            self.killed.clear()

    def kill(self, ids: Iterable[str]) -> None:
        with self.lock:
            for name in ids:
                self.killed.append(name)
                self.homes = {home: None if at == name else at for home, at in self.homes.items()}

    def _place(self) -> None:
        for home, at in self.homes.items():
            if at is None and len(self.ids()) < self.total:
                self.homes[home] = str(next(self._executors))


def serving(spark: FakeSpark, used: int, size: int) -> Pool:
    pool = Pool(spark, PoolPolicy(used, size))
    pool.attach(spark)
    return pool


def soon(true: Callable[[], bool]) -> bool:
    until = time.monotonic() + 10
    while not true() and time.monotonic() < until:
        time.sleep(0.01)
    return true()


def test_a_session_gets_workers_of_the_pool_and_the_pool_is_refilled() -> None:
    spark = FakeSpark(1)
    pool = serving(spark, used=1, size=2)
    try:
        assert soon(lambda: pool.available == 2)
        assert spark.ids() == {"0"}, "the pool is not the session's"
        assert pool.acquire(1) == ("worker-1",)
        assert spark.warmed == ["1"]
        assert pool.used == 2
        assert soon(lambda: pool.available == 2)
        assert len(spark.homes) == 4
    finally:
        pool.close()


def test_more_than_the_pool_has_is_started() -> None:
    spark = FakeSpark(1)
    pool = serving(spark, used=1, size=0)
    try:
        assert len(pool.acquire(3)) == 3
        assert pool.used == 4
        assert pool.available == 0
    finally:
        pool.close()


def test_the_least_busy_executors_are_released_first() -> None:
    spark = FakeSpark(3)
    pool = serving(spark, used=3, size=1)
    try:
        spark.busy = {"0": 1, "1": 0, "2": 2}
        assert pool.release(1) == ("worker-1",)
        assert spark.ids() == {"0", "2"}
        assert pool.used == 2
    finally:
        pool.close()


def test_an_executor_that_does_not_leave_is_ended() -> None:
    spark = FakeSpark(2)
    pool = serving(spark, used=2, size=0)
    try:
        spark.stuck = True
        pool.release(1, timeout=0.1)
        assert spark.killed == ["1"]
        assert soon(lambda: len(spark.homes) == 1), "there is no pool for its worker"
    finally:
        pool.close()


def test_workers_that_do_not_come_are_given_back_and_told() -> None:
    spark = FakeSpark(1)
    pool = serving(spark, used=1, size=0)
    spark.add_worker = lambda *, wait=True: ""  # type: ignore[method-assign]
    try:
        with pytest.raises(ClusterError, match="2 workers were requested, 0 started"):
            pool.acquire(2, timeout=0.2)
        assert pool.used == 1
        assert spark.total == 1
    finally:
        pool.close()


@pytest.mark.parametrize("n", [0, -1])
def test_nothing_is_not_a_number_of_workers(n: int) -> None:
    pool = Pool(FakeSpark(1), PoolPolicy(1, 1))
    with pytest.raises(ClusterError, match="at least one"):
        pool.acquire(n)


def test_a_pool_without_a_session_says_how_to_get_one() -> None:
    calls: Sequence[Callable[[Pool], object]] = [lambda pool: pool.acquire(1), lambda pool: pool.release(1)]
    for call in calls:
        with pytest.raises(ClusterError, match=r"cluster\.session\(\)"):
            call(Pool(FakeSpark(1), PoolPolicy(1, 1)))
