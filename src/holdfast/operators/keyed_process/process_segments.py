"""Segments: which rows of a key may be given to a keyed process in one call.

A key's rows come in the order of the source, each with the watermark before it. Between two of them a timer may fire,
or the state may go because nothing has touched the key for the time-to-live; and where the watermark of what is put out
is wanted, it must be the same for all rows of a key in a call. A segment is a run of a key's rows with nothing of the
kind inside. All of this follows from the rows themselves and never from how they are cut into epochs.

Rows are numbered in the order of keys; `stops` says for each row where the segment that begins with it ends at the
latest. A timer that is pending may end it earlier.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from holdfast.connect.time_range import END_OF_TIME

__all__ = ["LONG_AGO", "NEVER", "SegmentedRows", "Segmenting"]

Ints = npt.NDArray[np.int64]

NEVER = END_OF_TIME
LONG_AGO = -NEVER


@dataclass(frozen=True, slots=True)
class Segmenting:
    """What ends a segment. `delay`: the least time between a row and a timer that it sets; None without timers.
    `grain`: the unit in which the watermarks of one call must be the same; None if they need not be."""

    ttl: int | None
    delay: int | None
    grain: int | None


@dataclass(frozen=True, slots=True)
class SegmentedRows:
    """An epoch's rows in the order of their keys, and of the source within a key.

    `order` gives the place of each in the order of the source. `starts` and `ends` say where the rows of each key lie;
    where there are none, both are equal. `watermarks` are those before the rows, as far as timers and the time-to-live
    go by them; `marks` those of the rows' own sources.
    """

    order: Ints
    starts: Ints
    ends: Ints
    times: Ints
    watermarks: Ints
    marks: Ints
    stops: Ints

    @classmethod
    def of(
        cls, keys: Ints, count: int, times: Ints, marks: Ints, limit: int | None, touched: Ints, rule: Segmenting
    ) -> SegmentedRows:
        """`keys` numbers the key of each row, of `count` keys; `limit` is the watermark of the operator."""
        order = np.argsort(keys, kind="stable")
        sorted_keys, times, marks = keys[order], times[order], marks[order]
        starts = np.searchsorted(sorted_keys, np.arange(count))
        ends = np.searchsorted(sorted_keys, np.arange(count), side="right")
        # Several sources have watermarks of their own, and a key's rows may come from any of them.
        watermarks = np.minimum(_running_max(sorted_keys, marks), LONG_AGO if limit is None else limit)
        stops = ends[sorted_keys]
        if rule.delay is not None:
            due = first_at_least(watermarks, np.arange(len(order)) + 1, stops, times + rule.delay)
            stops = np.minimum(stops, _least_from_here(due))
        breaks = np.zeros(len(order), dtype=bool)
        if rule.ttl is not None:
            breaks |= np.maximum(times, watermarks) > _touched_before(sorted_keys, times, touched) + rule.ttl
        if rule.grain is not None:
            steps = marks // rule.grain
            breaks[1:] |= steps[1:] != steps[:-1]
        if breaks.any():
            at = np.where(breaks, np.arange(len(order)), len(order))
            stops = np.minimum(stops, np.append(_least_from_here(at)[1:], len(order)))
        return cls(order, starts, ends, times, watermarks, marks, stops)


def first_at_least(values: Ints, low: Ints, high: Ints, targets: Ints) -> Ints:
    """For each target the first index from `low` on, `high` if there is none before it, whose value is at least the
    target. The values between are in order."""
    low, high = low.copy(), high.copy()
    while (searching := low < high).any():
        middle = (low + high) // 2
        found = values[np.minimum(middle, len(values) - 1)] >= targets
        high = np.where(searching & found, middle, high)
        low = np.where(searching & ~found, middle + 1, low)
    return high


def _least_from_here(values: Ints) -> Ints:
    return np.minimum.accumulate(values[::-1])[::-1]


def _running_max(keys: Ints, values: Ints) -> Ints:
    """Within each key the greatest value so far."""
    if not ((values[1:] < values[:-1]) & (keys[1:] == keys[:-1])).any():
        return values
    frame = pl.DataFrame({"key": keys, "value": values})
    return frame.select(pl.col("value").cum_max().over("key")).to_series().to_numpy()


def _touched_before(keys: Ints, times: Ints, touched: Ints) -> Ints:
    """When each row's key was touched last before it: by the rows before it, or by what its state says; else never, so
    that there is nothing to lose."""
    before = np.full(len(keys), LONG_AGO)
    same = keys[1:] == keys[:-1]
    before[1:][same] = _running_max(keys, times)[:-1][same]
    before = np.maximum(before, touched[keys])
    return np.where(before == LONG_AGO, NEVER, before)
