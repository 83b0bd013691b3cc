"""The meta store when its process is killed, its disk is full, or two processes make it at the same moment."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from holdfast.errors import HoldfastError, StoreBusyError, StoreFullError
from holdfast.meta import Lease, MetaStore, transactions
from holdfast.meta.engine import BUSY_SECONDS
from stored_texts import commit_epoch, plan_epoch, plan_text, save_shape, text

PIPELINE = "p"
LONG = "x" * 2_000_000

DIE_AFTER_TABLE = """
import os, sys
from pathlib import Path
import sqlalchemy as sa
from holdfast.meta import MetaStore
from holdfast.meta.sql_tables import metadata

sa.event.listen(metadata.tables[sys.argv[2]], "after_create", lambda *_, **__: os._exit(9))
MetaStore(sys.argv[1] if "://" in sys.argv[1] else Path(sys.argv[1]))
"""

# The pause is between the look at which tables are missing and their making.
OPEN_AT_ONCE = """
import sys, time
from pathlib import Path
import sqlalchemy as sa
from holdfast.meta import MetaStore
from holdfast.meta.sql_tables import metadata

sa.event.listen(metadata, "before_create", lambda *_, **__: time.sleep(0.5))
print("ready", flush=True)
sys.stdin.readline()
MetaStore(sys.argv[1] if "://" in sys.argv[1] else Path(sys.argv[1])).close()
"""


def works(where: Path | str) -> bool:
    store = MetaStore(where)
    lease = store.acquire(PIPELINE, "me", 1e6, 30.0)
    plan_epoch(store, lease, 1, plan_text({}), 1.0)
    committed = commit_epoch(store, lease, 1, text({}), 2.0)
    store.close()
    return committed


def tables(where: Path | str) -> list[str]:
    url = f"sqlite:///{where / 'meta.db'}" if isinstance(where, Path) else where.replace("://", "+psycopg://")
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    return sa.inspect(engine).get_table_names()


@pytest.mark.parametrize("table", ["holdfast", "leases", "epochs"])
def test_a_first_start_that_was_killed_leaves_a_store_that_works(where: Path | str, table: str) -> None:
    killed = subprocess.run([sys.executable, "-c", DIE_AFTER_TABLE, where, table], check=False)
    assert killed.returncode == 9
    assert tables(where) == [], "all of the tables or none"
    assert works(where)


def test_a_store_without_versions_is_a_new_one(where: Path | str) -> None:
    store = MetaStore(where, sync=False)
    with store.writing() as connection:
        connection.exec_driver_sql("DELETE FROM holdfast")
        connection.exec_driver_sql("DROP TABLE epochs")
    store.close()
    assert works(where)


def test_first_starts_at_the_same_moment(where: Path | str) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN_AT_ONCE, where],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert works(where)


def limit(store: MetaStore, pages: int) -> None:
    """From now on the file may not grow beyond `pages`: SQLite then says what it says of a full disk."""

    def apply(connection: sqlite3.Connection, *_: object) -> None:
        connection.execute(f"PRAGMA max_page_count={pages}")

    sa.event.listen(store.engine, "checkout", apply)


def attempts(store: MetaStore, lease: Lease) -> dict[str, tuple[int | None, object]]:
    huge = Lease(PIPELINE, LONG, lease.token)
    return {
        "plan": (2, lambda: plan_epoch(store, lease, 2, plan_text({"slices": LONG}), 1.0)),
        "commit": (1, lambda: commit_epoch(store, lease, 1, text({"state": LONG}), 1.0)),
        "acquire": (None, lambda: store.acquire("q", LONG, 0.0, 30.0)),
        "fence": (2, lambda: plan_epoch(store, huge, 2, plan_text({}), 0.0)),
        "shape": (None, lambda: save_shape(store, lease, text({"operators": LONG}))),
    }


@pytest.mark.parametrize("what", ["plan", "commit", "acquire", "fence", "shape"])
def test_a_full_disk_is_told_and_changes_nothing(tmp_path: Path, what: str) -> None:
    store = MetaStore(tmp_path, sync=False)
    lease = store.acquire(PIPELINE, "me", 0.0, 30.0)
    plan_epoch(store, lease, 1, plan_text({"small": True}), 1.0)
    limit(store, 20)
    epoch, attempt = attempts(store, lease)[what]
    with pytest.raises(StoreFullError, match=r"write the meta store .*meta\.db: database or disk is full") as full:
        attempt()  # type: ignore[operator]
    assert full.value.epoch == epoch
    assert "free space" in full.value.cure
    assert store.last_commit(PIPELINE) is None
    assert [item.plan for item in store.planned(PIPELINE)] == [text({"small": True})]
    assert commit_epoch(store, lease, 1, text({}), 2.0), "what fits goes on"
    store.close()


FULL_AT_START = """
import resource, sys
from pathlib import Path
from holdfast.errors import StoreFullError
from holdfast.meta import MetaStore

_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), hard))
try:
    store = MetaStore(Path(sys.argv[1]))
    lease = store.acquire("p", "me", 0.0, 30.0)
    for renewal in range(1000):
        store.renew(lease, float(renewal), 30.0)
except StoreFullError as error:
    print(error)
"""


@pytest.mark.parametrize("size", [0, 2_000, 100_000])
def test_a_disk_that_fills_up_at_any_time(tmp_path: Path, size: int) -> None:
    """A limit of the kernel instead of SQLite's own: writes fail as they do where a quota is used up."""
    script = [sys.executable, "-c", FULL_AT_START, tmp_path / "store", str(size)]
    run = subprocess.run(script, capture_output=True, text=True, check=False)
    assert "cannot write the meta store" in run.stdout, run.stderr
    assert "cure: free space" in run.stdout
    assert works(tmp_path / "store"), "with space again, all is well"


def test_a_database_that_cannot_be_opened_is_not_called_garbage(tmp_path: Path) -> None:
    (tmp_path / "meta.db").mkdir()
    with pytest.raises(HoldfastError, match=r"cannot open the store .*meta\.db: unable to open") as caught:
        MetaStore(tmp_path)
    assert "restore" not in caught.value.cure


# a database that another process locks


@contextmanager
def locked(place: Path) -> Iterator[Callable[[], None]]:
    """Somebody else writes, until this is called."""
    other = sqlite3.connect(place / "meta.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield lambda: other.execute("COMMIT") and None
    finally:
        other.close()


def test_a_lock_is_waited_for_as_long_as_the_lease_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MetaStore(tmp_path, sync=False)
    lease = store.acquire(PIPELINE, "me", 0.0, 60.0)
    monkeypatch.setattr(transactions, "BUSY_SECONDS", 0.0)  # who has no lease gives up
    with locked(tmp_path) as free, ThreadPoolExecutor(1) as pool:
        planned = pool.submit(plan_epoch, store, lease, 1, plan_text({"slices": {}}), 1.0)
        with pytest.raises(StoreBusyError, match="another process locks the meta store") as busy:
            store.acquire("other", "me", 0.0, 60.0)
        assert "end the process that has it open" in busy.value.cure
        assert not planned.done()
        free()
        assert planned.result(30) == text({"slices": {}})
    assert commit_epoch(store, lease, 1, text({}), 2.0)
    store.close()


def test_a_lock_is_waited_for_no_longer_than_the_lease_holds(tmp_path: Path) -> None:
    store = MetaStore(tmp_path, sync=False)
    lease = store.acquire(PIPELINE, "me", 0.0, 60.0)
    store.renew(lease, 0.0, 0.2)
    began = time.monotonic()
    with locked(tmp_path), pytest.raises(StoreBusyError) as busy:
        plan_epoch(store, lease, 7, plan_text({"slices": {}}), 1.0)
    assert time.monotonic() - began < BUSY_SECONDS / 2, "without a lease it would have waited longer"
    assert busy.value.epoch == 7
    assert store.planned(PIPELINE) == [], "nothing was begun"
    store.close()
