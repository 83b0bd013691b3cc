"""Columns like those of the paper's Fig. 6, by name: what the encodings are measured on. Seeded, so runs compare."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl

__all__ = ["DISTRIBUTIONS", "column"]

_Builder = Callable[[int, np.random.Generator], pl.Series]
_START = 1_700_000_000_000_000


def _regular_timestamps(rows: int, _: np.random.Generator) -> pl.Series:
    return pl.Series(_START + 1_000 * np.arange(rows)).cast(pl.Datetime("us"))


def _crowded_timestamps(rows: int, random: np.random.Generator) -> pl.Series:
    """Many events in the same interval, in bursts of different size."""
    ticks = np.cumsum(random.random(rows) < 0.02)
    return pl.Series(_START + 1_000_000 * ticks).cast(pl.Datetime("us"))


def _jittered_timestamps(rows: int, random: np.random.Generator) -> pl.Series:
    return pl.Series(_START + 1_000 * np.arange(rows) + random.integers(0, 900, rows)).cast(pl.Datetime("us"))


def _small_integers(rows: int, random: np.random.Generator) -> pl.Series:
    return pl.Series(random.integers(0, 1_000, rows))


def _skewed_integers(rows: int, random: np.random.Generator) -> pl.Series:
    """Most are tiny, a few are huge."""
    return pl.Series(np.minimum(random.zipf(1.5, rows), 1 << 40))


def _runs(rows: int, random: np.random.Generator) -> pl.Series:
    lengths = random.integers(1, 60, rows // 20 + 1)
    return pl.Series(np.repeat(random.integers(0, 5_000, lengths.size), lengths)[:rows])


def _random_integers(rows: int, random: np.random.Generator) -> pl.Series:
    return pl.Series(random.integers(-(1 << 63), (1 << 63) - 1, rows))


def _few_strings(rows: int, random: np.random.Generator) -> pl.Series:
    return pl.Series([f"campaign-{number:04}" for number in range(100)]).gather(random.integers(0, 100, rows))


def _many_strings(rows: int, random: np.random.Generator) -> pl.Series:
    return pl.select("user-" + pl.Series(random.integers(0, 1 << 40, rows)).cast(pl.String)).to_series()


def _decimal_floats(rows: int, random: np.random.Generator) -> pl.Series:
    return pl.Series(np.round(random.normal(50.0, 20.0, rows), 2))


def _walking_floats(rows: int, random: np.random.Generator) -> pl.Series:
    """A sensor: near neighbours, all bits used."""
    return pl.Series(20.0 + np.cumsum(random.normal(0.0, 0.001, rows)))


def _random_floats(rows: int, random: np.random.Generator) -> pl.Series:
    return pl.Series(random.random(rows))


DISTRIBUTIONS: dict[str, _Builder] = {
    "timestamps, regular": _regular_timestamps,
    "timestamps, crowded": _crowded_timestamps,
    "timestamps, jittered": _jittered_timestamps,
    "integers, small": _small_integers,
    "integers, skewed": _skewed_integers,
    "integers, runs": _runs,
    "integers, random": _random_integers,
    "strings, few": _few_strings,
    "strings, many": _many_strings,
    "floats, decimal": _decimal_floats,
    "floats, walking": _walking_floats,
    "floats, random": _random_floats,
}


def column(name: str, rows: int, seed: int = 0) -> pl.Series:
    return DISTRIBUTIONS[name](rows, np.random.default_rng(seed)).alias("value")
