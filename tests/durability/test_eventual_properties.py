"""Eventual checkpoints, whatever the stream, the operator, the policy and the moment of death: the account of the log
is what the log has, state that is lost comes back as it was, and the output is that of a run without faults.

Runs have no Spark in them (`eventual_harness`), so that there can be many of them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import polars as pl
import pytest
from eventual_checks import Build, check, source
from eventual_harness import Death, Script
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from harness import Cut
from holdfast.graph.policies import DELTA, NONE, OPEN_ONLY, CheckpointPolicy, EventualPolicy, IntervalPolicy
from holdfast.state.goals import FootprintRules
from strategies import FUZZ, examples

TOLD: Counter[str] = Counter()
"""What all examples together came to."""


@pytest.fixture(scope="module", autouse=True)
def enough_was_tried() -> Iterator[None]:
    """Printed with -s: how much all examples came to."""
    yield
    print(f"\neventual checkpoints: {dict(TOLD)}, examples {'x' + str(FUZZ) if FUZZ else 'as always (derandomized)'}")


# streams

KEYS: dict[str, tuple[pl.DataType, Callable[[int], Any]]] = {
    "int": (pl.Int64(), lambda n: None if n == 3 else n * n - 7),
    "string": (pl.String(), lambda n: None if n == 3 else f"k{n}" if n else ""),
}


@st.composite
def frames(draw: st.DrawFn, kind: str) -> pl.DataFrame:
    """Rows from a seed: few or many keys, skewed or not, in order or not, in bursts."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    rows = draw(st.sampled_from([2, 60, 100, 150, 0, 200]))
    width = draw(st.sampled_from([1, 4, 20, 90]))
    skew = draw(st.sampled_from([1.0, 3.0]))
    jitter = draw(st.sampled_from([0, 0, 5, 40]))
    steps = draw(st.sampled_from([(0, 1), (0, 0, 0, 0, 3), (0, 0, 0, 60), (1, 2, 9)]))
    dtype, key = KEYS[kind]
    now, ts, ks = 0, [], []
    for _ in range(rows):
        now += chance.choice(steps)
        ts.append(now - chance.randint(0, jitter))
        ks.append(key(int(width * chance.random() ** skew)))
    values = [chance.choice([None, *range(-5, 6)]) for _ in range(rows)]
    return pl.DataFrame(
        {"ts": ts, "k": ks, "v": values, "x": [chance.randint(-40, 40) / 4 for _ in range(rows)]},
        schema={"ts": pl.Int64(), "k": dtype, "v": pl.Int64(), "x": pl.Float64()},
    )


# operators

AGGREGATES: dict[str, Callable[[], hf.Aggregate]] = {
    "n": hf.count,
    "sum_v": lambda: hf.sum("v"),
    "sum_x": lambda: hf.sum("x"),
    "mean_x": lambda: hf.mean("x"),
    "least": lambda: hf.min("v"),
    "most": lambda: hf.max("x"),
    "first_v": lambda: hf.first("v"),
    "last_x": lambda: hf.last("x"),
    "top": lambda: hf.top_k("x", 2),
    "distinct": lambda: hf.approx_distinct("v"),
}
names_of_aggregates = st.lists(st.sampled_from(sorted(AGGREGATES)), min_size=1, max_size=3, unique=True)
count_shapes = st.sampled_from([(1, 1), (5, 5), (3, 1), (4, 2), (5, 3), (6, 4), (7, 5), (40, 40)])
"""Size and slide; a slide beyond the size is refused when it is declared."""
time_shapes = st.sampled_from([(10, 10), (40, 40), (200, 200), (10, 5), (30, 7), (12, 5), (60, 10)])


@st.composite
def windows(draw: st.DrawFn, by_time: bool) -> Build:
    frame, lateness = draw(frames(draw(st.sampled_from(sorted(KEYS))))), draw(st.sampled_from([0, 0, 10, 100]))
    size, slide = draw(time_shapes if by_time else count_shapes)
    window = hf.window.sliding(f"{size}s", f"{slide}s") if by_time else hf.window.count(size, slide)
    named = draw(names_of_aggregates)
    keyed = draw(st.sampled_from([True, True, True, False]))

    def build() -> hf.Pipeline:
        pipeline = hf.Pipeline("test")
        rows = source(pipeline, frame, lateness)
        windowed = rows.key_by("k").window(window) if keyed else rows.window(window)
        windowed.agg(**{name: AGGREGATES[name]() for name in named}).named("windows").sink("out", hf.sink.collect())
        return pipeline

    return build


@st.composite
def joins(draw: st.DrawFn) -> Build:
    kind = draw(st.sampled_from(sorted(KEYS)))
    left, right = draw(frames(kind)), draw(frames(kind)).select("ts", "k", w="v")
    size, slide = draw(time_shapes)
    how = draw(st.sampled_from(["inner", "left", "full"]))
    lateness = draw(st.sampled_from([0, 20]))

    def build() -> hf.Pipeline:
        pipeline = hf.Pipeline("test")
        ours, theirs = source(pipeline, left, lateness, "left"), source(pipeline, right, lateness, "right")
        made = ours.join(theirs, on="k", window=hf.window.sliding(f"{size}s", f"{slide}s"), how=how, name="pairs")
        made.sink("out", hf.sink.collect())
        return pipeline

    return build


# policies

spends = st.sampled_from([(1e-9, 1e-3), (6e-3, 6e-3), (6e-3, 2.5), (1e6, 1e-3), (1e6, 1e-3)])
"""CI and CP. A look at the clock takes 1e-3, so the first is enough for nothing, and the second for a few windows; an
epoch takes a second, so the third has its turn after each third one."""


@st.composite
def policies(draw: st.DrawFn) -> CheckpointPolicy:
    kind = draw(st.sampled_from(["open", "sizes", "sizes", "recovery"]))
    if kind == "open":
        return OPEN_ONLY
    spend, period = draw(spends)
    if kind == "recovery":
        # CI/CP is at most 1 for people; only the time to spend is stretched here.
        recovery = draw(st.sampled_from([1e-9, 1e-4, 1e-2, 10.0]))
        return EventualPolicy(FootprintRules(spend=min(spend, period), period=period, recovery=recovery))
    most = st.sampled_from([None, 1, 10, 60])
    records, rows = draw(most), draw(most)
    records = 5 if records is None and rows is None else records
    return EventualPolicy(FootprintRules(most_records=records, most_rows=rows, spend=spend, period=period))


# deaths

moments = st.sampled_from(["planned", "ran", "committed", "committed"])


@st.composite
def scripts(draw: st.DrawFn, *, mixed: bool = False, deaths: int = 8) -> Script:
    cut = Cut(
        rows=draw(st.sampled_from([4, 8, 20])),
        tasks=draw(st.integers(1, 2)),
        partitions=draw(st.integers(1, 3)),
        scales=draw(st.just(()) | st.lists(st.integers(1, 4), min_size=2, max_size=4).map(tuple)),
    )
    other = st.sampled_from([DELTA, NONE, IntervalPolicy(1e-3), IntervalPolicy(1e6)])
    ends = [
        Death(
            after=draw(st.integers(1, 7)),
            moment=draw(moments),
            host=draw(st.sampled_from([True, True, True, False])),
            partitions=draw(st.sampled_from([None, None, 1, 3])),
            clean=draw(st.sampled_from([False, False, False, False, True])),
            policy=draw(policies() | other) if mixed else draw(st.none() | policies()),
        )
        for _ in range(deaths)
    ]
    return Script(
        cut=cut,
        policy=draw(policies()),
        deaths=tuple(ends),
        empty=frozenset(draw(st.lists(st.integers(1, 30), max_size=4))),
        chunk=draw(st.sampled_from([1, 2, 1_000])),
        batches=draw(st.sampled_from([1, 64, 64])),
        retain=draw(st.sampled_from([1, 3])),
    )


@examples(8)
@given(build=windows(by_time=False), script=scripts())
def test_count_windows_survive_any_loss(build: Build, script: Script) -> None:
    TOLD.update(check(build, script))


@examples(8)
@given(build=windows(by_time=True), script=scripts())
def test_time_windows_survive_any_loss(build: Build, script: Script) -> None:
    TOLD.update(check(build, script))


@examples(5)
@given(build=joins(), script=scripts())
def test_joins_survive_any_loss(build: Build, script: Script) -> None:
    TOLD.update(check(build, script))


@examples(5)
@given(build=windows(by_time=False) | windows(by_time=True) | joins(), script=scripts(mixed=True))
def test_policies_may_change_from_life_to_life(build: Build, script: Script) -> None:
    TOLD.update(check(build, script))


def test_enough_kill_points_were_tried() -> None:
    """Runs last; on its own it has nothing to say."""
    if TOLD["runs"] >= 26:
        assert TOLD["kills"] >= 100
        assert TOLD["gathered"] >= 30, "recoveries that came to their end before the next death"
        assert TOLD["checks"] >= 100
