"""Control records in a p-stream: beside the rows, in order, passed over by readers, and gone with their entries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

from holdfast.meta import Entry, MetaStore
from holdfast.pstream import Control, Lineage, PUnit, StreamDescription, StreamEntry, StreamUnit, write_punit
from holdfast.pstream.pstream import PStream, new_entry
from holdfast.store import Private

LINEAGE = Lineage("p", 1, {})


@pytest.fixture
def stream(meta: MetaStore, tmp_path: Path) -> PStream:
    made = PStream(meta, tmp_path, "p.kept", sync=False)
    made.declare(StreamDescription({}))
    return made


def unit(stream: PStream, name: str, *values: int) -> PUnit:
    return write_punit(stream.store, name, pl.DataFrame({"v": values}, schema={"v": pl.Int64}))


def put(
    meta: MetaStore, stream: PStream, rows: Sequence[PUnit] = (), control: dict[str, Control] | None = None
) -> Entry:
    units = [StreamUnit.of(punit) for punit in rows]
    entry = new_entry(units, after=None, ended=False, lineage=LINEAGE, control=control)
    with meta.writing() as connection:
        [made] = stream.write(connection, [entry])
    return made


def test_control_records_count_as_bytes_and_not_as_rows(meta: MetaStore, stream: PStream) -> None:
    data, mark = unit(stream, "data.arrow", 1, 2, 3), unit(stream, "mark.arrow", 7)
    entry = put(meta, stream, [data], {"op": Control(4, {"windows": 1}, (mark,))})
    assert (entry.rows, entry.bytes) == (3, data.bytes + mark.bytes)
    [found] = stream.read(0, 100)
    assert found.files == ["data.arrow", "mark.arrow"]
    assert found.control["op"] == Control(4, {"windows": 1}, (mark,))
    assert [frame["v"].to_list() for frame in stream.load([found])] == [[1, 2, 3]]


def test_an_entry_of_control_records_alone_moves_no_reader(meta: MetaStore, stream: PStream) -> None:
    put(meta, stream, [unit(stream, "a.arrow", 1)])
    put(meta, stream, control={"op": Control(2, {}, (unit(stream, "b.arrow", 9),))})
    put(meta, stream, control={"op": Control(3, {})})
    put(meta, stream, [unit(stream, "c.arrow", 2)])
    entries = stream.read(0, 100)
    assert [entry.offset for entry in entries] == [0, 1, 1, 1]
    assert pl.concat(stream.load(entries))["v"].to_list() == [1, 2]
    assert stream.retained()[1] == 2


def test_entries_without_control_records_are_stored_as_before(meta: MetaStore, stream: PStream) -> None:
    entry = put(meta, stream, [unit(stream, "a.arrow", 1)])
    assert "control" not in entry.content
    assert StreamEntry.of(entry).control == {}


@pytest.mark.parametrize("entries", [0, 1, 31, 32, 33, 64, 130])
def test_the_log_is_walked_backwards_however_long(entries: int, meta: MetaStore, stream: PStream) -> None:
    for epoch in range(entries):
        put(meta, stream, control={"op": Control(epoch, {})})
    assert [entry.control["op"].epoch for entry in stream.backwards()] == list(reversed(range(entries)))


def test_control_records_of_several_operators_lie_beside_each_other(meta: MetaStore, stream: PStream) -> None:
    both = {"a": Control(1, {"n": 1}, (unit(stream, "a.arrow", 1),)), "b": Control(1, {"n": 2})}
    put(meta, stream, control=both)
    [found] = stream.backwards()
    assert dict(found.control) == both


def test_an_operator_holds_back_what_readers_have_released(meta: MetaStore, stream: PStream) -> None:
    stream.subscribe("reader")
    stream.subscribe("p/op")
    made = [
        put(meta, stream, [unit(stream, f"d{n}.arrow", n)], {"op": Control(n, {}, (unit(stream, f"c{n}.arrow", n),))})
        for n in range(4)
    ]
    with meta.writing() as connection:
        stream.checkpoint(connection, "reader", made[3].number, 4, 1)
        stream.checkpoint(connection, "p/op", made[1].number, 2, 1)
    assert stream.trim() > 0
    assert sorted(stream.store.names()) == ["c2.arrow", "c3.arrow", "d2.arrow", "d3.arrow"]
    assert [entry.control["op"].epoch for entry in stream.backwards()] == [3, 2]
    stream.unsubscribe("p/op")
    stream.trim()
    assert list(stream.store.names()) == []


def test_results_stay_for_readers_to_come(meta: MetaStore, stream: PStream) -> None:
    """An operator that has released its control records says nothing about the rows."""
    stream.subscribe("p/op")
    made = [put(meta, stream, [unit(stream, f"d{n}.arrow", n)], {"op": Control(n, {})}) for n in range(3)]
    with meta.writing() as connection:
        stream.checkpoint(connection, "p/op", made[2].number, 3, 1)
    assert stream.trim() == 0
    assert stream.subscribe("reader").number == 0
    assert stream.trim() == 0
    stream.unsubscribe("reader")
    assert stream.trim(alone=True) > 0, "where there is nothing but control records"


def test_a_sweep_spares_control_records(meta: MetaStore, stream: PStream) -> None:
    put(meta, stream, control={"op": Control(1, {}, (unit(stream, "known.arrow", 1),))})
    unit(stream, "lost-attempt.arrow", 2)
    stream.sweep(Private("the only writer"))
    assert list(stream.store.names()) == ["known.arrow"]
