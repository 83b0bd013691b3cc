"""The operations of a p-stream: subscribe, write, read, checkpoint, trim, load, and the order they keep."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from holdfast.errors import CorruptPUnitError, UnknownStreamError
from holdfast.meta import MetaStore, StreamMeta
from holdfast.pstream import Lineage, StreamDescription, StreamUnit, UnitWriter
from holdfast.pstream import pstream as module
from holdfast.pstream.pstream import PStream, new_entry
from holdfast.store import DirectoryStore, Private
from strategies import examples

NAMES = itertools.count()
DESCRIPTION = StreamDescription({"v": "Int64"})


@pytest.fixture
def stream(meta: MetaStore, tmp_path: Path) -> PStream:
    log = PStream(meta, tmp_path, "p.kept", sync=False, clock=lambda: 1.0)
    log.declare(DESCRIPTION)
    return log


def numbers(start: int, count: int) -> pl.DataFrame:
    return pl.DataFrame({"v": range(start, start + count)})


def write(meta: MetaStore, log: PStream, *sizes: int, ended: bool = False) -> None:
    """An entry of each size; row v is the v-th of the stream."""
    writer = UnitWriter(log.store)
    for size in sizes:
        offset = log.state().offset
        half = size // 2
        pieces = [numbers(offset, half), numbers(offset + half, size - half)] if size > 1 else [numbers(offset, size)]
        units = [
            StreamUnit.of(writer.write(f"u-{next(NAMES)}.arrow", piece), offset + number)
            for number, piece in enumerate(pieces)
            if piece.height
        ]
        lineage = Lineage("writer", size, {"in": {"offset": offset}})
        with meta.writing() as connection:
            log.write(connection, [new_entry(units, after=offset + size, ended=ended, lineage=lineage)])


def release(meta: MetaStore, log: PStream, reader: str, number: int, epoch: int = 1) -> None:
    offset = next((e.end for e in StreamMeta(meta).entries(log.name, number - 1, 1)), 0)
    with meta.writing() as connection:
        log.checkpoint(connection, reader, number, offset, epoch)


def files(log: PStream) -> set[str]:
    return set(log.store.names())


def marks(log: PStream, kind: str) -> dict[str, int]:
    return {marker.by: marker.number for marker in log.markers() if marker.kind == kind}


# write and read


def test_entries_are_numbered_and_lie_end_to_end(meta: MetaStore, stream: PStream) -> None:
    write(meta, stream, 3, 0, 5, 1)
    found = stream.read(0, 1_000)
    assert [(e.number, e.offset, e.rows) for e in found] == [(1, 0, 3), (2, 3, 0), (3, 3, 5), (4, 8, 1)]
    assert (stream.state().number, stream.state().offset, stream.state().watermark) == (4, 9, 9)
    assert [e.after for e in found] == [3, 3, 8, 9]


def test_what_was_written_keeps_its_lineage_its_watermarks_and_its_size(meta: MetaStore, stream: PStream) -> None:
    write(meta, stream, 4, 6)
    second = stream.read(1, 1)[0]
    assert second.lineage == Lineage("writer", 6, {"in": {"offset": 4}})
    assert [unit.before for unit in second.units] == [4, 5]
    on_disk = sum(stream.store.path(unit.name).stat().st_size for unit in second.units)
    assert second.bytes == on_disk
    assert stream.retained()[2] == sum(path.stat().st_size for path in stream.store.root.iterdir())


def test_an_entry_of_a_transaction_that_fails_was_never_there(meta: MetaStore, stream: PStream) -> None:
    write(meta, stream, 2)
    unit = UnitWriter(stream.store).write("lost.arrow", numbers(2, 3))
    entry = new_entry([StreamUnit.of(unit)], after=5, ended=True, lineage=Lineage())

    def fail() -> None:
        with meta.writing() as connection:
            stream.write(connection, [entry])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [e.number for e in stream.read(0, 100)] == [1]
    assert (stream.state().offset, stream.state().ended) == (2, False)
    write(meta, stream, 4)
    assert [(e.number, e.offset) for e in stream.read(0, 100)] == [(1, 0), (2, 2)], "its place is taken by the next"


@given(
    sizes=st.lists(st.integers(0, 5), max_size=200).filter(lambda s: len(s) > 0),
    after=st.integers(0, 210),
    rows=st.integers(1, 40),
)
@examples(25)
def test_a_read_takes_whole_entries_up_to_the_rows_asked_for_and_at_least_one(
    meta: MetaStore, tmp_path: Path, sizes: list[int], after: int, rows: int
) -> None:
    log = PStream(meta, tmp_path, f"p.kept-{next(NAMES)}", sync=False)
    log.declare(StreamDescription({}))
    with meta.writing() as connection:
        entries = [
            new_entry(
                [StreamUnit("none", size, 8, "", None)] if size else [], after=None, ended=False, lineage=Lineage()
            )
            for size in sizes
        ]
        log.write(connection, entries)
    found = log.read(after, rows)
    assert [e.number for e in found] == list(range(after + 1, after + 1 + len(found)))
    assert bool(found) == (after < len(sizes))
    assert sum(e.rows for e in found) <= rows or len(found) == 1 or sum(e.rows for e in found[:-1]) < rows
    if found and found[-1].number < len(sizes):
        # It stopped because the next one would be too much, or because it had enough; and has half of it at least.
        assert sum(e.rows for e in found) + sizes[found[-1].number] > rows or sum(e.rows for e in found) >= rows
        assert 2 * sum(e.rows for e in found) >= rows
    assert log.waiting(after) == sum(sizes[after:])


def test_rows_are_loaded_in_order_and_in_parallel(
    meta: MetaStore, stream: PStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(meta, stream, *[4] * 8)

    plain, together = module.read_unit, threading.Barrier(2)

    def paired(*given: object) -> pl.DataFrame:
        together.wait(60)  # one thread alone would wait for ever
        return plain(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "read_unit", paired)
    frames = stream.load(stream.read(0, 1_000))
    assert len(frames) == 16
    assert_frame_equal(pl.concat(frames), numbers(0, 32))


# damage


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "swap"])
def test_a_damaged_p_unit_is_never_used(meta: MetaStore, stream: PStream, damage: str) -> None:
    write(meta, stream, 50, 50)
    first, second = (stream.store.path(e.units[0].name) for e in stream.read(0, 1_000))
    data = second.read_bytes()
    if damage == "flip":
        second.write_bytes(data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :])
    elif damage == "truncate":
        second.write_bytes(data[:-1])
    elif damage == "remove":
        second.unlink()
    else:
        second.write_bytes(first.read_bytes())
    assert stream.load(stream.read(0, 1))[0].height == 25, "what is whole is still read"
    with pytest.raises(CorruptPUnitError, match=second.name):
        stream.load(stream.read(0, 1_000))


def test_a_stream_that_is_not_there_is_named_with_those_that_are(meta: MetaStore, stream: PStream) -> None:
    with pytest.raises(UnknownStreamError, match=r"'p\.other'") as caught:
        PStream(meta, Path(), "p.other").state()
    assert "p.kept" in str(caught.value.cure)


# readers


def test_a_reader_begins_where_the_stream_does_and_goes_on_where_it_stood(meta: MetaStore, stream: PStream) -> None:
    assert (stream.subscribe("early").number, stream.subscribe("early").offset) == (0, 0)
    write(meta, stream, 3, 4)
    assert stream.subscribe("late").number == 0, "what is still there is for it too"
    release(meta, stream, "early", 1)
    release(meta, stream, "late", 2)
    again = stream.subscribe("early")
    assert (again.number, again.offset) == (1, 3)


def test_markers_only_go_forward(meta: MetaStore, stream: PStream) -> None:
    stream.subscribe("r")
    write(meta, stream, 1, 1, 1)
    release(meta, stream, "r", 2, epoch=7)
    release(meta, stream, "r", 1, epoch=8)
    assert marks(stream, "release") == marks(stream, "checkpoint") == {"r": 2}
    assert {m.epoch for m in stream.markers() if m.kind != "retain"} == {7}
    stream.subscribe("r")
    assert marks(stream, "release") == {"r": 2}
    assert marks(stream, "retain") == {"r": 0}


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.integers(0, 3)),
            st.tuples(st.just("subscribe"), st.sampled_from("abc")),
            st.tuples(st.just("unsubscribe"), st.sampled_from("abc")),
            st.tuples(st.just("checkpoint"), st.sampled_from("abc"), st.integers(1, 12)),
            st.tuples(st.just("trim")),
        ),
        max_size=30,
    )
)
@examples(40)
def test_nothing_goes_before_the_slowest_reader_has_released_it(
    meta: MetaStore, tmp_path: Path, steps: list[tuple[object, ...]]
) -> None:
    """Against a model: readers and how far each has come, entries and which of them are gone."""
    log = PStream(meta, tmp_path, f"p.kept-{next(NAMES)}", sync=False)
    log.declare(StreamDescription({}))
    readers: dict[str, int] = {}
    written, gone = 0, 0
    for step in steps:
        if step[0] == "write":
            write(meta, log, step[1])  # type: ignore[arg-type]
            written += 1
        elif step[0] == "subscribe":
            found = log.subscribe(str(step[1])).number
            assert found == readers.get(str(step[1]), found)
            assert found >= gone, "nobody is promised what is gone"
            assert str(step[1]) in readers or found <= min([*readers.values(), written])
            readers[str(step[1])] = found
        elif step[0] == "unsubscribe":
            log.unsubscribe(str(step[1]))
            readers.pop(str(step[1]), None)
        elif step[0] == "checkpoint" and step[1] in readers:
            number = min(int(step[2]), written)  # type: ignore[call-overload]
            release(meta, log, str(step[1]), number)
            readers[str(step[1])] = max(readers[str(step[1])], number)
        elif step[0] == "trim":
            log.trim()
            gone = max(gone, min(readers.values(), default=0))
        left = StreamMeta(meta).entries(log.name, 0)
        assert [e.number for e in left] == list(range(gone + 1, written + 1))
        log.load(log.read(gone, 1_000))
        assert len(files(log)) == sum(len(e.units) for e in log.read(gone, 1_000))


def test_a_reader_that_has_left_holds_nothing_back(meta: MetaStore, stream: PStream) -> None:
    stream.subscribe("fast")
    stream.subscribe("gone")
    write(meta, stream, 4, 4)
    release(meta, stream, "fast", 2)
    assert stream.trim() == 0
    assert stream.retained()[0] == 2
    stream.unsubscribe("gone")
    assert stream.trim() > 0
    assert stream.retained() == (0, 0, 0)
    assert not files(stream)


def test_nothing_goes_while_nobody_has_subscribed(meta: MetaStore, stream: PStream) -> None:
    write(meta, stream, 4)
    assert stream.trim() == 0
    assert len(files(stream)) == 2


# trim


def test_what_was_released_a_moment_ago_can_stay_for_a_replica_that_is_behind(meta: MetaStore, tmp_path: Path) -> None:
    now = [100.0]
    log = PStream(meta, tmp_path, "p.replicated", sync=False, ticks=lambda: now[0])
    log.declare(DESCRIPTION)
    log.subscribe("a")
    write(meta, log, 1, 1, 1)
    for at, number, left in ((100.0, 1, 3), (105.0, 2, 3), (109.9, 2, 3), (110.0, 2, 2), (114.0, 3, 2), (116.0, 3, 1)):
        now[0] = at
        release(meta, log, "a", number)
        log.trim(kept=10.0)
        assert len(files(log)) == left, at
    log.trim()
    assert files(log) == set(), "unless nothing is to be kept"


def test_what_an_interrupted_trim_leaves_is_swept(
    meta: MetaStore, stream: PStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.subscribe("r")
    write(meta, stream, 4, 4, 4)
    before = files(stream)
    release(meta, stream, "r", 2)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DirectoryStore, "remove", die)
        with pytest.raises(KeyboardInterrupt):
            stream.trim()
    assert stream.retained()[0] == 1, "the entries have gone"
    assert files(stream) == before, "their files have not"
    assert stream.subscribe("new").number == 2, "a new reader is not promised files that are to go"
    assert stream.trim() == 0
    stream.sweep(Private("the only writer"))
    assert len(files(stream)) == 2
    assert stream.load(stream.read(0, 100))[0].height == 2


def test_a_trim_takes_nothing_from_a_reader_that_came_after_the_others_were_forgotten(
    meta: MetaStore, stream: PStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is free was looked up, then the only reader was let go, and another one begins at the beginning."""
    stream.subscribe("r")
    write(meta, stream, 4, 4, 4)
    release(meta, stream, "r", 2)
    released = StreamMeta.released

    def late(own: StreamMeta, *given: Any, **more: Any) -> int:
        upto = released(own, *given, **more)
        stream.unsubscribe("r")
        assert stream.subscribe("new").number == 0
        return upto

    with monkeypatch.context() as patch:
        patch.setattr(StreamMeta, "released", late)
        assert stream.trim() == 0
    assert [e.number for e in stream.read(0, 100)] == [1, 2, 3]
    assert len(stream.load(stream.read(0, 100))) == len(files(stream))


def test_a_reader_that_comes_while_a_trim_goes_on_begins_behind_it(
    meta: MetaStore, stream: PStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.subscribe("r")
    write(meta, stream, 4, 4, 4)
    release(meta, stream, "r", 2)
    forget = StreamMeta.forget
    began: list[int] = []

    def meanwhile(own: StreamMeta, name: str, upto: int, **more: Any) -> Any:
        began.append(stream.subscribe("new").number)
        return forget(own, name, upto, **more)

    monkeypatch.setattr(StreamMeta, "forget", meanwhile)
    stream.trim()
    assert began == [2]
    assert [e.number for e in stream.read(began[0], 100)] == [3]


# the writer's start


def test_the_writer_sweeps_what_lost_attempts_have_left_and_nothing_else(meta: MetaStore, stream: PStream) -> None:
    write(meta, stream, 4, 2)
    kept = files(stream)
    UnitWriter(stream.store).write("lost.arrow", numbers(0, 9))
    stream.store.path("half.arrow").write_bytes(b"ARR")
    stream.sweep(Private("the only writer"))
    assert files(stream) == kept
    stream.load(stream.read(0, 100))


def test_the_first_description_of_a_stream_stays(stream: PStream) -> None:
    assert StreamDescription.decode(stream.declare(StreamDescription({})).description) == DESCRIPTION


def test_the_commit_of_a_reader_that_was_made_to_leave_does_not_bring_it_back(meta: MetaStore, stream: PStream) -> None:
    stream.subscribe("r")
    write(meta, stream, 1, 1)
    stream.unsubscribe("r")
    release(meta, stream, "r", 1)
    assert not stream.markers()
