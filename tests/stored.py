"""Running a pipeline without Spark on a store that stays: plans, commits, leases and changes of code as in production.

`run_stored` may be called again and again, with the same pipeline or a changed one; each call goes on where the one
before it ended. It can be cut after some epochs, or die with an epoch planned and not committed.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from harness import MOST_EPOCHS, WHOLE, Cut, run_in
from holdfast.engine.instructions import LaunchEpoch
from holdfast.engine.loop import Loop
from holdfast.graph.pipeline import Pipeline
from holdfast.meta import MetaStore


class Killed(BaseException):
    """What a run dies of when the test says so."""


def run_stored(
    pipeline: Pipeline, store: Path, cut: Cut = WHOLE, *, epochs: int = MOST_EPOCHS, die: str | None = None
) -> dict[str, pl.DataFrame]:
    """Run at most so many epochs; the rows of each sink. `die` is `started`, or `planned`: before the first launch."""

    def follow(loop: Loop) -> None:
        if die == "started" and loop.machine.begun:
            raise Killed
        if die == "planned" and isinstance(loop.machine.next(), LaunchEpoch):
            raise Killed

    meta = MetaStore(store, sync=False)
    committed = meta.last_epoch(pipeline.name)
    meta.close()
    try:
        return run_in(store, pipeline, cut, most_epochs=committed + epochs, follow=follow).sinks
    except Killed:
        return {}
