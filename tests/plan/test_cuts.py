"""A pipeline cut into fragments: who is with whom, who reads and writes what, and in which order they come."""

from __future__ import annotations

import polars as pl
import pytest

import holdfast as hf
from harness import WHOLE, Cut, run, run_fragments
from holdfast.errors import DeclarationError
from holdfast.graph.nodes import SinkNode, SourceNode
from holdfast.plan.cuts import CutPipeline, cut_pipeline
from holdfast.plan.places import cuts_of, places_of
from holdfast.pstream.description import Placement
from holdfast.pstream.link import StreamSink, StreamSource

ROWS = pl.DataFrame({"ts": range(60), "k": [i % 3 for i in range(60)], "v": [i % 7 for i in range(60)]})


def source(pipeline: hf.Pipeline, name: str = "in") -> hf.Stream:
    return pipeline.source(name, hf.source.memory(ROWS), event_time="ts", time_unit="s")


def cut(pipeline: hf.Pipeline, number: int = 0) -> CutPipeline:
    """Every cut at its `number`-th place, or at its last."""
    placements = {}
    for declared in cuts_of(pipeline.nodes):
        places = places_of(pipeline.nodes, declared)
        placements[declared.name] = Placement(places[min(number, len(places) - 1)], "for the test")
    return cut_pipeline(pipeline, placements)


def told(made: CutPipeline) -> list[tuple[str, list[str], list[str], list[str]]]:
    return [(f.name, sorted(f.pipeline.nodes), list(f.reads), list(f.writes)) for f in made.fragments]


def test_a_pipeline_without_cuts_is_one_fragment_with_its_own_name() -> None:
    pipeline = hf.Pipeline("p")
    source(pipeline).sink("out", hf.sink.collect())
    assert told(cut(pipeline)) == [("p", ["in", "out"], [], [])]


def test_a_cut_makes_a_sink_here_and_a_source_there() -> None:
    pipeline = hf.Pipeline("p")
    source(pipeline).persist("kept", budget="3 MB").filter(pl.col("v") > 1).named("f").sink("out", hf.sink.collect())
    made = cut(pipeline)
    assert told(made) == [
        ("p.kept", ["in", "kept"], [], ["p.kept"]),
        ("p.out", ["f", "kept", "out"], ["p.kept"], []),
    ]
    writing, reading = (fragment.pipeline.nodes["kept"] for fragment in made.fragments)
    assert isinstance(writing, SinkNode)
    assert isinstance(writing.sink, StreamSink)
    assert (writing.sink.stream, writing.sink.budget) == ("p.kept", 3_000_000)
    assert isinstance(reading, SourceNode)
    assert isinstance(reading.source, StreamSource)
    assert told(cut(pipeline, 9)) == [
        ("p.kept", ["f", "in", "kept"], [], ["p.kept"]),
        ("p.out", ["kept", "out"], ["p.kept"], []),
    ], "at its last place the filter is on the other side"


def test_readers_that_have_nothing_else_in_common_are_fragments_of_their_own() -> None:
    pipeline = hf.Pipeline("p")
    kept = source(pipeline).persist("kept")
    kept.select("ts").sink("a", hf.sink.collect())
    kept.select("v").sink("b", hf.sink.collect())
    assert [(name, reads) for name, _, reads, _ in told(cut(pipeline))] == [
        ("p.kept", []), ("p.a", ["p.kept"]), ("p.b", ["p.kept"]),
    ]  # fmt: skip


def test_readers_that_meet_again_are_one_fragment() -> None:
    pipeline = hf.Pipeline("p")
    kept = source(pipeline).persist("kept")
    kept.filter(pl.col("v") > 3).union(kept.filter(pl.col("v") < 2)).sink("out", hf.sink.collect())
    assert [name for name, *_ in told(cut(pipeline))] == ["p.kept", "p.out"]
    seen = run_fragments(pipeline, Cut(7, 2, 1), Cut(13, 1, 1))["p.out"].sinks["out"]
    assert seen.sort("ts").equals(ROWS.filter((pl.col("v") > 3) | (pl.col("v") < 2)))


def test_writers_come_before_their_readers_however_they_were_declared() -> None:
    pipeline = hf.Pipeline("p")
    one, two = source(pipeline, "one"), source(pipeline, "two")
    late = two.persist("z")
    early = one.persist("a")
    early.union(late).persist("both", push_up=False).select("ts", "k").sink("out", hf.sink.collect())
    made = cut(pipeline)
    seen: set[str] = set()
    for fragment in made.fragments:
        assert seen.issuperset(fragment.reads)
        seen.update(fragment.writes)
    assert made.fragments[-1].name == "p.out"
    assert len(made.fragments) == 4


def test_two_streams_of_one_operator_have_one_writer() -> None:
    pipeline = hf.Pipeline("p")
    rows = source(pipeline)
    rows.persist("a").sink("one", hf.sink.collect())
    rows.persist("b").sink("two", hf.sink.collect())
    rows.sink("direct", hf.sink.collect())
    first, *_ = told(cut(pipeline))
    assert first == ("p.a", ["a", "b", "direct", "in"], [], ["p.a", "p.b"])


def test_a_way_around_the_cut_is_refused_with_a_cure() -> None:
    pipeline = hf.Pipeline("p")
    rows = source(pipeline)
    rows.persist("kept").union(rows).sink("out", hf.sink.collect())
    with pytest.raises(DeclarationError, match=r"operator 'kept'.*by another path") as caught:
        cut(pipeline)
    assert "persist the other path, too" in str(caught.value.cure)


def test_two_pipelines_on_one_store_do_not_share_a_stream() -> None:
    names = []
    for name in ("p", "q"):
        pipeline = hf.Pipeline(name)
        source(pipeline).persist("kept").sink("out", hf.sink.collect())
        names += [stream.name for stream in cut(pipeline).streams]
    assert names == ["p.kept", "q.kept"]


def test_side_outputs_behind_a_cut() -> None:
    """Late rows are rows as they came, so all columns are kept and no partials are made of them."""

    def build(persisted: bool) -> hf.Pipeline:
        pipeline = hf.Pipeline("p")
        frame = ROWS.with_columns(ts=pl.when(pl.col("ts") % 9 == 8).then(pl.col("ts") - 30).otherwise("ts"))
        rows = pipeline.source("in", hf.source.memory(frame), event_time="ts", time_unit="s")
        if persisted:
            rows = rows.persist("kept")
        windows = rows.key_by("k").window(hf.window.tumbling("10s")).agg(n=hf.count())
        windows.sink("out", hf.sink.collect())
        windows.late.sink("late", hf.sink.collect())
        return pipeline

    pipeline = build(True)
    [declared] = cuts_of(pipeline.nodes)
    assert all(place.window is None and len(place.columns) == 3 for place in places_of(pipeline.nodes, declared))
    expected = run(build(False), WHOLE)
    [seen] = [o for o in run_fragments(pipeline, Cut(11, 2, 2), Cut(7, 3, 1)).values() if "late" in o.sinks]
    assert expected.sinks["late"].height > 0
    for sink in ("out", "late"):
        assert sorted(seen.rows(sink)) == sorted(expected.rows(sink))
