"""Hypothesis strategies: streams of rows as awkward as streams are, and ways to cut them.

Time is drawn in ticks. A `Clock` says what a tick is: an integer column with a unit, or a Datetime column.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from harness import Cut

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

Row = dict[str, Any]


FUZZ = int(os.environ.get("HOLDFAST_FUZZ", "0"))
"""Look further: so many times more examples, other ones in every run."""


def long_cases(*cases: Any) -> list[Any]:
    """Cases for `parametrize` that only `make test-long` tries; a tuple has the values of several arguments."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long) for case in cases]


# Explaining a failure runs it again many times, which is slow here and says little.
PHASES = (Phase.explicit, Phase.generate, Phase.shrink)


def examples(number: int) -> settings:
    """The same examples in every run, half of `number` where nobody looks further; a failure prints what
    reproduces it."""
    return settings(
        max_examples=number * FUZZ or max(1, number // 2),
        derandomize=not FUZZ,
        database=None,
        deadline=None,
        print_blob=True,
        phases=PHASES,
        suppress_health_check=list(HealthCheck),
    )


@dataclass(frozen=True, slots=True)
class Clock:
    """The type of a time column."""

    dtype: pl.DataType
    unit: str

    def ticks(self, number: int) -> str:
        """A duration of so many ticks."""
        return f"{number}{self.unit}"


SECONDS = Clock(pl.Int64(), "s")
CLOCKS = (
    SECONDS,
    Clock(pl.Int64(), "ns"),
    Clock(pl.Datetime("us"), "us"),
    Clock(pl.Datetime("ms", "UTC"), "ms"),
    Clock(pl.Datetime("ns"), "ns"),
)


@dataclass(frozen=True, slots=True)
class Given:
    """A stream: its rows in order of the source, with `ts` in ticks, and how its source is declared."""

    rows: list[Row]
    schema: dict[str, pl.DataType]
    clock: Clock = SECONDS
    lateness: int = 0
    extra: dict[str, Any] = field(default_factory=dict)

    def frame(self) -> pl.DataFrame:
        columns = {
            name: [row[name] for row in self.rows] if name != "ts" else self._times() for name, _ in self.schema.items()
        }
        return pl.DataFrame(columns, schema=self.schema)

    def _times(self) -> pl.Series:
        return pl.Series("ts", [row["ts"] for row in self.rows], pl.Int64).cast(self.schema["ts"])


cuts = st.builds(
    Cut,
    rows=st.sampled_from([1, 2, 3, 5, 8, 13, 1_000]),
    tasks=st.integers(1, 4),
    partitions=st.integers(1, 4),
    scales=st.just(()) | st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple),
    merges=st.just(()) | st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
)

small_ints = st.none() | st.integers(-5, 5)
extreme_ints = small_ints | st.sampled_from([INT64_MIN, INT64_MIN + 1, INT64_MAX - 1, INT64_MAX])
finite_floats = st.none() | st.floats(-1e3, 1e3, width=32)
any_floats = finite_floats | st.sampled_from([float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 1e300, 5e-324])
# Skewed: most rows have the first key.
int_keys = st.sampled_from([0, 0, 0, 0, 1, 1, 2, -3, 2**40, None])
string_keys = st.sampled_from(["a", "a", "a", "b", "", "ß", "日本語", "\x00", "a\x00", "🙂🙂", None])
float_keys = st.sampled_from([0.0, 0.0, -0.0, 1.5, float("nan"), float("inf"), None])
bool_keys = st.sampled_from([True, False, None])

COLUMNS: dict[str, tuple[pl.DataType, st.SearchStrategy[Any]]] = {
    "k": (pl.Int64(), int_keys),
    "s": (pl.String(), string_keys),
    "g": (pl.Float64(), float_keys),
    "b": (pl.Boolean(), bool_keys),
    "v": (pl.Int64(), small_ints),
    "e": (pl.Int64(), extreme_ints),
    "x": (pl.Float64(), finite_floats),
    "f": (pl.Float64(), any_floats),
    "w": (pl.Int32(), st.none() | st.sampled_from([-(2**31), 2**31 - 1, 0, 7])),
    "u": (pl.UInt64(), st.none() | st.sampled_from([0, 1, 2**64 - 1])),
}


@st.composite
def times(draw: st.DrawFn, count: int) -> list[int]:
    """Event times: in order, jittered, at random, or in bursts with huge empty gaps; negative ones too."""
    kind = draw(st.sampled_from(["ordered", "jittered", "random", "sparse", "equal"]))
    origin = draw(st.sampled_from([0, 0, -37, 1_000_003]))
    if kind == "equal":
        return [origin] * count
    if kind == "random":
        return [origin + t for t in draw(st.lists(st.integers(-40, 40), min_size=count, max_size=count))]
    step = st.integers(0, 6)
    if kind == "sparse":
        step = st.sampled_from([0, 1, 2, 7, 10**6, 10**12])
    steps = draw(st.lists(step, min_size=count, max_size=count))
    made = [origin + t for t in accumulate(steps)]
    if kind == "jittered":
        back = draw(st.lists(st.sampled_from([0, 0, 0, 1, 2, 5, 11, 30]), min_size=count, max_size=count))
        made = [t - b for t, b in zip(made, back, strict=True)]
    return made


@st.composite
def streams(
    draw: st.DrawFn, *columns: str, most: int = 30, clocks: tuple[Clock, ...] = CLOCKS, lateness: bool = True
) -> Given:
    """A stream with `ts` and these columns of `COLUMNS`, with runs of duplicates; it may be empty."""
    values = st.tuples(*(COLUMNS[name][1] for name in columns))
    drawn = draw(st.lists(values, max_size=most))
    at = draw(times(len(drawn)))
    rows = [{"ts": t, **dict(zip(columns, row, strict=True))} for t, row in zip(at, drawn, strict=True)]
    if rows and draw(st.booleans()):
        repeated = draw(st.integers(0, len(rows) - 1))
        rows[repeated:repeated] = [dict(rows[repeated])] * draw(st.integers(1, 4))
    clock = draw(st.sampled_from(clocks))
    late = draw(st.sampled_from([0, 0, 1, 5, 20, 10**7])) if lateness else 0
    schema = {"ts": clock.dtype, **{name: COLUMNS[name][0] for name in columns}}
    return Given(rows, schema, clock, late)


window_shapes = st.sampled_from([(10, 10), (1, 1), (10, 5), (12, 4), (7, 3), (10, 4), (5, 1), (17, 2), (40, 40)])
"""Size and slide in ticks; also sizes that are no multiple of the slide."""
