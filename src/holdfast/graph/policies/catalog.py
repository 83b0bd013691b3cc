"""All checkpoint policies there are, from strict to lax, and the functions by which a user names them: those of
`hf.checkpoint`."""

from __future__ import annotations

from holdfast.graph.policies.checkpoint_policy import CheckpointPolicy
from holdfast.graph.policies.delta import DeltaPolicy, delta
from holdfast.graph.policies.eventual import EventualPolicy, eventual
from holdfast.graph.policies.interval import IntervalPolicy, interval
from holdfast.graph.policies.none import NonePolicy, none

__all__ = ["delta", "eventual", "interval", "none"]

POLICIES: tuple[type[CheckpointPolicy], ...] = (DeltaPolicy, IntervalPolicy, EventualPolicy, NonePolicy)
