"""The hand-over: what the assembly tasks of an epoch need from the epoch before it. The driver writes it when that
epoch is committed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.formats import EPOCH_VERSION
from holdfast.operators.footprint_messages import FootprintOrder
from holdfast.state.manifest import Manifest
from holdfast.state.routing import Routing
from holdfast.store import Tier
from holdfast.stored_json import JsonForm
from holdfast.versioned_message import EpochVersion

__all__ = ["HandOver"]


@dataclass(frozen=True, slots=True)
class HandOver:
    """State by operator and partition, how far event time and the clock have come, and the tier to write to."""

    greatest: Mapping[str, int | None]
    done_before: Mapping[str, bool]
    done: Mapping[str, bool]
    pending: Mapping[str, int]
    open: Mapping[str, bool]
    routing: Mapping[str, Routing]
    state: Mapping[str, tuple[Manifest, ...]]
    tier: Tier = "stable"
    footprints: Mapping[str, FootprintOrder] = field(default_factory=dict)
    clock: float | None = None
    """The clock of the epoch before."""
    version: EpochVersion = EPOCH_VERSION

    def encode(self) -> str:
        return _FORM.encode(self)

    @staticmethod
    def decode(text: str | bytes) -> HandOver:
        return _FORM.decode(text)


_FORM = JsonForm(HandOver, "the hand-over of an epoch", EPOCH_VERSION)
