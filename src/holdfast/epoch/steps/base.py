"""What an assembly function gets and returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl

from holdfast.epoch.steps.trace import Trace
from holdfast.graph.nodes import KeyedProcess, Stateful, StreamJoin, WindowAggregate
from holdfast.graph.windows import CountWindow, SessionWindow
from holdfast.plan.chain import named_errors
from holdfast.plan.lift import BOUND
from holdfast.plan.program import Grain
from holdfast.state.layout import ALL
from holdfast.state.manifest import Manifest
from holdfast.state.tables import Writer

__all__ = [
    "Arrivals",
    "Batch",
    "StepContext",
    "StepResult",
    "assemble",
    "effective_bound",
    "single_keyed",
]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows or partials from one upstream task, in order. `bound` is the watermark before the task's first row, of
    the source the rows come from: what lies behind it is late."""

    frame: pl.DataFrame
    bound: int | None = None


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What came to a partition in an epoch: for each input port its batches, in order of arrival."""

    ports: Sequence[Sequence[Batch]]

    def batches(self, port: int = 0) -> Sequence[Batch]:
        return self.ports[port]


@dataclass(slots=True)
class StepContext:
    """Where and when a step runs. A watermark of None means that nothing has been seen yet.

    `farthest` is how far rows alone have brought event time: once the sources have ended, `watermark_after` is the
    end of time. Where the results are not `wanted` by anybody, a step may leave them out. Where windows leave
    footprints, `trace` takes them. `grain` says how closely the watermarks of what a keyed process puts out are wanted.
    """

    epoch: int
    watermark_before: int | None
    watermark_after: int | None
    writer: Writer
    farthest: int | None = None
    wanted: bool = True
    trace: Trace | None = None
    grain: Grain | None = None


@dataclass(slots=True)
class StepResult:
    """The new state, what the operator puts out, and the rows that came too late. Where it is known, BOUND is the
    watermark that each row of the output goes by."""

    manifest: Manifest
    output: pl.DataFrame
    late: pl.DataFrame | None = None
    late_rows: int = 0


def effective_bound(batch: Batch) -> pl.Expr:
    """The watermark each row of the batch found: what it saw within its task, or what the task began with."""
    here = pl.col(BOUND) if BOUND in batch.frame.columns else pl.lit(None, pl.Int64)
    return pl.max_horizontal(here, pl.lit(batch.bound, pl.Int64))


def with_single_key(node: WindowAggregate, arrivals: Arrivals) -> tuple[WindowAggregate, Arrivals]:
    """An operator without keys as one with a key that is the same for all rows: then keyed tables serve it too."""
    if node.keys:
        return node, arrivals
    one = pl.lit(0, pl.Int8).alias(ALL)
    ports = [[Batch(batch.frame.with_columns(one), batch.bound) for batch in port] for port in arrivals.ports]
    return single_keyed(node), Arrivals(ports)


def single_keyed(node: WindowAggregate) -> WindowAggregate:
    """An operator with a key, whether it was declared with one or not."""
    if node.keys:
        return node
    return replace(node, keys=(ALL,), schema=pl.Schema({ALL: pl.Int8(), **node.schema}))


def assemble(node: Stateful, arrivals: Arrivals, context: StepContext, manifest: Manifest) -> StepResult:
    """Run the operator's assembly function."""
    from holdfast.epoch.steps import count_window, process, session_window, stream_join, time_window

    with named_errors(node.name, context.epoch):
        if isinstance(node, KeyedProcess):
            return process.step(node, arrivals, context, manifest)
        if isinstance(node, StreamJoin):
            return stream_join.step(node, arrivals, context, manifest)
        assert isinstance(node, WindowAggregate)
        if isinstance(node.window, CountWindow):
            result = count_window.step(*with_single_key(node, arrivals), context, manifest)
        elif isinstance(node.window, SessionWindow):
            result = session_window.step(*with_single_key(node, arrivals), context, manifest)
        else:
            return time_window.step(node, arrivals, context, manifest)
        return replace(result, output=result.output.drop(ALL, strict=False))
