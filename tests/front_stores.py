"""A store to look at through Spark's data source: a p-stream that a reader has not read, state of several epochs, and
an output; and a streaming query that writes to a p-stream."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from pyspark.sql.types import LongType, StructField, StructType

import holdfast as hf
from harness import Cut, run_in
from holdfast.engine.fragment_runs import open_cuts
from holdfast.meta import MetaStore, StreamMeta
from holdfast.spark import stream_writes
from holdfast.spark.front_door import HoldfastSource
from holdfast.spark.stream_writes import PStreamWriter

ROWS = pl.DataFrame({"ts": range(100), "k": [number % 4 for number in range(100)]})


COLUMNS = StructType([StructField("ts", LongType()), StructField("k", LongType())])


def counting(out: Path) -> hf.Pipeline:
    pipeline = hf.Pipeline("counted")
    rows = pipeline.source("in", hf.source.memory([ROWS]), event_time="ts", time_unit="s")
    kept = rows.persist("kept", push_up=False)
    counts = kept.key_by("k").window(hf.window.tumbling("40s")).agg(n=hf.count()).named("counts")
    counts.sink("out", hf.sink.parquet(out, every="0s"))
    return pipeline


def make_store(place: Path) -> Path:
    meta = MetaStore(place / "store", sync=False)
    made = open_cuts(counting(place / "out"), meta)
    StreamMeta(meta).subscribe("counted.kept", "somebody", 0.0)
    for fragment in made.fragments:
        run_in(place / "store", fragment.pipeline, Cut(rows=30))
    meta.close()
    return place


def epochs_of(store: Path, fragment: str) -> list[int]:
    meta = MetaStore(store)
    try:
        return [commit.epoch for commit in meta.commits(fragment)]
    finally:
        meta.close()


def release_of(store: Path, stream: str, reader: str) -> int:
    """The offset up to which a reader has released a stream."""
    meta = MetaStore(store)
    try:
        markers = StreamMeta(meta).markers(stream)
    finally:
        meta.close()
    [marker] = [one for one in markers if one.by == reader and one.kind == "release"]
    return marker.offset


def asked(**options: object) -> HoldfastSource:
    made = HoldfastSource({name: str(value) for name, value in options.items()})
    again: HoldfastSource = pickle.loads(pickle.dumps(made))
    return again


class Query:
    """A streaming query that writes: tasks of micro-batches, as Spark would run them."""

    def __init__(self, store: Path, monkeypatch: pytest.MonkeyPatch, name: str = "q") -> None:
        self.writer = asked(store=store, stream="numbers").streamWriter(COLUMNS, False)
        assert isinstance(self.writer, PStreamWriter)
        self._patch, self._name = monkeypatch, name

    def task(self, number: int, rows: pl.DataFrame) -> object:
        said = {"sql.streaming.queryId": self._name}
        context = SimpleNamespace(getLocalProperty=said.get, partitionId=lambda: number)
        self._patch.setattr(stream_writes, "TaskContext", SimpleNamespace(get=lambda: context))
        return self.writer.write(iter(rows.to_arrow(compat_level=pl.CompatLevel.oldest()).to_batches()))

    def batch(self, number: int, *parts: pl.DataFrame) -> None:
        written = [self.task(task, rows) for task, rows in enumerate(parts)]
        self.writer.commit(list(reversed(written)), number)
