"""The database behind a simulated network: the meta store's code meets lost requests, lost answers, and no answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.errors import StoreUnreachableError
from holdfast.meta import MetaStore
from holdfast_lab.simulate.remote_database import RemoteDatabase
from holdfast_lab.simulate.scheduler import Process, Scheduler
from holdfast_lab.simulate.simulated_threads import SimulatedThreads


def in_process(work: Callable[[MetaStore, RemoteDatabase], None], until: float = 100.0) -> RemoteDatabase:
    scheduler = Scheduler(1)
    database = RemoteDatabase(scheduler)
    database.empty()
    process = Process("a", "box")
    threads = SimulatedThreads(scheduler, process)
    scheduler.spawn(process, lambda: work(database.meta(threads), database), "main")
    try:
        scheduler.run(until)
    finally:
        scheduler.close()
    return database


def rows(database: RemoteDatabase) -> int:
    return int(database.connection.execute("SELECT count(*) FROM leases").fetchone()[0])


def test_an_answer_that_is_lost_leaves_what_was_done() -> None:
    def work(meta: MetaStore, database: RemoteDatabase) -> None:
        database.lost_answers = 1.0
        with pytest.raises(StoreUnreachableError):
            meta.acquire("p", "me", 0.0, 10.0)

    database = in_process(work)
    assert (rows(database), database.doubts) == (1, 1)


def test_a_request_that_is_lost_was_not_done() -> None:
    def work(meta: MetaStore, database: RemoteDatabase) -> None:
        database.lost_requests = 1.0
        with pytest.raises(StoreUnreachableError):
            meta.acquire("p", "me", 0.0, 10.0)

    assert rows(in_process(work)) == 0


def test_a_connection_that_breaks_in_the_middle_of_a_transaction_takes_all_of_it() -> None:
    def work(meta: MetaStore, database: RemoteDatabase) -> None:
        lease = meta.acquire("p", "me", 0.0, 10.0)
        database.broken = 1.0
        with pytest.raises(StoreUnreachableError):
            meta.renew(lease, 100.0, 10.0)

    database = in_process(work)
    [(expires,)] = database.connection.execute("SELECT expires FROM leases").fetchall()
    assert expires == 10.0
    assert database.breaks > 0


def test_a_database_that_comes_back_in_time_was_only_slow() -> None:
    took: list[float] = []

    def work(meta: MetaStore, database: RemoteDatabase) -> None:
        began = database.scheduler.time
        database.away_until = began + 3.0
        meta.acquire("p", "me", 0.0, 10.0)
        took.append(database.scheduler.time - began)

    assert rows(in_process(work)) == 1
    assert 3.0 <= took[0] < 4.0


def test_a_host_that_is_cut_off_gives_up() -> None:
    def work(meta: MetaStore, database: RemoteDatabase) -> None:
        database.cut_off["box"] = 1_000.0
        with pytest.raises(StoreUnreachableError):
            meta.acquire("p", "me", 0.0, 10.0)

    assert rows(in_process(work)) == 0
