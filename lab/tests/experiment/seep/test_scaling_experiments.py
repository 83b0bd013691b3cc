"""The experiments about scaling: input that rises, rows that are dropped, the queries, and what is told of a run."""

from __future__ import annotations

import math
import pickle
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from holdfast.connect.sinks.file_sink import read_output
from holdfast.errors import HoldfastError
from holdfast.graph.nodes import ProcessContext, Step
from holdfast_lab.experiment.seep.manual_vs_auto import best_by_hand
from holdfast_lab.experiment.seep.rising_input import TIME, Ramp, RisingSource, RisingTake
from holdfast_lab.experiment.seep.scaling_queries import CountViews, PageViews, Positions, page_views, toll_calculator
from holdfast_lab.experiment.seep.scaling_runs import (
    ScaledEpoch,
    ScalingRun,
    put_under_load,
    reached,
    relative,
    weighted_percentile,
)

RAMP = Ramp(low=100.0, high=300.0, rise=10.0, hold=5.0)


def numbers(start: int, stop: int) -> pl.DataFrame:
    return pl.DataFrame({"n": range(start, stop)}, schema={"n": pl.Int64})


def test_a_ramp_knows_how_many_rows_are_due_and_when_each_is() -> None:
    assert [RAMP.until(at) for at in (-1.0, 0.0, 10.0, 15.0, 99.0)] == [0, 0, 2_000, 3_500, 3_500]
    assert RAMP.rows == 3_500
    assert [RAMP.rate(at) for at in (0.0, 5.0, 12.0, 15.0)] == [100, 200, 300, 0]
    rows = np.arange(0.0, 3_500.0, 50.0)
    due = RAMP.due(rows)
    assert [RAMP.until(float(at)) for at in due] == pytest.approx(list(rows))
    flat = Ramp(low=10.0, high=10.0, rise=5.0, hold=5.0)
    assert list(flat.due(np.array([0.0, 20.0, 90.0]))) == [0.0, 2.0, 9.0]
    assert list(Ramp(10.0, 10.0, 0.0, 5.0).due(np.array([0.0, 20.0]))) == [0.0, 2.0]


def source(now: list[float], taken: list[RisingTake], patience: float | None = None) -> RisingSource:
    return RisingSource(numbers, RAMP, patience=patience, on_take=taken.append, clock=lambda: now[0])


def test_rows_are_there_when_they_are_due_and_wait_in_a_closed_loop() -> None:
    now, taken = [50.0], list[RisingTake]()
    closed = source(now, taken)
    first = closed.take(closed.start(), 10_000, 2)
    assert [piece.rows for piece in first.slices] == [1]
    assert closed.take(first.position, 10_000, 2).slices == ()
    now[0] = 60.0
    second = source(now, taken).take(first.position, 500, 2)  # also after a restart
    assert [(piece.base, piece.rows) for piece in second.slices] == [(1, 250), (251, 250)]
    now[0] = 99.0
    last = closed.take(second.position, 10_000, 1)
    assert last.done
    assert [(take.start, take.stop, take.dropped) for take in taken] == [(0, 1, 0), (1, 501, 0), (501, 3_500, 0)]


def test_an_open_loop_drops_what_has_waited_too_long_and_counts_it() -> None:
    now, taken = [0.0], list[RisingTake]()
    opened = source(now, taken, patience=1.0)
    position = opened.take(opened.start(), 10_000, 1).position
    now[0] = 10.0
    found = opened.take(position, 10_000, 1)
    oldest = math.ceil(RAMP.until(9.0))
    assert [piece.base for piece in found.slices] == [oldest]
    assert found.position["dropped"] == oldest - 1
    now[0] = 30.0  # long after the end
    end = opened.take(found.position, 10_000, 1)
    assert end.done
    assert end.slices == ()
    assert sum(take.stop - take.start for take in taken) + taken[-1].dropped == RAMP.rows


def test_rows_have_the_time_at_which_they_were_due_also_in_a_task() -> None:
    made = pickle.loads(pickle.dumps(source([0.0], [])))
    opened = source([99.0], [])
    take = opened.take({"offset": 1_990, "dropped": 0, "since": 0.0}, 20, 1)
    [chunk] = made.read(take.slices[0])
    assert chunk.frame.columns == [TIME, "n"]
    assert chunk.frame["n"].to_list() == list(range(1_990, 2_010))
    assert chunk.frame[TIME].is_sorted()
    assert chunk.frame[TIME][10] == pytest.approx(10_000, abs=1)


@pytest.mark.parametrize("make", [PageViews(3), Positions(3)])
def test_the_same_seed_gives_the_same_rows_however_they_are_cut(make: PageViews | Positions) -> None:
    whole = make(130_000, 140_000)
    assert whole.height == 10_000
    assert whole.equals(pl.concat([make(130_000, 132_000), make(132_000, 140_000)]))


def folded(function: object, rows: pl.DataFrame, cuts: list[int], keys: list[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Output and state of a keyed process whose rows come in epochs."""
    state, out = pl.DataFrame(), []
    nothing = ProcessContext(1, None, pl.DataFrame(schema={**rows.select(keys).schema, "at": pl.Int64}))
    for low, high in zip([0, *cuts], [*cuts, rows.height], strict=True):
        part = rows.slice(low, high - low)
        known = state.join(part, on=keys, how="semi") if state.height else EMPTY[tuple(keys)]
        made = function(part, known, nothing)  # type: ignore[operator]
        assert isinstance(made, Step)
        assert made.upserts is not None
        rest = state.join(made.upserts, on=keys, how="anti") if state.height else state
        state = pl.concat([rest, made.upserts]) if rest.height else made.upserts
        out += [made.output] if made.output is not None and made.output.height else []
    return pl.concat(out), state.sort(keys)


EMPTY = {
    ("page",): pl.DataFrame(schema={"page": pl.Int64, "window": pl.Int64, "views": pl.Int64, "shown": pl.String}),
    ("highway", "direction", "segment"): pl.DataFrame(
        schema={
            "highway": pl.Int32, "direction": pl.Int32, "segment": pl.Int32,
            "minute": pl.Int64, "vehicles": pl.List(pl.Int32), "speed": pl.Float64, "stopped": pl.Int64,
        }
    ),
}  # fmt: skip


def test_views_are_counted_by_page_and_window_however_rows_are_cut() -> None:
    rows = PageViews(1)(0, 4_000).with_columns(pl.Series(TIME, range(4_000)))
    out, state = folded(CountViews(1_000), rows, [], ["page"])
    again, same = folded(CountViews(1_000), rows, [500, 999, 2_500], ["page"])
    assert out.equals(again)
    assert state.equals(same)
    counted = out["views"].sum() + state["views"].sum()
    assert counted == rows.height
    assert state["shown"].str.contains(r"^[a-z]{2}: ").all()


def test_tolls_do_not_depend_on_how_rows_are_cut() -> None:
    rows = Positions(1)(0, 6_000).with_columns(
        pl.Series(TIME, range(6_000)), segment=(pl.col("position") // 200_000).cast(pl.Int32)
    )
    keys = ["highway", "direction", "segment"]
    out, state = folded(toll_calculator, rows, [], keys)
    again, same = folded(toll_calculator, rows, [10, 3_333], keys)
    assert out.equals(again)
    assert state.equals(same)
    assert out["toll"].max() > 0  # type: ignore[operator]


def seen(at: float, start: int, stop: int, cpu: tuple[float, ...], dropped: int = 0) -> ScaledEpoch:
    return ScaledEpoch(RisingTake(at - 1, 0.0, start, stop, dropped), at, stop - start, cpu, (0.01,))


def told() -> ScalingRun:
    flat = Ramp(10.0, 10.0, 0.0, 4.0)
    story = ScalingRun(flat, "x")
    story.epochs = [
        seen(1.0, 0, 10, (0.5,)),
        seen(2.0, 10, 20, (0.9,)),
        seen(3.0, 20, 30, (0.5, 0.4)),
        seen(5.0, 34, 40, (0.5, 0.4), dropped=4),
    ]
    story.takes = [epoch.taken for epoch in story.epochs]
    return story


def test_a_story_tells_throughput_partitions_drops_and_latency() -> None:
    story = told()
    assert (story.rows, story.dropped, story.partitions, story.changes) == (36, 4, 2, 1)
    assert story.throughput(0.0, 2.0) == 10
    assert story.throughput(3.0, 5.0) == 3
    assert [story.partitions_at(at) for at in (0.5, 2.5, 3.0)] == [1, 1, 2]
    [least, most] = story.latency_ms(0, 100)
    assert least == pytest.approx(100)
    assert most == pytest.approx(1_600)
    assert story.latency_ms(0, since=3.5)[0] == pytest.approx(1_100)
    assert [row["partitions"] for row in story.timeline(1.0)] == [1, 1, 2, 2, 2]
    assert sum(row["dropped_tuples_per_s"] for row in story.timeline(1.0)) == 4


def test_percentiles_go_by_weight() -> None:
    assert weighted_percentile([3.0, 1.0, 2.0], [1.0, 1.0, 8.0], 50) == 2.0
    assert weighted_percentile([3.0, 1.0, 2.0], [8.0, 1.0, 1.0], 50) == 3.0
    assert math.isnan(weighted_percentile([], [], 50))


def test_the_capacity_of_a_partition_is_that_of_the_later_epochs() -> None:
    found = reached([seen(2.0, 0, 1, (0.1,)), *(seen(2.0 + n, 0, 1_000, (0.8,)) for n in range(1, 8))])
    assert (found.rows_per_s, found.use) == (pytest.approx(1_000), pytest.approx(0.8))
    assert relative(0.5, found).threshold == pytest.approx(0.4)
    with pytest.raises(HoldfastError, match="too few"):
        reached([seen(1.0, 0, 1, (0.1,))])


def test_the_best_by_hand_is_the_least_that_is_about_as_good_as_the_best() -> None:
    rows = [{"partitions": n, "latency_p95_ms": p95} for n, p95 in ((1, 900), (2, 440), (3, 400), (4, 520))]
    assert best_by_hand(rows)["partitions"] == 2


@pytest.mark.spark
def test_a_ranking_of_all_views_comes_out_of_a_run(spark: object, tmp_path: Path) -> None:
    ramp = Ramp(low=500.0, high=2_000.0, rise=2.0, hold=1.5)
    story = put_under_load(spark, page_views(1, window_s=1), ramp, tmp_path, partitions=2)  # type: ignore[arg-type]
    assert (story.rows, story.dropped) == (ramp.rows, 0)
    assert len(story.latency_ms(50, 95)) == 2
    top = read_output(tmp_path / "out", "parquet").sort("window_end")
    assert top["window_end"].to_list() == [1_000, 2_000, 3_000, 4_000]
    times = (ramp.due(np.arange(ramp.rows, dtype=np.float64)) * 1_000).astype(np.int64)
    views = PageViews(1)(0, ramp.rows).with_columns(pl.Series("window_end", (times // 1_000 + 1) * 1_000))
    best = views.group_by("window_end", "page").len().group_by("window_end").agg(pl.col("len").max()).sort("window_end")
    assert top["views"].list.first().to_list() == best["len"].to_list()
