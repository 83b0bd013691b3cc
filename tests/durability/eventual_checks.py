"""Stories under eventual checkpoints, told and held against the same story without faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import lru_cache

import polars as pl
from eventual_harness import Script, Story, tell
from eventual_oracle import Auditor

import holdfast as hf
from harness import Cut
from holdfast.graph.policies import DELTA

Build = Callable[[], hf.Pipeline]


def source(pipeline: hf.Pipeline, frame: pl.DataFrame, lateness: int, name: str = "in") -> hf.Stream:
    return pipeline.source(name, hf.source.memory(frame), event_time="ts", time_unit="s", lateness=f"{lateness}s")


@lru_cache(8)
def faultless(build: Build, cut: Cut, empty: frozenset[int]) -> tuple[Story, Auditor]:
    witness = Auditor()
    return tell(build, Script(cut=cut, policy=DELTA, empty=empty), witness), witness


def check(build: Build, script: Script) -> Counter[str]:
    """Returns what the story came to."""
    expected, oracle = faultless(build, script.cut, script.empty)
    witness = Auditor(faultless=oracle.states)
    story = tell(build, script, witness)
    assert story.epochs == expected.epochs
    for epoch in range(1, story.epochs + 1):
        assert story.rows(epoch) == expected.rows(epoch), f"the output of epoch {epoch}"
    return Counter(
        runs=1, epochs=story.epochs, kills=story.kills, losses=story.losses, gathered=len(story.gathered),
        extents=witness.extents, opens=witness.opens, checks=witness.checks, recovered=witness.recovered,
        replayed=sum(story.replayed),
    )  # fmt: skip
