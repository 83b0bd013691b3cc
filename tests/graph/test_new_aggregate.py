"""An aggregate that Holdfast does not have, written as `docs/extending.md` says: one function, beside the product or in
it. It runs in every kind of window, however the input is cut, and nothing else knows of it."""

from __future__ import annotations

from collections import defaultdict

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spread import spread

import holdfast as hf
from harness import Cut, run
from holdfast.errors import WrongTypeError
from strategies import examples

SIZE, SLIDE = 6, 2


def weighted_mean(value: str, weight: str) -> hf.Aggregate:
    """As a user writes one, by what is public."""
    return hf.aggregate(
        lift={"xw": (pl.col(value) * pl.col(weight)).sum(), "w": pl.col(weight).sum()},
        combine=lambda s: {"xw": s.xw.sum(), "w": s.w.sum()},
        lower=lambda s: s.xw / s.w,
        label="weighted mean",
    )


def declare(values: list[int | None], window: hf.window.Window) -> hf.Pipeline:
    frame = pl.DataFrame({"x": pl.Series(values, dtype=pl.Int64)}).with_row_index("ts").cast({"ts": pl.Int64})
    frame = frame.with_columns(k=pl.col("ts") % 2, w=1 + pl.col("ts") % 3)
    pipeline = hf.Pipeline("p")
    rows = pipeline.source("in", hf.source.memory(frame), event_time="ts", time_unit="s")
    found = rows.key_by("k").window(window).agg(apart=spread("x"), middle=weighted_mean("ts", "w"))
    found.sink("out", hf.sink.collect())
    return pipeline


cuts = st.builds(
    Cut, rows=st.integers(1, 9), tasks=st.integers(1, 3), scales=st.sampled_from([(), (1, 3)]), merges=st.just((1,))
)


@examples(20)
@given(st.lists(st.none() | st.integers(-50, 50), max_size=40), cuts)
def test_it_is_the_same_however_the_input_is_cut_scaled_and_merged(values: list[int | None], cut: Cut) -> None:
    groups: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for time in range(len(values)):
        for start in range(time // SLIDE * SLIDE, time - SIZE, -SLIDE):
            groups[time % 2, start, start + SIZE].append(time)
    expected = []
    for place, times in groups.items():
        known = [value for time in times if (value := values[time]) is not None]
        weights = [1 + time % 3 for time in times]
        middle = sum(time * weight for time, weight in zip(times, weights, strict=True)) / sum(weights)
        expected.append((*place, max(known) - min(known) if known else None, middle))
    window = hf.window.sliding(f"{SIZE}s", f"{SLIDE}s")
    assert sorted(run(declare(values, window), cut).rows(), key=str) == sorted(expected, key=str)


@pytest.mark.parametrize("window", [hf.window.tumbling("40s"), hf.window.session("5s"), hf.window.count(20)], ids=str)
def test_it_runs_in_every_kind_of_window(window: hf.window.Window) -> None:
    rows = run(declare(list(range(40)), window), Cut(7, 2)).rows()
    assert [row[-2] for row in rows] == [38, 38]


def test_it_is_explained() -> None:
    told = hf.explain(declare([1], hf.window.tumbling("2s")))
    assert "spread(x)" in told
    assert "weighted mean" in told


def test_a_column_that_it_cannot_take_is_named_with_a_cure() -> None:
    pipeline = hf.Pipeline("p")
    rows = pipeline.source("in", hf.source.memory(pl.DataFrame({"ts": [1], "name": ["a"]})), event_time="ts",
                           time_unit="s")  # fmt: skip
    with pytest.raises(WrongTypeError, match="spread of name, which is String") as caught:
        rows.key_by("ts").window(hf.window.tumbling("2s")).agg(apart=spread("name"))
    assert "hf.spread(pl.col('name').cast(" in caught.value.cure
