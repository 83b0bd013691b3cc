"""A step of a stateful operator: what it gets, besides its state, and what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from holdfast.hidden_columns import BOUND
from holdfast.operators.footprint_trace import FootprintTrace
from holdfast.state.manifest import Manifest
from holdfast.state.tables import Writer

__all__ = ["Batch", "Grain", "StepContext", "StepInput", "StepResult", "clock_ticks", "effective_bound"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows or partials from one upstream task, in order. `bound` is the watermark before the task's first row, of
    the source the rows come from: what lies behind it is late."""

    frame: pl.DataFrame
    bound: int | None = None


@dataclass(frozen=True, slots=True)
class StepInput:
    """What came to a partition in an epoch: for each input port its batches, in order of arrival."""

    ports: Sequence[Sequence[Batch]]

    def batches(self, port: int = 0) -> Sequence[Batch]:
        return self.ports[port]


@dataclass(frozen=True, slots=True)
class Grain:
    """How closely the watermark before a row is wanted: in steps of `unit`; of `every` row, or only of those that lie
    behind it."""

    unit: int
    every: bool = False


@dataclass(slots=True)
class StepContext:
    """Where and when a step runs. A watermark of None means that nothing has been seen yet.

    `farthest` is how far rows alone have brought event time: once the sources have ended, `watermark_after` is the
    end of time. Where the results are not `wanted` by anybody, a step may leave them out. Where windows leave
    footprints, `trace` takes them. `grain` says how closely the watermarks of what it emits are wanted, where the
    operator does not follow the rule that a result comes when the watermark has passed its time. `clock_before` and
    `clock` are when the epoch before and this one were planned, in microseconds: the only clock that a step may use.
    """

    epoch: int
    watermark_before: int | None
    watermark_after: int | None
    writer: Writer
    farthest: int | None = None
    wanted: bool = True
    trace: FootprintTrace | None = None
    grain: Grain | None = None
    clock_before: int | None = None
    clock: int = 0


@dataclass(slots=True)
class StepResult:
    """The new state, what the operator emits, and the rows that came too late. Where it is known, BOUND is the
    watermark that each row of the output uses."""

    manifest: Manifest
    output: pl.DataFrame
    late: pl.DataFrame | None = None
    late_rows: int = 0


def effective_bound(batch: Batch) -> pl.Expr:
    """The watermark each row of the batch found: what it saw within its task, or what the task began with."""
    here = pl.col(BOUND) if BOUND in batch.frame.columns else pl.lit(None, pl.Int64)
    return pl.max_horizontal(here, pl.lit(batch.bound, pl.Int64))


def clock_ticks(seconds: float | None) -> int | None:
    """A reading of the clock, in whole microseconds."""
    return None if seconds is None else round(seconds * 1e6)
