"""A p-stream that another pipeline reads, and fragments with several sources."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

import holdfast as hf
from harness import Cut, run_in
from holdfast.engine.fragment_runs import FragmentsRun, open_cuts
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.engine.options import RunOptions
from holdfast.engine.stream_links import StreamLinks, bind_streams
from holdfast.epoch.transaction import Transaction
from holdfast.errors import StoreUnreachableError, UnknownStreamError
from holdfast.meta import Lease, MetaStore, StreamMeta
from holdfast.plan.program import compile_program

_random = random.Random(1)
ROWS = pl.DataFrame({"ts": range(300), "k": [_random.randrange(9) for _ in range(300)]})
SCHEMA = {"ts": pl.Int64, "k": pl.Int64}


@pytest.fixture
def meta(tmp_path: Path) -> Iterator[MetaStore]:
    opened = MetaStore(tmp_path, sync=False)
    yield opened
    opened.close()


def writing(**options: bool) -> hf.Pipeline:
    pipeline = hf.Pipeline("writer")
    kept = pipeline.source("in", hf.source.memory(ROWS), event_time="ts", time_unit="s").persist("kept", **options)
    kept.filter(pl.col("k") == 1).select("ts", "k").sink("out", hf.sink.collect())
    return pipeline


def reading(copies: int = 1) -> hf.Pipeline:
    pipeline = hf.Pipeline("reader")
    for number in range(copies):
        source = hf.source.pstream("writer.kept", SCHEMA)
        pipeline.source(f"in{number}", source, event_time="ts", time_unit="s").sink(f"out{number}", hf.sink.collect())
    return pipeline


def test_another_pipeline_reads_all_rows_at_its_own_pace(meta: MetaStore, tmp_path: Path) -> None:
    made = open_cuts(writing(push_up=False), meta)
    bind_streams(compile_program(reading()), meta, tmp_path, False).sources[0].source.start()  # type: ignore[union-attr]
    for fragment in made.fragments:
        run_in(tmp_path, fragment.pipeline, Cut(100))
    assert StreamMeta(meta).retained("writer.kept")[1] == 300  # kept for the one that comes late
    seen = run_in(tmp_path, reading(), Cut(70)).sinks["out0"]
    assert seen.sort("ts").equals(ROWS)
    assert StreamMeta(meta).retained("writer.kept")[1] == 0


def test_a_stream_that_was_moved_is_refused_to_others(meta: MetaStore, tmp_path: Path) -> None:
    open_cuts(writing(), meta)
    with pytest.raises(UnknownStreamError, match="moved after") as raised:
        bind_streams(compile_program(reading()), meta, tmp_path, False)
    assert "push_up=False" in raised.value.cure
    assert raised.value.operator == "in0"


@pytest.mark.parametrize("replicated", [False, True])
def test_two_sources_of_one_stream_release_what_both_have_read(
    meta: MetaStore, tmp_path: Path, replicated: bool
) -> None:
    made = open_cuts(writing(push_up=False), meta)
    StreamMeta(meta).unsubscribe("writer.kept", "writer.out")
    program = bind_streams(compile_program(reading(copies=2)), meta, tmp_path, False)
    for node in program.sources:
        node.source.start()  # type: ignore[union-attr]
    writer = next(fragment for fragment in made.fragments if fragment.writes)
    run_in(tmp_path, writer.pipeline, Cut(100))
    links = StreamLinks(program, meta, tmp_path, False, replicated=replicated)
    positions = {"in0": {"number": 1, "offset": 100}, "in1": {"number": 2, "offset": 200}}
    with meta.writing() as connection:
        links.release(Transaction(meta, connection, Lease(program.name, "test", 0), 1), positions)
    assert StreamMeta(meta).released("writer.kept") == 1
    links.committed()
    left = [entry.number for entry in StreamMeta(meta).entries("writer.kept", 0)]
    assert (1 in left) is replicated, "the other replica may still have to read it"
    links.committed(last=True)
    assert 1 not in [entry.number for entry in StreamMeta(meta).entries("writer.kept", 0)]


def test_only_fragments_that_read_from_others_alone_go_on_until_those_have_ended(tmp_path: Path) -> None:
    def build(both: bool) -> hf.Pipeline:
        pipeline = hf.Pipeline("p")
        kept = pipeline.source("a", hf.source.memory(ROWS), event_time="ts", time_unit="s").persist(
            "kept", push_up=False
        )
        other = pipeline.source("b", hf.source.memory(ROWS), event_time="ts", time_unit="s") if both else kept
        (kept.union(other) if both else kept).sink("out", hf.sink.collect())
        return pipeline

    for both, limit in ((True, 5.0), (False, None)):
        options = RunOptions(store=tmp_path / str(both), max_seconds=5.0, durable=False)
        run = FragmentsRun(build(both), InProcessPlatform(), options)
        assert run.runs["p.out"]._options.max_seconds == limit
        assert run.runs["p.out"]._options.until_idle is not both
        assert run.runs["p.kept"]._options.max_seconds == 5.0


def test_fragments_that_cannot_all_be_opened_let_go_of_the_meta_store(tmp_path: Path) -> None:
    held: set[MetaStore] = set()
    opened = 0

    class Held(MetaStore):
        def close(self) -> None:
            held.discard(self)
            super().close()

    def open_meta() -> MetaStore:
        nonlocal opened
        opened += 1
        if opened == 3:  # the first is that of the cuts, the second that of the first fragment
            raise StoreUnreachableError("the database is away", cure="start it")
        made = Held(tmp_path, sync=False)
        held.add(made)
        return made

    with pytest.raises(StoreUnreachableError):
        FragmentsRun(writing(), InProcessPlatform(), RunOptions(store=tmp_path, durable=False), open_meta=open_meta)
    assert (opened, held) == (3, set())


def test_the_whole_is_what_it_was(meta: MetaStore, tmp_path: Path) -> None:
    made = open_cuts(writing(), meta)
    outcomes = [run_in(tmp_path, fragment.pipeline) for fragment in made.fragments]
    assert outcomes[-1].sinks["out"].equals(ROWS.filter(pl.col("k") == 1))
