"""P-streams in the meta store: added to stores that had none, written by one and read by many at a time."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from holdfast.errors import LeaseLostError, UnknownStreamError, UnknownVersionError
from holdfast.formats import STORE_VERSION
from holdfast.meta import MetaStore, NewEntry, StreamMeta, Upgraded, upgrade
from holdfast.meta.sql_tables import info, metadata
from stored_texts import commit_with, plan_epoch, plan_text, text

OLD = Path(__file__).parent.parent / "formats" / "store-1" / "meta.db"


def database(where: Path | str) -> sa.Engine:
    url = f"sqlite:///{where / 'meta.db'}" if isinstance(where, Path) else where.replace("://", "+psycopg://")
    return sa.create_engine(url, poolclass=sa.NullPool)


def version(where: Path | str) -> str:
    with database(where).connect() as connection:
        return str(connection.execute(sa.select(info.c.value).where(info.c.key == "store")).scalar_one())


@pytest.fixture
def old_store(where: Path | str, tmp_path: Path) -> Path | str:
    """The tables and rows that version 1 has left, in either kind of database."""
    shutil.copy(OLD, tmp_path / "meta.db")
    if not isinstance(where, Path):
        old = database(tmp_path)
        tables = [metadata.tables[name] for name in sa.inspect(old).get_table_names()]
        with old.connect() as given, database(where).begin() as made:
            metadata.create_all(made, tables)
            for table in tables:
                rows = [dict(row) for row in given.execute(sa.select(table)).mappings()]
                if rows:
                    made.execute(table.insert(), rows)
    assert version(where) == "1"
    return where


def test_a_store_that_knew_no_streams_gets_them_and_keeps_the_rest(old_store: Path | str, tmp_path: Path) -> None:
    upgrade(old_store, tmp_path, now=1e10)
    meta = MetaStore(old_store)
    assert meta.last_commit("kept") is not None
    streams = StreamMeta(meta)
    streams.declare("p.kept", "{}")
    with meta.writing() as connection:
        streams.append(connection, "p.kept", [NewEntry(3, 10, "{}", 7)], 1.0)
    meta.close()
    assert version(old_store) == str(STORE_VERSION)
    meta = MetaStore(old_store)
    assert StreamMeta(meta).state("p.kept").offset == 3
    assert meta.last_commit("kept") is not None
    meta.close()


def test_two_processes_that_upgrade_an_old_store_at_once(old_store: Path | str, tmp_path: Path) -> None:
    failed: list[BaseException] = []
    done: list[Upgraded] = []
    gate = threading.Barrier(4)

    def opening() -> None:
        try:
            gate.wait(10)
            done.append(upgrade(old_store, tmp_path, now=1e10))
        except BaseException as error:  # noqa: BLE001 - told by the assertion
            failed.append(error)

    threads = [threading.Thread(target=opening) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert sorted(upgrade.before for upgrade in done) == [1, STORE_VERSION, STORE_VERSION, STORE_VERSION]
    assert version(old_store) == str(STORE_VERSION)


def test_a_store_of_a_later_version_is_refused_and_left_alone(old_store: Path | str) -> None:
    with database(old_store).begin() as connection:
        connection.execute(info.update().where(info.c.key == "store").values(value=str(STORE_VERSION + 1)))
    with pytest.raises(UnknownVersionError, match=f"store version {STORE_VERSION + 1}; this program is older"):
        MetaStore(old_store)
    assert version(old_store) == str(STORE_VERSION + 1)


def test_what_is_written_with_an_epoch_is_there_if_and_only_if_the_epoch_is_committed(meta: MetaStore) -> None:
    streams = StreamMeta(meta)
    streams.declare("p.kept", "{}")
    lease = meta.acquire("p", "me", 0.0, 10.0)
    entry = NewEntry(5, 10, "{}", 1)

    def writing(connection: object) -> None:
        streams.append(connection, "p.kept", [entry], 1.0)  # type: ignore[arg-type]

    def dying(connection: object) -> None:
        writing(connection)
        raise KeyboardInterrupt

    plan_epoch(meta, lease, 1, plan_text({}), 0.0)
    with pytest.raises(KeyboardInterrupt):
        commit_with(meta, lease, 1, text({}), 0.0, dying)
    assert meta.last_commit("p") is None
    assert streams.state("p.kept").number == 0
    assert commit_with(meta, lease, 1, text({}), 0.0, writing)
    assert not commit_with(meta, lease, 1, text({}), 0.0, writing), "committed before: nothing changes"
    assert streams.state("p.kept").number == 1
    meta.acquire("p", "another", 20.0, 10.0)
    meta_plan = plan_text({"positions": {}})
    with pytest.raises(LeaseLostError):
        plan_epoch(meta, lease, 2, meta_plan, 0.0)
    with pytest.raises(LeaseLostError):
        commit_with(meta, lease, 2, text({}), 0.0, writing)
    assert streams.state("p.kept").number == 1, "a writer that has lost its lease writes nothing"


def test_readers_subscribe_and_read_while_the_writer_writes(meta: MetaStore) -> None:
    """Entries are seen in order and without gaps, whoever looks and when."""
    streams = StreamMeta(meta)
    streams.declare("p.kept", "{}")
    failed: list[str] = []
    total = 150

    def writing() -> None:
        for number in range(total):
            with meta.writing() as connection:
                streams.append(connection, "p.kept", [NewEntry(number % 3, 1, "{}")], float(number))

    def reading(name: str) -> None:
        at = streams.subscribe("p.kept", name, 0.0)
        number, offset = at.number, at.offset
        while number < total:
            for entry in streams.entries("p.kept", number, 7):
                if (entry.number, entry.offset) != (number + 1, offset):
                    failed.append(f"{name}: {entry} after {number}, {offset}")
                number, offset = entry.number, entry.end
            with meta.writing() as connection:
                streams.mark(connection, "p.kept", ["checkpoint", "release"], name, number, offset, 1, 0.0)
            released = streams.released("p.kept")
            streams.forget("p.kept", released)

    threads = [threading.Thread(target=reading, args=(name,)) for name in ("a", "b")]
    threads.append(threading.Thread(target=writing))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    streams.forget("p.kept", streams.released("p.kept"))
    assert streams.retained("p.kept") == (0, 0, 0)
    assert streams.state("p.kept").number == total


def test_a_stream_is_declared_before_anybody_writes_or_reads(meta: MetaStore) -> None:
    streams = StreamMeta(meta)
    with pytest.raises(UnknownStreamError), meta.writing() as connection:
        streams.append(connection, "nobody", [NewEntry(1, 1, "{}")], 0.0)
    with pytest.raises(UnknownStreamError):
        streams.subscribe("nobody", "r", 0.0)
