"""Endless streams of the papers' data for experiments, as fast as memory: a pool of batches, replayed at later times.

The samples of the real datasets have some thousand rows, so a batch holds many rounds of a sample. Were they all alike,
a byte codec would find the sample again and again, and compression would look better than it is. So in each round the
rows come in another random order. Columns that only ever grow in the sample (times, counters) stay in order and go on
from round to round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from holdfast_lab.workloads.datasets import Dataset

__all__ = ["Replayed", "replayed"]


@dataclass(frozen=True, slots=True)
class Replayed:
    """Batch after batch without end; `steps` says by how much a growing column grows in one passage of the pool."""

    pool: list[pl.DataFrame]
    steps: dict[str, int]

    def batch(self, number: int) -> pl.DataFrame:
        passage, place = divmod(number, len(self.pool))
        frame = self.pool[place]
        if not passage:
            return frame
        return frame.with_columns(pl.col(name) + passage * step for name, step in self.steps.items())

    @property
    def bytes_per_row(self) -> float:
        return sum(frame.estimated_size() for frame in self.pool) / sum(frame.height for frame in self.pool)


def replayed(data: Dataset, rows: int, batches: int, seed: int) -> Replayed:
    """A pool of so many batches of so many rows."""
    if data.real is None:
        whole = data.load(rows * batches, seed=seed)
        steps = {data.event_time: data.period(whole)}
    else:
        whole, steps = _rounds(data, rows * batches, np.random.default_rng(seed))
    return Replayed([whole.slice(start, rows).rechunk() for start in range(0, rows * batches, rows)], steps)


def _rounds(data: Dataset, rows: int, random: np.random.Generator) -> tuple[pl.DataFrame, dict[str, int]]:
    sample = data.load()
    growing = [name for name, dtype in sample.schema.items() if dtype.is_integer() and _grows(sample[name])]
    periods = {name: int(sample[name][-1]) - int(sample[name][0]) + 1 for name in growing}
    periods[data.event_time] = data.period(sample)
    others = [name for name in sample.columns if name not in periods]
    rounds = -(-rows // sample.height)
    order = np.concatenate([random.permutation(sample.height) for _ in range(rounds)])
    number = pl.Series("round", np.repeat(np.arange(rounds), sample.height))
    made = [(sample[name].gather(order)) for name in others]
    for name, period in periods.items():
        column = pl.concat([sample[name]] * rounds)
        made.append((column + number * period).cast(sample.schema[name]).alias(name))
    whole = pl.DataFrame(made).select(sample.columns).head(rows)
    return whole, {name: rounds * period for name, period in periods.items()}


def _grows(column: pl.Series) -> bool:
    return bool(column[-1] > column[0] and column.is_sorted())
