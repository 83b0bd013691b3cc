"""A checkpoint policy that Holdfast does not have, written as `docs/extending.md` says: one class, and its place in the
catalog. It copies state after every n epochs, and runs, dies and recovers like the others, which know nothing of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import polars as pl
import pytest
from eventual_harness import Death, Life, Script, Story, tell

import holdfast as hf
from harness import Cut
from holdfast.durability.policy_choice import choose
from holdfast.errors import DeclarationError
from holdfast.graph.policies import (
    DELTA,
    NONE,
    CheckpointPolicy,
    FragmentFacts,
    IntervalPolicy,
    PolicyFigures,
    PricedPolicy,
    as_policy,
    catalog,
    strictest,
)
from holdfast.plan.explain import explain


@dataclass(frozen=True, slots=True)
class EveryPolicy(CheckpointPolicy):
    """A copy after every `epochs` epochs."""

    name: ClassVar[str] = "every"
    usage: ClassVar[str] = "'every(3)' with your number of epochs"
    epochs: int

    def __str__(self) -> str:
        return f"every({self.epochs})"

    @classmethod
    def parsed(cls, arguments: str | None) -> EveryPolicy:
        return cls(int(arguments or ""))

    def explain(self, fragment: FragmentFacts) -> list[str]:
        return [f"state is copied to stable storage after every {self.epochs} epochs;"]

    @property
    def strictness(self) -> tuple[float, ...]:
        return (self.epochs,)

    def copy_due(self, seconds: float, epochs: int) -> bool:
        return epochs >= self.epochs

    @classmethod
    def priced(cls, figures: PolicyFigures, failures: float, recovery: float | None) -> PricedPolicy:
        return PricedPolicy(EveryPolicy(4), figures.fresh / 2, 1.5)


@pytest.fixture(autouse=True)
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "POLICIES", (*catalog.POLICIES[:2], EveryPolicy, *catalog.POLICIES[2:]))


def declared(checkpoint: str | None = None) -> hf.Pipeline:
    """Windows by count, whose state has no end: without a copy everything would be replayed."""
    pipeline = hf.Pipeline("test")
    frame = pl.DataFrame({"ts": range(120), "k": [number % 7 for number in range(120)], "x": range(120)})
    rows = pipeline.source("in", hf.source.memory(frame), event_time="ts", time_unit="s")
    windows = rows.key_by("k").window(hf.window.count(5, 2), name="sums", checkpoint=checkpoint)
    windows.agg(n=hf.count(), total=hf.sum("x")).sink("out", hf.sink.collect())
    return pipeline


class Follower:
    """Notes where each epoch of a story would begin again, and lets copies be finished, so that all runs are alike."""

    def __init__(self) -> None:
        self.bases: list[int | None] = []

    def __call__(self, life: Life, epoch: int, replayed: bool) -> None:
        assert life.record.policy == "every(3)" or replayed
        if not replayed:
            self.bases.append(None if life.record.base is None else life.record.base.epoch)
        if life.checkpoints._job._work is not None:
            life.checkpoints._job._work.result()


def outputs(story: Story) -> Iterator[dict[str, list[str]]]:
    return (story.rows(epoch) for epoch in range(1, story.epochs + 1))


def test_it_copies_dies_and_recovers_as_it_says() -> None:
    cut = Cut(rows=10, partitions=2)
    expected = tell(declared, Script(cut=cut, policy=DELTA))
    follower = Follower()
    deaths = (Death(8), Death(5, "ran"))
    story = tell(declared, Script(cut=cut, policy=EveryPolicy(3), deaths=deaths), follower)
    assert list(outputs(story)) == list(outputs(expected))
    assert story.losses == 2
    assert follower.bases == [0, 0, 0, 3, 3, 3, 6, 6, 6, 9, 9, 9], "the epoch behind the last copy"
    # First epochs 7 and 8, behind the copy of 6; then 10, behind the copy of 9, and 11, which was not committed.
    assert story.replayed == [0, 2, 2]


def test_an_operator_can_declare_it_by_its_text() -> None:
    text = "durability: every(3)\n  state is copied to stable storage after every 3 epochs;"
    assert text in explain(declared("every(3)"))
    assert as_policy("every(3)") == EveryPolicy(3)
    with pytest.raises(DeclarationError) as caught:
        declared("every(often)")
    assert caught.value.operator == "sums"
    assert "'every(3)' with your number of epochs" in caught.value.cure


def test_its_place_in_the_catalog_is_how_strict_it_is() -> None:
    assert strictest([NONE, EveryPolicy(5), EveryPolicy(2)]) == EveryPolicy(2)
    assert strictest([EveryPolicy(1), IntervalPolicy(60.0)]) == IntervalPolicy(60.0)


def test_it_is_chosen_where_it_costs_least() -> None:
    figures = PolicyFigures(5.0, 50e6, 2e6, 10e6, None)
    found = choose(figures, DELTA, 1)
    assert found.policy == EveryPolicy(4)
    assert "every(4) costs least: delta 50 MB/s, interval(5 s)" in found.why
    assert "every(4) (1.5 s)" in choose(figures, found.policy, 1, recovery=1.0).why, "it would take too long"
