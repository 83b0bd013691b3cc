"""P-streams in the meta store: added to stores that had none, written by one and read by many at a time."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from pathlib import Path

import pytest

from holdfast.errors import LeaseLostError, UnknownStreamError, UnknownVersionError
from holdfast.formats import STORE_VERSION
from holdfast.meta import MetaStore, NewEntry, StreamMeta

OLD = Path(__file__).parent.parent / "formats" / "store-1" / "meta.db"


def version(place: Path) -> str:
    database = sqlite3.connect(place / "meta.db")
    try:
        return str(database.execute("select value from holdfast where key = 'store'").fetchone()[0])
    finally:
        database.close()


def old_store(place: Path) -> Path:
    place.mkdir()
    shutil.copy(OLD, place / "meta.db")
    assert version(place) == "1"
    return place


def test_a_store_that_knew_no_streams_gets_them_and_keeps_the_rest(tmp_path: Path) -> None:
    place = old_store(tmp_path / "store")
    meta = MetaStore(place)
    assert meta.last_commit("kept") is not None
    streams = StreamMeta(meta)
    streams.declare("p.kept", {"schema": {}})
    with meta.writing() as connection:
        streams.append(connection, "p.kept", [NewEntry(3, 10, {"units": []}, 7)], 1.0)
    meta.close()
    assert version(place) == str(STORE_VERSION)
    meta = MetaStore(place)
    assert StreamMeta(meta).state("p.kept").offset == 3
    assert meta.last_commit("kept") is not None
    meta.close()


def test_two_processes_that_open_an_old_store_at_once(tmp_path: Path) -> None:
    place = old_store(tmp_path / "store")
    failed: list[BaseException] = []
    gate = threading.Barrier(4)

    def opening() -> None:
        try:
            gate.wait(10)
            meta = MetaStore(place)
            StreamMeta(meta).streams()
            meta.close()
        except BaseException as error:  # noqa: BLE001 - told by the assertion
            failed.append(error)

    threads = [threading.Thread(target=opening) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert version(place) == str(STORE_VERSION)


def test_a_store_of_a_later_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    place = old_store(tmp_path / "store")
    database = sqlite3.connect(place / "meta.db")
    with database:
        database.execute("update holdfast set value = ? where key = 'store'", [str(STORE_VERSION + 1)])
    database.close()
    with pytest.raises(UnknownVersionError, match=f"store version {STORE_VERSION + 1}; this program knows"):
        MetaStore(place)
    assert version(place) == str(STORE_VERSION + 1)


def test_what_is_written_with_an_epoch_is_there_if_and_only_if_the_epoch_is_committed(tmp_path: Path) -> None:
    meta = MetaStore(tmp_path, sync=False)
    streams = StreamMeta(meta)
    streams.declare("p.kept", {})
    lease = meta.acquire("p", "me", 0.0, 10.0)
    entry = NewEntry(5, 10, {}, 1)

    def writing(connection: object) -> None:
        streams.append(connection, "p.kept", [entry], 1.0)  # type: ignore[arg-type]

    def dying(connection: object) -> None:
        writing(connection)
        raise KeyboardInterrupt

    meta.plan(lease, 1, {}, 0.0)
    with pytest.raises(KeyboardInterrupt):
        meta.commit(lease, 1, {}, 0.0, also=dying)
    assert meta.last_commit("p") is None
    assert streams.state("p.kept").number == 0
    assert meta.commit(lease, 1, {}, 0.0, also=writing)
    assert not meta.commit(lease, 1, {}, 0.0, also=writing), "committed before: nothing changes"
    assert streams.state("p.kept").number == 1
    meta.acquire("p", "another", 20.0, 10.0)
    meta_plan = {"positions": {}}
    with pytest.raises(LeaseLostError):
        meta.plan(lease, 2, meta_plan, 0.0)
    with pytest.raises(LeaseLostError):
        meta.commit(lease, 2, {}, 0.0, also=writing)
    assert streams.state("p.kept").number == 1, "a writer that has lost its lease writes nothing"
    meta.close()


def test_readers_subscribe_and_read_while_the_writer_writes(tmp_path: Path) -> None:
    """Entries are seen in order and without gaps, whoever looks and when."""
    meta = MetaStore(tmp_path, sync=False)
    streams = StreamMeta(meta)
    streams.declare("p.kept", {})
    failed: list[str] = []
    total = 150

    def writing() -> None:
        for number in range(total):
            with meta.writing() as connection:
                streams.append(connection, "p.kept", [NewEntry(number % 3, 1, {})], float(number))

    def reading(name: str) -> None:
        at = streams.subscribe("p.kept", name, 0.0)
        number, offset = at.number, at.offset
        while number < total:
            for entry in streams.entries("p.kept", number, 7):
                if (entry.number, entry.offset) != (number + 1, offset):
                    failed.append(f"{name}: {entry} after {number}, {offset}")
                number, offset = entry.number, entry.end
            with meta.writing() as connection:
                for kind in ("checkpoint", "release"):
                    streams.mark(connection, "p.kept", kind, name, number, offset, 1, 0.0)  # type: ignore[arg-type]
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
    meta.close()


def test_a_stream_is_declared_before_anybody_writes_or_reads(tmp_path: Path) -> None:
    meta = MetaStore(tmp_path, sync=False)
    streams = StreamMeta(meta)
    with pytest.raises(UnknownStreamError), meta.writing() as connection:
        streams.append(connection, "nobody", [NewEntry(1, 1, {})], 0.0)
    with pytest.raises(UnknownStreamError):
        streams.subscribe("nobody", "r", 0.0)
    meta.close()
