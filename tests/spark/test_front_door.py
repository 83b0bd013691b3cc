"""The data source "holdfast" as Spark calls it, without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType

import holdfast as hf
from front_stores import COLUMNS, ROWS, Query, asked, epochs_of, make_store, release_of
from harness import Cut, run_in
from holdfast.errors import (
    DeclarationError,
    HoldfastError,
    InputError,
    StreamGapError,
    UnknownStateError,
    UnknownStreamError,
)
from holdfast.meta import MetaStore
from holdfast.pstream.pstream import PStream
from holdfast.spark import stream_writes
from holdfast_lab.chaos.s3_server import make_bucket, serve


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("front"))


def all_rows(reader: DataSourceReader) -> list[tuple[object, ...]]:
    parts = pickle.loads(pickle.dumps(list(reader.partitions())))
    return sorted(row for part in parts for batch in reader.read(part) for row in pl.DataFrame(batch).rows())


def read(**options: object) -> list[tuple[object, ...]]:
    source = asked(**options)
    return all_rows(source.reader(source.schema()))


def between(reader: DataSourceStreamReader, start: dict[str, int], end: dict[str, int]) -> list[tuple[object, ...]]:
    parts = pickle.loads(pickle.dumps(list(reader.partitions(start, end))))
    return sorted(row for part in parts for batch in reader.read(part) for row in pl.DataFrame(batch).rows())


def test_an_output_is_read_whole_and_epoch_by_epoch(place: Path) -> None:
    expected = sorted(hf.read_output(place / "out", "parquet").rows())
    assert read(path=place / "out") == expected
    source = asked(path=place / "out")
    stream = source.streamReader(source.schema())
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    assert between(stream, start, end) == expected
    middle = {"epoch": (start["epoch"] + end["epoch"]) // 2}
    assert sorted(between(stream, start, middle) + between(stream, middle, end)) == expected


def test_an_output_in_a_bucket_is_read_whole_and_epoch_by_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret")
    with serve() as server:
        address = f"{make_bucket(server, 'front')}/out"
        pipeline = hf.Pipeline("remote")
        rows = pipeline.source("in", hf.source.memory([ROWS]))
        rows.sink("out", hf.sink.parquet(address, every="0s", storage_options=server.options()))
        run_in(tmp_path / "store", pipeline, Cut(rows=30))
        given = {"path": address, "storage.endpoint": server.endpoint, "storage.region": "us-east-1"}
        assert read(**given) == sorted(ROWS.rows())
        source = asked(**given)
        stream = source.streamReader(source.schema())
        first, last = stream.initialOffset(), stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
        middle = {"epoch": 2}
        assert between(stream, first, middle) == sorted(ROWS[:60].rows())
        assert sorted(between(stream, first, middle) + between(stream, middle, last)) == sorted(ROWS.rows())
        with pytest.raises(InputError, match="is not the output of a file sink"):
            read(**{**given, "path": "s3://front/elsewhere"})
    with pytest.raises(DeclarationError, match="this is a path"):
        read(path=tmp_path, **{"storage.region": "here"})


def test_state_is_read_after_any_retained_epoch(place: Path) -> None:
    found = {}
    for epoch in epochs_of(place / "store", "counted.out"):
        rows = read(store=place / "store", pipeline="counted.out", operator="counts", epoch=epoch)
        assert rows == sorted(hf.state(place / "store", "counted.out", "counts", epoch=epoch).rows())
        found[epoch] = rows
    assert len(found) > 2
    assert read(store=place / "store", pipeline="counted.out", operator="counts") == found[max(found)]


def test_a_p_stream_is_read_by_positions_and_released(place: Path) -> None:
    given = {"store": place / "store", "stream": "counted.kept"}
    assert read(**given) == sorted(ROWS.rows())
    source = asked(**given, reader="query")
    reader = source.streamReader(source.schema())
    position, rows, steps = reader.initialOffset(), [], 0
    while True:
        following = reader.latestOffset(position, ReadMaxRows(30))
        if following == position:
            break
        rows += between(reader, position, following)
        assert between(reader, position, following) == rows[-len(between(reader, position, following)) :], "again"
        reader.commit(following)
        assert release_of(place / "store", "counted.kept", "query") == following["offset"]
        position, steps = following, steps + 1
    assert sorted(rows) == sorted(ROWS.rows())
    assert steps > 2
    last = reader.latestOffset({"number": 0, "offset": 0}, ReadAllAvailable())
    assert last == position


def test_what_was_removed_before_a_query_has_read_it_is_told(tmp_path: Path) -> None:
    place = make_store(tmp_path)
    meta = MetaStore(place / "store")
    log = PStream(meta, place / "store", "counted.kept")
    log.unsubscribe("somebody")
    log.trim()
    meta.close()
    reader = asked(store=place / "store", stream="counted.kept", reader="late").streamReader(COLUMNS)
    with pytest.raises(StreamGapError, match="no longer has entry 1"):
        reader.partitions({"number": 0, "offset": 0}, {"number": 3, "offset": 90})


def mistakes(place: Path) -> dict[str, tuple[Callable[[], object], type[HoldfastError], str]]:
    store, state = place / "store", {"store": place / "store", "pipeline": "counted.out", "operator": "counts"}
    stream = asked(store=store, stream="counted.kept")
    return {
        "nothing said": (lambda: read(store=store), DeclarationError, "nothing says what to read"),
        "too much": (lambda: read(path="/out", stream="s"), DeclarationError, "path and stream were given together"),
        "relative": (lambda: read(store="store", stream="s"), DeclarationError, "is a relative path"),
        "unknown option": (lambda: asked(stores="x"), DeclarationError, "has no option 'stores'"),
        "no store": (lambda: read(stream="s"), DeclarationError, "the option 'store' is missing"),
        "no such store": (lambda: read(store=place / "no", stream="s"), HoldfastError, str(place / "no")),
        "no stream": (lambda: read(store=store, stream="s"), UnknownStreamError, "the store has: counted.kept"),
        "no operator": (lambda: read(**{**state, "operator": "no"}), UnknownStateError, "counts"),
        "not retained": (lambda: read(**state, epoch=99), UnknownStateError, "99"),
        "no epoch": (lambda: read(**state, epoch="last"), DeclarationError, "not an epoch"),
        "no output": (lambda: read(path=place / "no"), InputError, "there is no directory"),
        "no reader": (lambda: stream.streamReader(COLUMNS), DeclarationError, "'reader' is missing"),
        "state as a stream": (lambda: asked(**state).streamReader(COLUMNS), DeclarationError, "cannot be read as a"),
        "no column": (
            lambda: stream.reader(StructType([StructField("x", LongType())])).partitions(), UnknownStreamError, "'x'"
        ),
        "of a pipeline": (lambda: stream.streamWriter(COLUMNS, False), DeclarationError, "have a dot"),
    }  # fmt: skip


def test_what_is_wrong_is_said_with_a_cure(place: Path) -> None:
    for name, (ask, kind, text) in mistakes(place).items():
        with pytest.raises(kind) as caught:
            ask()
        assert text in str(caught.value), name
        assert caught.value.cure, name


# writing


def held(store: Path) -> list[tuple[object, ...]]:
    return read(store=store, stream="numbers")


def files_of(store: Path) -> int:
    return sum(path.is_file() for path in (store / "streams" / "numbers").rglob("*"))


def test_a_batch_is_written_once_however_often_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query, store = Query(tmp_path / "store", monkeypatch), tmp_path / "store"
    query.batch(0, ROWS[:10], ROWS[10:20])
    query.batch(1, ROWS[20:30], ROWS[:0])
    there = files_of(store)
    query.batch(1, ROWS[20:30], ROWS[:0])
    query.batch(0, ROWS[:10], ROWS[10:20])
    query.batch(2, ROWS[:0])
    query.batch(3, ROWS[30:40])
    assert held(store) == sorted(ROWS[:40].rows())
    assert files_of(store) == there + 1, "what was written for nothing is removed"
    query.writer.abort([query.task(0, ROWS[40:50]), None], 4)
    assert files_of(store) == there + 1
    Query(store, monkeypatch, "another").batch(0, ROWS[40:])
    assert held(store) == sorted(ROWS.rows()), "another query counts its own batches"


def test_what_a_commit_made_an_entry_stays_although_spark_aborts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, store = Query(tmp_path / "store", monkeypatch), tmp_path / "store"
    query.batch(0, ROWS[:10])
    there = files_of(store)
    written = [query.task(0, ROWS[10:20]), query.task(1, ROWS[20:30])]
    with monkeypatch.context() as patch:
        close = MetaStore.close

        def broken(meta: MetaStore) -> None:
            close(meta)
            raise OSError("pulled")

        patch.setattr(MetaStore, "close", broken)
        with pytest.raises(OSError, match="pulled"):
            query.writer.commit(written, 1)
    query.writer.abort(written, 1)
    assert files_of(store) == there + 2
    assert held(store) == sorted(ROWS[:30].rows())
    never = [query.task(0, ROWS[30:40]), None]
    assert files_of(store) == there + 3
    query.writer.abort(never, 2)
    assert files_of(store) == there + 2, "no entry names it"
    query.batch(2, ROWS[30:40])
    assert held(store) == sorted(ROWS[:40].rows())


def test_a_pipeline_reads_what_a_query_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(tmp_path / "store", monkeypatch)
    for number in range(4):
        query.batch(number, ROWS[number * 25 : number * 25 + 25])
    pipeline = hf.Pipeline("reads")
    source = hf.source.pstream("numbers", {"ts": pl.Int64, "k": pl.Int64})
    rows = pipeline.source("in", source, event_time="ts", time_unit="s")
    counts = rows.key_by("k").window(hf.window.tumbling("50s")).agg(n=hf.count())
    counts.sink("out", hf.sink.collect())
    found = run_in(tmp_path / "store", pipeline).sinks["out"]
    assert found.filter(pl.col("window_end") == 50)["n"].sum() == 50


def test_a_stream_of_other_columns_and_a_full_one_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(tmp_path / "store", monkeypatch)
    query.batch(0, ROWS)
    other = asked(store=tmp_path / "store", stream="numbers")
    query.writer = other.streamWriter(StructType(COLUMNS.fields[:1]), False)
    with pytest.raises(UnknownStreamError, match="has the columns ts Int64, k Int64, the query ts Int64"):
        query.batch(1, ROWS.select("ts"))
    query.writer = asked(store=tmp_path / "store", stream="numbers", budget=1).streamWriter(COLUMNS, False)
    monkeypatch.setattr(stream_writes, "_PATIENCE_SECONDS", 0.0)
    with pytest.raises(HoldfastError, match="its budget is 1"):
        query.batch(2, ROWS)


def test_types_that_spark_has_not_are_widened(tmp_path: Path) -> None:
    odd = pl.DataFrame({"u": [2**64 - 1], "c": ["a"]}, schema={"u": pl.UInt64, "c": pl.Categorical})
    pipeline = hf.Pipeline("odd")
    pipeline.source("in", hf.source.memory([odd])).sink("out", hf.sink.parquet(tmp_path / "out", every="0s"))
    run_in(tmp_path / "store", pipeline)
    [(value, text)] = read(path=tmp_path / "out")
    assert (int(str(value)), text) == (2**64 - 1, "a")
