"""Running a pipeline without Spark, as the kit of `hf.testing` does, for tests that look into the engine."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
from msgspec import structs

from holdfast.engine.fragment_runs import open_cuts
from holdfast.engine.loop import Loop
from holdfast.epoch.record import Base
from holdfast.epoch.transaction import committing
from holdfast.graph.pipeline import Pipeline
from holdfast.meta import StreamMeta
from holdfast.plan.cuts import cut_pipeline
from holdfast.pstream.description import Placement
from holdfast.pstream.stream_entry import stream_store
from holdfast.testkit.quick_store import quick_store
from holdfast.testkit.stepping import (
    MOST_EPOCHS,
    WHOLE,
    Commits,
    CutPace,
    Noted,
    Outcome,
    Ran,
    Stepping,
    check_intervals,
    options,
    plain_rows,
    platform,
)
from holdfast.testkit.stepping import EpochCut as Cut

__all__ = [
    "MOST_EPOCHS",
    "WHOLE",
    "Commits",
    "Cut",
    "CutPace",
    "Noted",
    "Outcome",
    "Ran",
    "Stepping",
    "check_intervals",
    "options",
    "plain_rows",
    "platform",
    "rerun",
    "run",
    "run_fragments",
    "run_in",
]


def run_in(store: Path, pipeline: Pipeline, cut: Cut = WHOLE, **given: Any) -> Outcome:
    """Run in a store until the sources end."""
    outcome = Stepping(store, pipeline, cut, **given).to_the_end()
    assert outcome.epochs < MOST_EPOCHS, "the sources do not end"
    return outcome


def run(pipeline: Pipeline, cut: Cut = WHOLE, *, now: float = 0.0) -> Outcome:
    """Run until the sources end. All epochs are planned at the time `now`."""
    with quick_store() as store:
        return run_in(store.root, pipeline, cut, clock=lambda: now, meta=store.meta())


def rerun(pipeline: Pipeline, outcome: Outcome, base: int, *, after: int, sink: str = "out") -> pl.DataFrame:
    """What the epochs behind `after` put out when all state up to there is lost, and a recovery begins again with empty
    state after epoch `base`."""
    with quick_store() as store:
        meta, name = store.meta(), pipeline.name
        lease = meta.acquire(name, "before", 0.0, 1.0)
        for epoch in range(max(base, 1), outcome.epochs + 1):
            with committing(meta, lease, epoch) as transaction:
                transaction.plan(outcome.plans[epoch - 1], 0.0)
            if epoch <= after:
                lost = structs.replace(outcome.records[epoch], base=Base(base, empty=True))
                with committing(meta, lease, epoch) as transaction:
                    assert transaction.record(lost, 0.0)
        meta.release(lease)
        rows = run_in(store.root, pipeline, meta=meta).sinks[sink]
        return rows.sort(rows.columns)


def run_fragments(
    pipeline: Pipeline,
    cut: Cut,
    *more: Cut,
    placements: dict[str, Placement] | None = None,
    follow: Callable[[Loop], None] = lambda loop: None,
) -> dict[str, Outcome]:
    """Run a pipeline that p-streams cut, one fragment after the other, each cut into epochs in its own way.

    Without `placements` the p-streams are where they would be put for real.
    """
    with quick_store() as store:
        meta = store.meta()
        if placements is not None:
            made = cut_pipeline(pipeline, placements)
            for plan in made.streams:
                StreamMeta(meta).declare(plan.name, plan.description().encode())
        made = open_cuts(pipeline, meta)
        cuts = itertools.cycle((cut, *more))
        outcomes = {
            fragment.name: run_in(store.root, fragment.pipeline, own, meta=store.meta(), follow=follow)
            for fragment, own in zip(made.fragments, cuts, strict=False)
        }
        for stream in made.streams:
            assert StreamMeta(meta).retained(stream.name) == (0, 0, 0), "what all readers have read is released"
            assert not list(stream_store(store.root, stream.name).names())
        return outcomes
