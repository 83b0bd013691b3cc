"""Lift by counting gives what lift by grouping gives, or declines."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import holdfast as hf
from holdfast.graph.nodes import WindowAggregate
from holdfast.hidden_columns import PANE
from holdfast.operators.dense_lift import dense_partials, is_dense
from holdfast.operators.lift import lift_partials
from holdfast.operators.panes import pane_shape
from holdfast.operators.sliding import WindowShape


def declared(frame: pl.DataFrame, keys: list[str], window: hf.graph.windows.TimeWindow) -> WindowAggregate:
    stream = hf.Pipeline("p").source("s", hf.source.memory(frame), event_time="ts", time_unit="ms")
    keyed = stream.key_by(*keys) if keys else stream
    node = keyed.window(window).agg(n=hf.count(), x=hf.sum("x"), i=hf.sum("i"), m=hf.mean("i")).node
    assert isinstance(node, WindowAggregate)
    return node


def grouped(frame: pl.DataFrame, node: WindowAggregate, shape: WindowShape) -> pl.DataFrame:
    rows = frame.lazy().with_columns(pl.col("ts").floordiv(shape.pane).alias(PANE))
    return lift_partials(rows, node, list(node.keys), bounded=False).collect()


def rows(count: int, seed: int, **changes: pl.Series) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "ts": np.sort(rng.integers(-5000, 20_000, count)),
            "a": rng.integers(-3, 4, count).astype(np.int8),
            "b": rng.integers(100, 104, count).astype(np.uint32),
            "x": rng.normal(size=count).astype(np.float32),
            "i": rng.integers(-1000, 1000, count).astype(np.int32),
        }
    ).with_columns(**changes)


@pytest.mark.parametrize("keys", [[], ["a"], ["a", "b"], ["b", "a"]], ids=str)
@pytest.mark.parametrize("window", [hf.window.tumbling("3s"), hf.window.sliding("4s", "1s")], ids=str)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ordered", [True, False], ids=["in order", "mixed"])
def test_counting_equals_grouping(
    keys: list[str], window: hf.graph.windows.TimeWindow, seed: int, ordered: bool
) -> None:
    # More than one block, so that blocks are put together too.
    frame = rows(300_000, seed)
    frame = frame if ordered else frame.sample(fraction=1.0, shuffle=True, seed=seed)
    node = declared(frame, keys, window)
    shape = pane_shape(node)
    assert node.time is not None
    assert is_dense(node, frame.schema)
    counted = dense_partials(frame, node, hf.graph.durations.EventTime("ts", "ms"), shape)
    assert counted is not None
    expected = grouped(frame, node, shape).select(counted.columns)
    assert_frame_equal(counted, expected, check_row_order=False, rel_tol=1e-9)


def test_infinities_and_nan_stay_in_their_cells() -> None:
    frame = rows(50_000, 1)
    odd = (
        pl.when(pl.int_range(pl.len()) == 7)
        .then(float("inf"))
        .when(pl.int_range(pl.len()) == 40_000)
        .then(float("nan"))
    )
    frame = frame.with_columns(x=odd.otherwise("x").cast(pl.Float32))
    node = declared(frame, ["a"], hf.window.tumbling("1s"))
    shape = pane_shape(node)
    counted = dense_partials(frame, node, hf.graph.durations.EventTime("ts", "ms"), shape)
    assert counted is not None
    assert_frame_equal(
        counted, grouped(frame, node, shape).select(counted.columns), check_row_order=False, rel_tol=1e-9
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"x": pl.Series([None] + [1.0] * 9999)},
        {"a": pl.Series([0] * 9999 + [10**9])},
        {"i": pl.Series([2**40] * 10_000)},
    ],
    ids=["nulls", "keys far apart", "sums beyond exact floats"],
)
def test_rows_that_do_not_suit_are_declined(changes: dict[str, pl.Series]) -> None:
    frame = rows(10_000, 2, **changes)
    node = declared(frame, ["a"], hf.window.tumbling("3s"))
    time = hf.graph.durations.EventTime("ts", "ms")
    assert dense_partials(frame, node, time, pane_shape(node)) is None


def test_strings_and_computed_values_are_grouped() -> None:
    frame = rows(100, 3).with_columns(s=pl.lit("x"))
    stream = hf.Pipeline("p").source("s", hf.source.memory(frame), event_time="ts", time_unit="ms")
    by_text = stream.key_by("s").window(hf.window.tumbling("1s")).agg(n=hf.count()).node
    computed = stream.key_by("a").window(hf.window.tumbling("1s")).agg(n=hf.sum(pl.col("i") * 2)).node
    assert isinstance(by_text, WindowAggregate)
    assert isinstance(computed, WindowAggregate)
    assert not is_dense(by_text, frame.schema)
    assert not is_dense(computed, frame.schema)
