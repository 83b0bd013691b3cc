"""Event-time timers: which keys are due when the watermark moves.

A timer is a row (key, at) in a pane table ordered by `at`. Nothing is ever taken out by hand: what lies behind the
watermark has fired. Whether a timer still counts is up to its owner, who knows the key's newest timer.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from holdfast.connect.time_range import END_OF_TIME
from holdfast.errors import OperatorError
from holdfast.hidden_columns import PANE, POSITION, TIMER
from holdfast.operators.contract import StateTable
from holdfast.operators.step import StepContext
from holdfast.state.manifest import Manifest
from holdfast.state.position import key_positions
from holdfast.state.tables import PaneTable
from holdfast.store import DirectoryStore

__all__ = ["TIMERS", "TimerTable", "check_timers", "completed_timers", "timer_columns", "timer_table"]


TIMERS = "timers"


def timer_columns(keys: pl.Schema) -> StateTable:
    """The table of timers of such keys."""
    return StateTable(TIMERS, False, pl.Schema({**keys, PANE: pl.Int64()}), (PANE,))


def completed_timers(
    timers: pl.DataFrame, rows: pl.DataFrame, keys: Sequence[str]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Timers that people give with keyed state (`rows`): with those that the state itself has (TIMER); and the keys
    without any, where the state does not say."""
    if TIMER not in rows.columns:
        return timers, rows.join(timers, on=list(keys), how="anti", nulls_equal=True).select(keys)
    pending = rows.select(*keys, pl.col(TIMER).alias(PANE)).drop_nulls(PANE)
    return pl.concat([timers, pending.select(timers.columns)]).unique(maintain_order=True), rows.select(keys).clear()


def timer_table(store: DirectoryStore) -> PaneTable:
    """Timers as rows: a timer that was set twice counts once."""
    return PaneTable(TIMERS, store, lambda rows: rows.unique(maintain_order=True))


def check_timers(timers: pl.DataFrame) -> None:
    """Refuse a timer that could never fire."""
    outside = timers.filter(~pl.col("at").is_between(-END_OF_TIME, END_OF_TIME, closed="none"))
    if outside.height:
        raise OperatorError(
            f"a timer is set for {outside['at'][0]}, which no watermark ever reaches",
            cure="set a timer for a time that can be reached, in the unit of the event time, or a null `at` for none",
        )


class TimerTable:
    """The timers of one operator partition."""

    def __init__(self, keys: tuple[str, ...], schema: pl.Schema, context: StepContext) -> None:
        self._keys = keys
        self._context = context
        columns = {key: schema[key] for key in keys}
        self._schema = pl.Schema({POSITION: pl.UInt64(), **columns, PANE: pl.Int64()})
        self._table = timer_table(context.writer.store)

    def due(self, manifest: Manifest) -> pl.DataFrame:
        """Keys and `at` of the timers the watermark passes in this epoch."""
        after = self._context.watermark_after
        frames = []
        if after is not None:
            before = self._context.watermark_before
            frames = self._table.read(manifest, -END_OF_TIME if before is None else before + 1, after)
        rows = pl.concat(frames) if frames else pl.DataFrame(schema=self._schema)
        return rows.select(*self._keys, pl.col(PANE).alias("at")).unique(maintain_order=True)

    def set(self, manifest: Manifest, timers: pl.DataFrame) -> Manifest:
        """Add timers (keys and `at`) and forget those the watermark has passed."""
        after = self._context.watermark_after
        positions = key_positions([timers[key] for key in self._keys], timers.height)
        rows = timers.select(*self._keys, pl.col("at").cast(pl.Int64).alias(PANE))
        rows = rows.insert_column(0, pl.Series(POSITION, positions))
        return self._table.append(manifest, self._context.writer, rows, after)
