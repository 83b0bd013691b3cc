"""The meta store decides exactly-once: leases with fencing, plans by the first writer, commits once and in order."""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa

from holdfast.errors import AlreadyRunningError, HoldfastError, LeaseLostError, UnknownVersionError
from holdfast.meta import LeaseHolder, MetaStore
from holdfast.meta.sql_tables import info
from postgres import fresh_url
from stored_texts import commit_epoch, plan_epoch, plan_text, save_shape, text

PIPELINE = "p"


@pytest.fixture
def store(where):
    opened = MetaStore(where, sync=False)
    yield opened
    opened.close()


@pytest.fixture
def lease(store):
    return store.acquire(PIPELINE, "me", now=0.0, seconds=30.0)


def commit(store, lease, epoch, **options):
    plan_epoch(store, lease, epoch, plan_text({"epoch": epoch}), 1.0)
    return commit_epoch(store, lease, epoch, text({"done": epoch}), 2.0, **options)


def test_the_first_plan_of_an_epoch_wins(store, lease):
    assert plan_epoch(store, lease, 1, plan_text({"slices": [1]}), 1.0) == text({"slices": [1]})
    assert plan_epoch(store, lease, 1, plan_text({"slices": [2]}), 2.0) == text({"slices": [1]})
    assert [item.plan for item in store.planned(PIPELINE)] == [text({"slices": [1]})]


def test_an_epoch_is_committed_once(store, lease):
    plan_epoch(store, lease, 1, plan_text({}), 1.0)
    assert commit_epoch(store, lease, 1, text({"first": True}), 2.0) is True
    assert commit_epoch(store, lease, 1, text({"first": False}), 3.0) is False
    last = store.last_commit(PIPELINE)
    assert last is not None
    assert (last.epoch, last.record, last.committed_at) == (1, text({"first": True}), 2.0)
    assert store.planned(PIPELINE) == []


def test_epochs_are_committed_in_their_order(store, lease):
    commit(store, lease, 1)
    plan_epoch(store, lease, 2, plan_text({}), 1.0)
    plan_epoch(store, lease, 3, plan_text({}), 1.0)
    with pytest.raises(HoldfastError, match="cannot follow") as caught:
        commit_epoch(store, lease, 3, text({}), 2.0)
    assert caught.value.epoch == 3
    assert [item.epoch for item in store.planned(PIPELINE)] == [2, 3]
    assert commit_epoch(store, lease, 2, text({}), 2.0)
    assert commit_epoch(store, lease, 3, text({}), 2.0)


def test_an_epoch_that_was_not_planned_cannot_be_committed(store, lease):
    with pytest.raises(HoldfastError, match="not planned") as caught:
        commit_epoch(store, lease, 1, text({}), 2.0)
    assert caught.value.epoch == 1
    assert store.last_commit(PIPELINE) is None


def test_old_commits_are_forgotten_and_the_last_is_kept(store, lease):
    for epoch in range(1, 8):
        assert commit(store, lease, epoch, forget=[epoch - 3])
    assert [item.epoch for item in store.commits(PIPELINE)] == [7, 6, 5]
    last = store.last_commit(PIPELINE)
    assert last is not None
    assert last.epoch == 7
    assert commit_epoch(store, lease, 2, text({}), 9.0) is False, "a forgotten epoch stays committed"


def test_pipelines_do_not_see_one_another(store, lease):
    other = store.acquire("q", "me", 0.0, 30.0)
    commit(store, lease, 1)
    assert store.last_commit("q") is None
    assert commit(store, other, 1)
    assert store.pipelines() == []
    save_shape(store, lease, text({"operators": {}}))
    assert store.shape(PIPELINE) == text({"operators": {}})
    assert store.shape("q") is None
    assert store.pipelines() == [PIPELINE]


def test_a_lease_is_taken_once(store, lease):
    assert store.lease_holder(PIPELINE) == LeaseHolder(lease.token, "me", 30.0)
    with pytest.raises(AlreadyRunningError, match="me") as caught:
        store.acquire(PIPELINE, "you", now=29.0, seconds=30.0)
    assert caught.value.cure


@pytest.mark.parametrize("how", ["expired", "dead", "released"])
def test_a_lease_is_taken_over_when_it_is_free_and_the_old_holder_is_fenced(store, lease, how):
    plan_epoch(store, lease, 1, plan_text({"mine": True}), 1.0)
    if how == "released":
        store.release(lease)
    now = 31.0 if how == "expired" else 1.0
    new = store.acquire(PIPELINE, "you", now=now, seconds=30.0, dead_owner="me" if how == "dead" else None)
    assert new.token > lease.token
    for attempt in (
        lambda: plan_epoch(store, lease, 2, plan_text({}), 2.0),
        lambda: commit_epoch(store, lease, 1, text({}), 2.0),
        lambda: store.renew(lease, 2.0, 30.0),
        lambda: save_shape(store, lease, text({})),
    ):
        with pytest.raises(LeaseLostError) as caught:
            attempt()
        assert caught.value.cure
    assert store.last_commit(PIPELINE) is None
    assert [item.epoch for item in store.planned(PIPELINE)] == [1]
    store.release(lease)
    assert store.lease_holder(PIPELINE) == LeaseHolder(new.token, "you", now + 30.0), (
        "releasing a lost lease does nothing"
    )
    assert commit_epoch(store, new, 1, text({}), 3.0), "the new holder goes on with the plan of the old one"


def test_renewing_keeps_others_out(store, lease):
    store.renew(lease, now=25.0, seconds=30.0)
    with pytest.raises(AlreadyRunningError):
        store.acquire(PIPELINE, "you", now=50.0, seconds=30.0)
    assert store.acquire(PIPELINE, "you", now=56.0, seconds=30.0)


def test_of_many_who_try_at_once_one_gets_the_lease(where):
    MetaStore(where, sync=False).close()
    got: list[str] = []
    refused: list[str] = []
    barrier = threading.Barrier(6)

    def contend(owner: str) -> None:
        mine = MetaStore(where, sync=False)
        barrier.wait()
        try:
            mine.acquire(PIPELINE, owner, now=0.0, seconds=30.0)
            got.append(owner)
        except AlreadyRunningError:
            refused.append(owner)
        finally:
            mine.close()

    threads = [threading.Thread(target=contend, args=(f"host-{i}",)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1
    assert len(refused) == 5


def test_what_was_committed_is_there_after_opening_again(where):
    store = MetaStore(where)
    lease = store.acquire(PIPELINE, "me", 0.0, 30.0)
    commit(store, lease, 1)
    plan_epoch(store, lease, 2, plan_text({"next": True}), 1.0)
    store.close()
    again = MetaStore(where)
    last = again.last_commit(PIPELINE)
    assert last is not None
    assert last.record == text({"done": 1})
    assert [item.plan for item in again.planned(PIPELINE)] == [text({"next": True})]
    again.close()


@pytest.mark.parametrize("key", ["store", "position"])
def test_a_store_of_another_version_is_refused(where, key):
    store = MetaStore(where, sync=False)
    with store.writing() as connection:
        connection.execute(info.update().where(info.c.key == key).values(value="99"))
    store.close()
    with pytest.raises(UnknownVersionError, match=f"{key} version 99") as caught:
        MetaStore(where)
    assert caught.value.cure


@pytest.mark.parametrize(
    "content", [b"this is no database, but it is long enough to look like one" * 40, b"\x00" * 4096]
)
def test_garbage_in_place_of_the_database_is_refused(tmp_path, content):
    (tmp_path / "meta.db").write_bytes(content)
    with pytest.raises(UnknownVersionError, match="not a Holdfast store") as caught:
        MetaStore(tmp_path)
    assert caught.value.cure
    assert (tmp_path / "meta.db").read_bytes() == content, "it is left as it is"


def test_a_database_of_somebody_else_is_refused(postgresql):
    url = fresh_url(postgresql)
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE holdfast (anchor text)")
    with pytest.raises(UnknownVersionError, match="not a Holdfast store"):
        MetaStore(url)


def test_the_identity_is_the_same_for_all_who_ask_at_once(where):
    MetaStore(where, sync=False).close()
    found = []
    barrier = threading.Barrier(4)

    def ask():
        mine = MetaStore(where, sync=False)
        barrier.wait(10)
        found.append(mine.identity())
        mine.close()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
