"""PostgreSQL as the meta store when it is killed, cut off or not there: waits end, and what was committed stays."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import pytest

from holdfast.engine.lease import LeaseKeeper
from holdfast.errors import DeclarationError, HoldfastError, LeaseLostError, StoreUnreachableError
from holdfast.meta import Lease, MetaStore
from holdfast_lab.chaos.database_server import DatabaseServer
from holdfast_lab.chaos.loopback_proxy import LoopbackProxy
from postgres import fresh_url
from stored_texts import commit_epoch, commit_with, plan_epoch, plan_text, text

PIPELINE = "p"
SECONDS = 1.0
BOUND = 2 * max(2.0, SECONDS) + 3  # libpq waits at least two seconds for a connection; the rest is for a busy machine


@pytest.fixture
def proxy(postgresql: DatabaseServer) -> Iterator[LoopbackProxy]:
    with LoopbackProxy(postgresql.port) as made:
        yield made


@pytest.fixture
def url(postgresql: DatabaseServer) -> str:
    return f"{fresh_url(postgresql)}?timeout={SECONDS}"


@pytest.fixture
def direct(url: str) -> Iterator[MetaStore]:
    store = MetaStore(url, sync=False)
    yield store
    store.close()


@pytest.fixture
def through(postgresql: DatabaseServer, proxy: LoopbackProxy, url: str, direct: MetaStore) -> Iterator[MetaStore]:
    """The same store, reached through a network that can be cut."""
    store = MetaStore(url.replace(f":{postgresql.port}/", f":{proxy.port}/"), sync=False)
    yield store
    store.close()


def planned(store: MetaStore) -> Lease:
    lease = store.acquire(PIPELINE, "me", 0.0, 30.0)
    plan_epoch(store, lease, 1, plan_text({}), 1.0)
    return lease


# URLs


def test_without_the_driver_the_cure_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    for name in ("holdfast.meta.postgresql", "holdfast.connect.bounded_connection"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(HoldfastError, match="driver") as caught:
        MetaStore("postgresql://somebody@localhost/meta")
    assert caught.value.cure == "pip install 'holdfast[postgresql]'"


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("postgresql+asyncpg://somebody@localhost/meta", "not with 'postgresql\\+asyncpg'"),
        ("postgresql://somebody@localhost/meta?timeout=soon", "timeout=soon"),
        ("postgresql://somebody@localhost/meta?timeout=-1", "timeout=-1"),
        ("oracle://somebody@localhost/meta", "cannot be in oracle"),
        ("no url", "URL of the meta store"),
    ],
)
def test_a_url_that_cannot_work_is_refused(where: str, told: str) -> None:
    with pytest.raises(DeclarationError, match=told) as caught:
        MetaStore(where)
    assert caught.value.cure


def test_a_server_that_is_not_there_is_told_at_once_and_without_the_password() -> None:
    began = time.monotonic()
    with pytest.raises(StoreUnreachableError, match="cannot reach the meta store") as caught:
        MetaStore("postgresql://somebody:secret@127.0.0.1:1/meta")
    assert time.monotonic() - began < 3
    assert "secret" not in str(caught.value)


def test_a_user_who_may_make_no_tables_is_told_so(postgresql: DatabaseServer, url: str) -> None:
    with pytest.raises(HoldfastError, match="may not create tables") as caught:
        MetaStore(f"{url}&options=-csearch_path%3Dpg_catalog")
    assert "SCHEMA" in caught.value.cure


def test_options_of_the_user_stand_beside_ours(url: str) -> None:
    store = MetaStore(f"{url}&options=-cstatement_timeout%3D1234&application_name=mine", sync=False)
    with store.reading() as connection:
        said = [
            connection.exec_driver_sql(f"SHOW {name}").scalar_one()
            for name in ("statement_timeout", "application_name", "synchronous_commit", "transaction_isolation")
        ]
    assert said == ["1234ms", "mine", "off", "read committed"]
    store.close()


# a database that is away


def test_a_server_that_is_killed_loses_nothing_and_is_waited_for() -> None:
    with DatabaseServer() as server:
        store = MetaStore(f"{server.url}?timeout=20")
        lease = planned(store)
        assert commit_epoch(store, lease, 1, text({"first": True}), 2.0)
        server.kill()
        back = threading.Timer(0.5, server.start)
        back.start()
        assert store.last_epoch(PIPELINE) == 1, "it was away for half a second"
        plan_epoch(store, lease, 2, plan_text({}), 3.0)
        back.join()
        server.stop()
        server.start()
        assert commit_epoch(store, lease, 2, text({}), 4.0)
        store.close()


def test_a_server_that_is_killed_in_a_transaction_has_done_nothing_of_it() -> None:
    with DatabaseServer() as server:
        store = MetaStore(f"{server.url}?timeout={SECONDS}")
        lease = planned(store)

        def killing(_: object) -> None:
            server.kill()

        with pytest.raises(StoreUnreachableError) as caught:
            commit_with(store, lease, 1, text({}), 2.0, killing)
        assert caught.value.epoch == 1
        server.start()
        assert store.last_epoch(PIPELINE) == 0
        assert commit_epoch(store, lease, 1, text({}), 2.0)
        store.close()


@pytest.mark.parametrize("mode", ["drop", "hang"])
def test_a_partition_is_told_in_time_and_heals(proxy: LoopbackProxy, through: MetaStore, mode: str) -> None:
    lease = planned(through)
    proxy.cut(mode)  # type: ignore[arg-type]
    for attempt in (lambda: through.last_epoch(PIPELINE), lambda: commit_epoch(through, lease, 1, text({}), 2.0)):
        began = time.monotonic()
        with pytest.raises(StoreUnreachableError, match="cannot reach"):
            attempt()
        assert time.monotonic() - began < BOUND
    proxy.heal()
    assert commit_epoch(through, lease, 1, text({}), 2.0)


def test_a_commit_that_does_not_arrive_in_time_does_not_count(
    proxy: LoopbackProxy, through: MetaStore, direct: MetaStore
) -> None:
    """The server ends the transaction before the client gives up."""
    lease = planned(through)
    with pytest.raises(StoreUnreachableError, match="no answer within"):
        commit_with(through, lease, 1, text({"try": 1}), 2.0, lambda _: proxy.cut("hang"))
    proxy.heal()
    assert direct.last_commit(PIPELINE) is None
    assert commit_epoch(through, lease, 1, text({"try": 2}), 3.0)


def test_a_commit_that_arrives_when_its_sender_has_given_up_counts_once(
    postgresql: DatabaseServer, proxy: LoopbackProxy, url: str, direct: MetaStore
) -> None:
    patient = f"{url}&options=-cidle_in_transaction_session_timeout%3D0"
    through = MetaStore(patient.replace(f":{postgresql.port}/", f":{proxy.port}/"), sync=False)
    lease = planned(through)
    with pytest.raises(StoreUnreachableError, match="no answer within"):
        commit_with(through, lease, 1, text({"try": 1}), 2.0, lambda _: proxy.cut("hang"))
    assert direct.last_commit(PIPELINE) is None, "still on its way"
    arriving = threading.Timer(0.2, proxy.heal)
    arriving.start()
    assert commit_epoch(direct, lease, 1, text({"try": 2}), 3.0) is False, "who comes after it waits for it"
    last = direct.last_commit(PIPELINE)
    assert last is not None
    assert last.record == text({"try": 1})
    arriving.join()
    through.close()


def test_who_vanishes_in_a_transaction_does_not_keep_his_successor_out(
    postgresql: DatabaseServer, proxy: LoopbackProxy, url: str
) -> None:
    patient = url.replace(f"timeout={SECONDS}", "timeout=4")
    direct = MetaStore(patient, sync=False)
    through = MetaStore(patient.replace(f":{postgresql.port}/", f":{proxy.port}/"), sync=False)
    lease = planned(through)
    taken: list[Lease] = []

    def vanish(_: object) -> None:
        proxy.cut("hang")
        taken.append(direct.acquire(PIPELINE, "you", 31.0, 30.0))

    with pytest.raises(StoreUnreachableError):
        commit_with(through, lease, 1, text({}), 2.0, vanish)
    proxy.heal()
    with pytest.raises(LeaseLostError):
        commit_epoch(through, lease, 1, text({}), 2.0)
    assert commit_epoch(direct, taken[0], 1, text({}), 3.0)
    for store in (direct, through):
        store.close()


def test_a_lease_survives_a_database_that_is_away_for_less_than_it_lasts(
    proxy: LoopbackProxy, through: MetaStore, direct: MetaStore
) -> None:
    with LeaseKeeper(through, PIPELINE, time.time, seconds=9.0) as keeper:
        proxy.cut("drop")
        time.sleep(5.0)  # a renewal falls into it
        proxy.heal()
        keeper.renew()
        held = direct.lease_holder(PIPELINE)
        assert held is not None
        deadline = time.monotonic() + 10
        while (again := direct.lease_holder(PIPELINE)) == held:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert again is not None
        assert again.expires > held.expires
        keeper.renew()


def test_a_lease_that_could_not_be_renewed_is_told_when_it_has_expired(
    proxy: LoopbackProxy, through: MetaStore
) -> None:
    def run() -> None:
        with LeaseKeeper(through, PIPELINE, time.time, seconds=1.0) as keeper:
            proxy.cut("drop")
            for _ in range(1000):
                keeper.renew()
                time.sleep(0.01)

    with pytest.raises(StoreUnreachableError):
        run()
