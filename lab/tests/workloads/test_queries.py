"""Every query declares on its dataset, with the columns its oracle has."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
import pytest

from holdfast.connect.base import Chunk, Position, Slice, Source, Take
from holdfast.errors import DeclarationError
from holdfast.graph.nodes import ProcessContext, SinkNode, WindowAggregate
from holdfast.graph.windows import TimeWindow
from holdfast.sink import collect
from holdfast_lab.workloads import PAPER_QUERIES, QUERIES, first_difference, oracle, query
from holdfast_lab.workloads.queries import running_totals

BOUNDS = {"window_start": pl.Int64, "window_end": pl.Int64}
SEGMENT = {"highway": pl.Int32, "direction": pl.Int32, "segment": pl.Int32}
SCHEMAS = {
    "CM1": {"category": pl.Int32, **BOUNDS, "total_cpu": pl.Float64},
    "CM2": {"job_id": pl.Int64, **BOUNDS, "mean_cpu": pl.Float64},
    "SG1": {**BOUNDS, "global_mean": pl.Float64},
    "SG2": {"plug": pl.Int32, "household": pl.Int32, "house": pl.Int32, **BOUNDS, "local_mean": pl.Float64},
    "SG3": {"house": pl.Int32, **BOUNDS, "plugs": pl.Int64},
    "LRB1": {**SEGMENT, **BOUNDS, "mean_speed": pl.Float64},
    "LRB2": {**SEGMENT, "vehicle": pl.Int32, **BOUNDS, "reports": pl.Int64},
    "LRB3": {**SEGMENT, **BOUNDS, "vehicles": pl.Int64},
    "YSB": {"campaign_id": pl.Int64, **BOUNDS, "views": pl.Int64, "last_view": pl.Int64},
    "NQ": {"auction": pl.Int64, "window_end": pl.Int64, "bids": pl.Int64},
    "SM": {**BOUNDS, "mean_mf01": pl.Float64, "mean_mf02": pl.Float64, "mean_mf03": pl.Float64},
    "words": {"word": pl.String, **BOUNDS, "times": pl.Int64},
    "topk": {**BOUNDS, "ranking": pl.List(pl.String), "views": pl.List(pl.Int64)},
    "cec": {"item_id": pl.Int64, "window_index": pl.Int64, "mean_price": pl.Float64},
    "keyed": {"key": pl.Int64, "event_time": pl.Int64, "n": pl.Int64, "total": pl.Int64},
}


class Nothing(Source):
    """A source with columns and no rows."""

    bounded = True

    def __init__(self, schema: pl.Schema) -> None:
        self.schema = schema

    def start(self) -> Position:
        return {}

    def take(self, position: Position, rows: int, pieces: int) -> Take:
        return Take((), {}, done=True)

    def read(self, piece: Slice) -> Iterator[Chunk]:
        return iter(())


def source_of(name: str) -> Nothing:
    return Nothing(query(name).dataset.load(10).schema)


@pytest.mark.parametrize("name", QUERIES)
def test_query_declares_with_the_schema_of_its_oracle(name: str) -> None:
    pipeline = query(name).build(source_of(name), collect())
    assert any(isinstance(node, SinkNode) for node in pipeline.check())
    assert pipeline.name == name.lower()
    assert pipeline.nodes["results"].schema == pl.Schema(SCHEMAS[name])
    assert oracle(name, query(name).dataset.load(50)).schema == pl.Schema(SCHEMAS[name])


def test_the_eleven_queries_are_there() -> None:
    assert PAPER_QUERIES == ("CM1", "CM2", "SG1", "SG2", "SG3", "LRB1", "LRB2", "LRB3", "YSB", "NQ", "SM")


def test_slide_turns_sliding_windows_into_tumbling_ones() -> None:
    pipeline = query("CM1").build(source_of("CM1"), collect(), slide=60, pipeline_name="tumbling")
    node = pipeline.nodes["total"]
    assert isinstance(node, WindowAggregate)
    assert node.window == TimeWindow(60, 60)
    assert pipeline.name == "tumbling"


@pytest.mark.parametrize("slide", [0, 7, 120])
def test_slide_that_does_not_divide_the_window_is_refused(slide: int) -> None:
    with pytest.raises(DeclarationError, match="does not divide"):
        query("CM1").build(source_of("CM1"), slide=slide)


def test_slide_of_a_query_without_time_window_is_refused() -> None:
    with pytest.raises(DeclarationError, match="no time window"):
        query("cec").build(source_of("cec"), slide=1)


def test_names_are_found_in_any_case_and_unknown_ones_list_the_known() -> None:
    assert query("lrb1") is query("LRB1")
    assert query("TOPK").name == "topk"
    with pytest.raises(DeclarationError, match="CM1, CM2, SG1"):
        query("Q7")


@pytest.mark.parametrize("cut", [1, 7, 100, 1_000])
def test_running_totals_do_not_depend_on_how_rows_are_cut(cut: int) -> None:
    events = query("keyed").dataset.load(1_000).with_columns(pl.col("key") % 20)
    state = pl.DataFrame(schema={"key": pl.Int64, "n": pl.Int64, "total": pl.Int64})
    outputs = []
    for start in range(0, events.height, cut):
        rows = events.slice(start, cut)
        touched = state.filter(pl.col("key").is_in(rows["key"].unique().to_list()))
        step = running_totals(rows, touched, ProcessContext(0, None, pl.DataFrame()))
        assert step.output is not None
        assert step.upserts is not None
        outputs.append(step.output)
        state = pl.concat([state.join(step.upserts, on="key", how="anti"), step.upserts])
    assert first_difference(pl.concat(outputs), oracle("keyed", events)) is None
