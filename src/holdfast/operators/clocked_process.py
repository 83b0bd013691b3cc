"""Keyed process by the clock: its timers and time-to-live follow the times at which epochs were planned.

That is the only clock there is for it, so an epoch that runs again comes to the same. Everything else is as in a keyed
process by event time, where all rows of an epoch have the same time and find the same watermark: the clock of its plan.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from holdfast.connect.time_range import END_OF_TIME
from holdfast.graph.nodes import ClockedProcess
from holdfast.hidden_columns import BOUND, ROW_TIME
from holdfast.operators.keyed_process import KeyedProcesses
from holdfast.operators.step import Grain, StepContext, StepInput, StepResult
from holdfast.operators.timers import TIMERS
from holdfast.spans import duration
from holdfast.state.manifest import Manifest

__all__ = ["ClockedProcesses"]

_LOOK = 1_000_000
"""How long to wait before looking for timers where it is not known when the next one is due."""


class ClockedProcesses(KeyedProcesses):
    declared_as = ClockedProcess

    @property
    def by_clock(self) -> bool:
        return True

    def grain(self, behind: Grain | None) -> Grain | None:
        return None

    def explain(self) -> list[str]:
        node = self.node
        kept = "for ever" if node.ttl is None else f"{duration(node.ttl / 1e6)} of the clock after the last row"
        timers = ", timers by the clock" if node.timers else ""
        return [f"keyed process by {', '.join(node.keys)}; state {dict(node.state)} kept {kept}{timers}"]

    def step(self, arrivals: StepInput, context: StepContext, manifest: Manifest) -> StepResult:
        plain = self.node.ttl is None and not self.node.timers
        now = pl.lit(context.clock, pl.Int64)
        rows = pl.concat([batch.frame for batch in arrivals.batches()])
        rows = rows if plain else rows.with_columns(now.alias(ROW_TIME), now.alias(BOUND))
        # When the input has ended, the timers that are left fire, as those of event time do.
        ended = context.watermark_after is not None and context.watermark_after >= END_OF_TIME
        after = END_OF_TIME if ended else context.clock
        clocked = replace(
            context, watermark_before=context.clock_before, watermark_after=after, farthest=context.clock, grain=None
        )
        return self._apply(rows, clocked, manifest, plain=plain)

    def due(self, manifest: Manifest, clock: int | None) -> int | None:
        times = [_due(piece.low, piece.high, clock) for piece in manifest.table(TIMERS)]
        return min((time for time in times if time is not None), default=None)


def _due(low: int, high: int, clock: int | None) -> int | None:
    """When the first of some timers is due that have not fired; some that have may lie among them."""
    if clock is None or low > clock:
        return low
    return None if high <= clock else min(high, clock + _LOOK)
