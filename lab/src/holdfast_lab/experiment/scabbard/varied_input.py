"""Dense input, as `bench/dense_input.py` makes it, in which no two rounds are alike.

`dense` repeats the rows of a sample at their own times, hundreds of times. What is computed from them does not care,
but a byte codec finds the same rows again and again, and compression would look better than it is. A stream this fast
comes from many senders, and each has something else to say. So each round of a generated dataset has its own seed, and
in each round of a real one the rows come in another random order; columns that only ever grow stay as they are.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from holdfast_lab.bench.dense_input import DENSE_ROWS, DenseInput
from holdfast_lab.workloads.datasets import Dataset

__all__ = ["varied"]


def varied(data: Dataset, seed: int, rows: int = DENSE_ROWS) -> DenseInput:
    """About `rows` rows, at the times of `dense(data, rows)`."""
    events = data.load(seed=seed)
    times = max(1, rows // events.height)
    if data.real is None:
        frame = pl.concat([events, *(data.load(seed=seed + number) for number in range(1, times))])
    else:
        frame = _shuffled(events, data.event_time, times, np.random.default_rng(seed))
    return DenseInput(data, frame.sort(data.event_time, maintain_order=True), data.period(events))


def _shuffled(events: pl.DataFrame, time: str, times: int, random: np.random.Generator) -> pl.DataFrame:
    """So many rounds of the rows, each in random order but for the times and other columns that grow."""
    order = np.concatenate([random.permutation(events.height) for _ in range(times)])
    staying = np.tile(np.arange(events.height), times)
    return events.select(
        column.gather(staying if column.name == time or _grows(column) else order) for column in events.get_columns()
    )


def _grows(column: pl.Series) -> bool:
    return column.dtype.is_integer() and bool(column[-1] > column[0]) and column.is_sorted()
