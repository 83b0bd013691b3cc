"""Windows without a key, as windows with one key that all rows share: then keyed tables serve them too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import polars as pl

from holdfast.graph.nodes import WindowAggregate
from holdfast.hidden_columns import ALL
from holdfast.operators.step import Batch, StepContext, StepInput, StepResult
from holdfast.state.manifest import Manifest

__all__ = ["single_keyed", "step_with_key"]

Step = Callable[[WindowAggregate, StepInput, StepContext, Manifest], StepResult]


def single_keyed(node: WindowAggregate) -> WindowAggregate:
    """An operator with a key, whether it was declared with one or not."""
    if node.keys:
        return node
    return replace(node, keys=(ALL,), schema=pl.Schema({ALL: pl.Int8(), **node.schema}))


def step_with_key(
    step: Step, node: WindowAggregate, arrivals: StepInput, context: StepContext, manifest: Manifest
) -> StepResult:
    """Run the step of an operator that may have been declared without a key."""
    if node.keys:
        return step(node, arrivals, context, manifest)
    one = pl.lit(0, pl.Int8).alias(ALL)
    ports = [[Batch(batch.frame.with_columns(one), batch.bound) for batch in port] for port in arrivals.ports]
    result = step(single_keyed(node), StepInput(ports), context, manifest)
    return replace(result, output=result.output.drop(ALL))
