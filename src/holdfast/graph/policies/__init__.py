"""Checkpoint policies: when state becomes durable. As a user declares them, as text, and which of them is strictest.

| policy | what is durable, when | after the loss of the volatile tier |
|---|---|---|
| delta | each epoch's state | goes on with the next epoch |
| interval(c) | the state every c seconds | restores the last checkpoint and replays the epochs since |
| eventual | a footprint of each window, when it opens and as needed | gathers the last ones and replays the rest |
| none | nothing | replays what its open windows were made of, or everything |

Under all but `delta` the state of each epoch is written to the volatile tier, which outlives the process but
not the host.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from holdfast.errors import DeclarationError, WrongTypeError
from holdfast.graph.policies import catalog
from holdfast.graph.policies.checkpoint_policy import (
    CheckpointPolicy,
    FragmentFacts,
    PolicyFigures,
    PricedPolicy,
    ReplayStart,
    ReplayStarts,
)
from holdfast.graph.policies.delta import DELTA
from holdfast.graph.policies.eventual import OPEN_ONLY, EventualPolicy, eventual_within
from holdfast.graph.policies.interval import IntervalPolicy
from holdfast.graph.policies.none import NONE
from holdfast.store import Tier

__all__ = [
    "DELTA",
    "NONE",
    "OPEN_ONLY",
    "CheckpointPolicy",
    "EventualPolicy",
    "FragmentFacts",
    "IntervalPolicy",
    "PolicyFigures",
    "PolicyLike",
    "PricedPolicy",
    "ReplayStart",
    "ReplayStarts",
    "as_policy",
    "check_policy",
    "eventual_within",
    "strictest",
    "tier_of",
]

PolicyLike = CheckpointPolicy | str | None
"""A policy, its name ("delta", "none", "interval(5s)", "eventual(2s)", "eventual(Q=200000, CI=50ms)"), or "auto" or
None to have it chosen by cost."""

_TEXT = re.compile(r"\s*(\w+)(?:\((.*)\))?\s*")


def as_policy(value: PolicyLike) -> CheckpointPolicy | None:
    """None stands for "as costs least"."""
    if value is None or isinstance(value, catalog.POLICIES):
        return value
    if not isinstance(value, str):
        raise WrongTypeError(
            f"{value!r} is not a checkpoint policy",
            cure='give e.g. hf.checkpoint.eventual("2s"), hf.checkpoint.interval("5s"), or a name: "delta"',
        )
    if (found := _TEXT.fullmatch(value)) is not None:
        name, arguments = found.groups()
        if name == "auto" and arguments is None:
            return None
        try:
            for policy in catalog.POLICIES:
                if policy.name == name:
                    return policy.parsed(arguments)
        except (WrongTypeError, ValueError, TypeError):
            pass
    *most, last = (policy.usage for policy in catalog.POLICIES)
    raise DeclarationError(f"'{value}' is not a checkpoint policy", cure=f"choose 'auto', {', '.join(most)}, or {last}")


def check_policy(value: PolicyLike, operator: str) -> CheckpointPolicy | None:
    """The policy that an operator asks for."""
    try:
        return as_policy(value)
    except DeclarationError as error:
        raise error.at(operator=operator) from None


def strictest(policies: Iterable[CheckpointPolicy]) -> CheckpointPolicy | None:
    """Operators of a fragment are checkpointed together: the one that asks for most decides."""
    return min(policies, key=lambda policy: (catalog.POLICIES.index(type(policy)), policy.strictness), default=None)


def tier_of(policy: str | None) -> Tier:
    """Where tasks write under the policy that a record names. One that names none is of `delta`."""
    found = None if policy is None else as_policy(policy)
    return DELTA.tier if found is None else found.tier
