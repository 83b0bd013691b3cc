"""What all checkpoint policies have in common: texts, what they refuse, and that they only take what is offered."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import DeclarationError
from holdfast.graph.policies import (
    DELTA,
    NONE,
    OPEN_ONLY,
    CheckpointPolicy,
    ReplayStarts,
    as_policy,
    catalog,
    tier_of,
)
from strategies import examples

ALL = [DELTA, NONE, OPEN_ONLY, hf.checkpoint.interval("5s"), hf.checkpoint.eventual("2s")]


@dataclass
class Facts:
    name: str = "p"
    reads_again: bool = True
    shared: bool = True
    streams: dict[str, str] = field(default_factory=lambda: {"op": "p.op.footprints"})

    def footprint_streams(self) -> dict[str, str]:
        return self.streams


def test_the_ways_to_name_a_policy_are_one_per_policy() -> None:
    assert {type(policy) for policy in ALL} == set(catalog.POLICIES)
    assert sorted(catalog.__all__) == sorted(policy.name for policy in catalog.POLICIES)
    assert all(getattr(hf.checkpoint, policy.name) for policy in catalog.POLICIES)


@pytest.mark.parametrize("kind", catalog.POLICIES)
def test_the_texts_that_a_cure_shows_are_understood(kind: type[CheckpointPolicy]) -> None:
    with pytest.raises(DeclarationError) as caught:
        as_policy("sometimes")
    assert kind.usage in caught.value.cure
    for text in re.findall(r"'([^']+)'", kind.usage):
        assert isinstance(as_policy(text), kind)


@pytest.mark.parametrize("policy", ALL, ids=str)
def test_state_that_is_not_durable_needs_input_and_a_tier_that_all_see(policy: CheckpointPolicy) -> None:
    policy.check(Facts())
    for facts, why in ((Facts(reads_again=False), "read again"), (Facts(shared=False), "others cannot read it")):
        if policy.tier == "stable":
            policy.check(facts)
        else:
            with pytest.raises(DeclarationError, match=why):
                policy.check(facts)


@examples(50)
@given(
    policy=st.sampled_from(ALL),
    starts=st.builds(ReplayStarts, st.integers(0, 9), st.none() | st.integers(1, 9), st.none() | st.integers(0, 9)),
)
def test_a_replay_begins_with_what_is_there(policy: CheckpointPolicy, starts: ReplayStarts) -> None:
    assert getattr(starts, policy.replay_start(starts)) is not None


@pytest.mark.parametrize(
    ("text", "tier"),
    [(None, "stable"), ("delta", "stable"), ("interval(5 s)", "volatile"), ("none", "volatile"),
     ("eventual(recovery=2 s, CI=0.05 s, CP=1 s)", "volatile"), ("eventual(Q=9, CI=0.05 s, CP=1 s)", "volatile")],
)  # fmt: skip
def test_records_say_where_their_tasks_wrote(text: str | None, tier: str) -> None:
    """As text that stores have."""
    assert tier_of(text) == tier


def test_what_has_no_policy_in_the_catalog_is_none() -> None:
    for text in ("delta()", "none(5s)", "interval", "interval()", "auto()", "auto(5s)", "Delta", ""):
        with pytest.raises(DeclarationError, match="is not a checkpoint policy"):
            as_policy(text)


@pytest.mark.parametrize("policy", ALL, ids=str)
def test_several_hosts_cannot_leave_footprints(policy: CheckpointPolicy) -> None:
    if policy.footprints is None:
        policy.check_on_hosts("p")
        return
    with pytest.raises(DeclarationError, match=re.escape(f"'{policy}' of 'p' needs a single process")):
        policy.check_on_hosts("p")
