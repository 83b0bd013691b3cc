"""Array kernels over panes against a loop over windows."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.operators.sliding import WindowShape, kernels_cover, lay_out, slide_generic, slide_kernel, slide_presence
from strategies import INT64_MAX, INT64_MIN, examples

cells = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([*range(-5, 30), 10**12, 10**12 + 3])), min_size=1, unique=True
)
ints = st.none() | st.integers(-9, 9) | st.sampled_from([INT64_MIN, INT64_MAX])
floats = st.none() | st.floats(-1e3, 1e3, width=32) | st.sampled_from([math.nan, math.inf, -math.inf, -0.0])


@st.composite
def partials(draw, values):
    at = sorted(draw(cells))
    drawn = draw(st.lists(values, min_size=len(at), max_size=len(at)))
    return [group for group, _ in at], [pane for _, pane in at], drawn


def windows(groups, panes, values, length):
    """For each group and last pane of a window that holds a partial: its values, nulls left out."""
    found: dict[tuple[int, int], list[object]] = {}
    for group, pane, value in zip(groups, panes, values, strict=True):
        for end in range(pane, pane + length):
            found.setdefault((group, end), []).append(value)
    return {at: [value for value in inside if value is not None] for at, inside in found.items()}


def laid(groups, panes, length):
    return lay_out(np.array(groups, dtype=np.int64), np.array(panes, dtype=np.int64), length)


def slid(groups, panes, series, kernel, length):
    layout = laid(groups, panes, length)
    result = slide_kernel(layout, series, kernel, length).to_list()
    present = slide_presence(layout, length)
    owner = np.array(groups, dtype=np.int64)[layout.group]
    at = [(int(owner[i]), int(layout.end[i])) for i in range(layout.cells)]
    return {at[i]: result[i] for i in range(layout.cells) if present[i]}


def naive(values, kernel):
    if not values:
        return None
    if kernel == "sum":
        if isinstance(values[0], int):
            return (sum(values) + 2**63) % 2**64 - 2**63
        return float(sum(values))
    numbers = [value for value in values if value == value]
    if not numbers:
        return math.nan
    return min(numbers) if kernel == "min" else max(numbers)


def same(mine, its):
    if mine is None or its is None:
        return mine is its
    if isinstance(its, float):
        return (mine != mine and its != its) or mine == its or math.isclose(mine, its, abs_tol=1e-6)
    return mine == its


@pytest.mark.parametrize("kernel", ["sum", "min", "max"])
@pytest.mark.parametrize(("values", "dtype"), [(ints, pl.Int64), (floats, pl.Float64)], ids=["ints", "floats"])
@examples(40)
@given(data=st.data(), length=st.integers(1, 9))
def test_kernels_equal_a_loop(kernel, values, dtype, data, length):
    groups, panes, drawn = data.draw(partials(values))
    result = slid(groups, panes, pl.Series("v", drawn, dtype=dtype), kernel, length)
    wanted = windows(groups, panes, drawn, length)
    assert result.keys() == wanted.keys()
    for at, inside in wanted.items():
        assert same(result[at], naive(inside, kernel)), (at, inside, result[at])


@examples(60)
@given(given_=partials(st.text("ab", max_size=2)), length=st.integers(1, 13))
def test_doubling_keeps_the_order_of_panes(given_, length):
    """An aggregate that is associative and nothing more: concatenation."""
    groups, panes, drawn = given_
    layout = laid(groups, panes, length)

    def combine(rows):
        return rows.group_by("__hf_slot", maintain_order=True).agg(pl.col("v").str.join(""))

    found = slide_generic(layout, pl.DataFrame({"v": pl.Series(drawn, dtype=pl.String)}), combine, length)
    owner = np.array(groups, dtype=np.int64)[layout.group]
    result = {(int(owner[slot]), int(layout.end[slot])): text for slot, text in found.select("__hf_slot", "v").rows()}
    assert result == {at: "".join(inside) for at, inside in windows(groups, panes, drawn, length).items()}


def test_huge_gaps_take_no_room():
    panes = [0, 10**15, 2 * 10**15]
    assert laid([0, 0, 0], panes, 60).cells == 3 * 60


@examples(60)
@given(size=st.integers(1, 60), slide=st.integers(1, 60), time=st.integers(-(10**6), 10**6))
def test_shapes_agree_with_times(size, slide, time):
    size, slide = max(size, slide), min(size, slide)
    shape = WindowShape.of(size, slide)
    assert (shape.size, shape.slide) == (size, slide)
    pane = time // shape.pane
    covering = [
        w for w in range(shape.first_of(pane) - 2, shape.last_of(pane) + 3) if w * slide <= time < w * slide + size
    ]
    assert covering == list(range(shape.first_of(pane), shape.last_of(pane) + 1))
    closed = shape.last_closed(time)
    assert closed * slide + size <= time < (closed + 1) * slide + size


def test_kernels_cover_plain_numbers_and_times_only():
    schema = {"n": pl.Int64(), "t": pl.Datetime("us"), "s": pl.String(), "d": pl.Decimal(10, 2)}
    kernels = dict.fromkeys(schema, "max")
    assert kernels_cover(["n", "t"], kernels, schema)
    assert not kernels_cover(["n", "s"], kernels, schema)
    assert not kernels_cover(["d"], kernels, schema)
    assert not kernels_cover(["n"], {}, schema)
