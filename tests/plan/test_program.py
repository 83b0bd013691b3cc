"""From graph to program: stages, edges, and what may not change between runs."""

from __future__ import annotations

import polars as pl
import pytest

import holdfast as hf
from harness import Cut, run
from holdfast.errors import PipelineChangedError
from holdfast.plan.program import compile_program, edge_schema, keeps_time
from holdfast.plan.shape import check_shape, shape_of_program
from holdfast.sink import collect
from holdfast.source import memory
from holdfast.state.pipeline_shape import PipelineShape

FRAME = pl.DataFrame({"ts": [1, 2], "k": [1, 2], "v": [1.0, 2.0], "unused": ["x", "y"]})
TABLE = pl.DataFrame({"k": [1, 2], "name": ["a", "b"]})


def declare(*, size=10, keys=("k",), aggregate=None, extra=False):
    pipeline = hf.Pipeline("test")
    rows = pipeline.source("in", memory(FRAME), event_time="ts", time_unit="s")
    windows = rows.key_by(*keys).window(hf.window.tumbling(size), name="windows").agg(a=aggregate or hf.count())
    windows.sink("out", collect())
    if extra:
        rows.key_by("k").window(hf.window.session(5), name="sessions").agg(n=hf.count()).sink("more", collect())
    return pipeline


def test_a_stage_lies_between_two_shuffles():
    pipeline = hf.Pipeline("test")
    rows = pipeline.source("in", memory(FRAME), event_time="ts", time_unit="s")
    first = rows.filter(pl.col("v") > 0).key_by("k").window(hf.window.tumbling(10), name="first").agg(n=hf.count())
    other = rows.window(hf.window.tumbling(10), name="other").agg(n=hf.count())
    first.join(other, on="window_end", window=hf.window.tumbling(1), name="both").sink("out", collect())
    program = compile_program(pipeline)
    assert program.stages == 3
    assert program.stage_of == {"first": 1, "other": 1, "both": 2}
    assert [edge.consumer for edge in program.edges] == ["first", "other", "both", "both"]
    assert program.sources_of("both") == {"in"}
    assert "first" not in program.direct
    assert "filter" in program.direct


def test_a_pipeline_without_state_has_one_stage():
    pipeline = hf.Pipeline("test")
    pipeline.source("in", memory(FRAME)).select("k").sink("out", collect())
    assert compile_program(pipeline).stages == 1
    assert run(pipeline, Cut(1, 2, 3)).rows() == [(1,), (2,)]


def test_only_the_columns_an_aggregate_reads_travel():
    program = compile_program(declare(aggregate=hf.sum("v")))
    (edge,) = program.edges
    assert edge.partials
    assert set(edge.columns) == {"k", "v", "ts"}
    assert "unused" not in edge_schema(program, edge)


def test_rows_travel_whole_where_late_ones_are_wanted():
    pipeline = declare()
    pipeline.stream("windows").late.sink("late", collect())
    (edge,) = compile_program(pipeline).edges
    assert not edge.partials
    assert set(edge.columns) == set(FRAME.columns)


@pytest.mark.parametrize(
    ("table", "aggregate", "moved"),
    [
        (TABLE, hf.count(), True),
        (pl.concat([TABLE, TABLE]), hf.count(), False),
        (TABLE, hf.max("name"), False),
        (TABLE, hf.sum("v"), True),
    ],
    ids=["unique", "repeated-keys", "aggregate-reads-the-table", "aggregate-reads-the-stream"],
)
def test_a_table_join_moves_behind_the_lift_where_it_may(table, aggregate, moved):
    pipeline = hf.Pipeline("test")
    rows = pipeline.source("in", memory(FRAME), event_time="ts", time_unit="s")
    joined = rows.join_table(table, on="k", name="names")
    joined.key_by("name").window(hf.window.tumbling(10)).agg(a=aggregate).sink("out", collect())
    (edge,) = compile_program(pipeline).edges
    assert edge.before_join == ("names" if moved else None)


def test_time_is_kept_by_all_but_user_functions():
    pipeline = hf.Pipeline("test")
    rows = pipeline.source("in", memory(FRAME), event_time="ts", time_unit="s")
    kept = rows.select(pl.all()).with_columns(v=pl.col("v") + 1).filter(pl.col("k") > 0)
    mapped = kept.map_batches(lambda frame: frame)
    mapped.sink("out", collect())
    program = compile_program(pipeline)
    (source,) = program.sources
    assert keeps_time(program, source, kept.name)
    assert not keeps_time(program, source, mapped.name)


def test_the_shape_of_a_pipeline_survives_json_and_fits_itself():
    shape = shape_of_program(compile_program(declare(extra=True)))
    assert PipelineShape.decode(shape.encode()) == shape
    check_shape("test", PipelineShape.decode(shape.encode()), shape)
    check_shape("test", None, shape)


@pytest.mark.parametrize(
    ("change", "operator"),
    [
        ({"size": 20}, "windows"),
        ({"keys": ("k", "unused")}, "windows"),
        ({"aggregate": hf.mean("v")}, "windows"),
        ({"extra": True}, "sessions"),
    ],
)
def test_a_pipeline_that_would_misread_its_state_is_refused(change, operator):
    before = shape_of_program(compile_program(declare()))
    now = shape_of_program(compile_program(declare(**change)))
    with pytest.raises(PipelineChangedError) as caught:
        check_shape("test", before, now)
    assert caught.value.operator == operator
    assert caught.value.cure
    with pytest.raises(PipelineChangedError):
        check_shape("test", now, before)


def test_changes_that_leave_state_alone_are_allowed():
    before = shape_of_program(compile_program(declare()))
    pipeline = declare()
    pipeline.stream("in").filter(pl.col("v") > 1).sink("other", collect())
    check_shape("test", before, shape_of_program(compile_program(pipeline)))
