"""Checkpoint policies: when state becomes durable, and which policy costs least. Pure.

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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["DELTA", "NONE", "Choice", "Kind", "Measured", "Policy", "choose", "eventual_policy", "strictest"]

Kind = Literal["delta", "interval", "eventual", "none"]
_ORDER: tuple[Kind, ...] = ("delta", "interval", "eventual", "none")
_WORTH = 0.7
"""Another policy must cost less than this share of the present one: figures are noisy, and a change is not free."""


@dataclass(frozen=True, slots=True)
class Policy:
    """When the state of a fragment is made durable; `seconds` is the c of interval(c).

    The rest is of `eventual`: windows get a new footprint, oldest first, while recovery would read more than
    `most_records` (Q) or replay more than `most_rows` (U), or, where neither is set, as late as a recovery within
    `recovery` seconds allows; no more than `spend` (CI) out of every `period` (CP) seconds go into that.
    """

    kind: Kind
    seconds: float = 0.0
    most_records: int | None = None
    most_rows: int | None = None
    spend: float = 0.0
    period: float = 0.0
    recovery: float | None = None
    only_open: bool = False
    """Footprints of opening and closing windows only, as a baseline."""

    def __str__(self) -> str:
        if self.kind == "interval":
            return f"interval({self.seconds:g} s)"
        if self.kind != "eventual":
            return self.kind
        if self.only_open:
            return "eventual(open)"
        named = {"recovery": self.recovery, "Q": self.most_records, "U": self.most_rows}
        parts = [f"{name}={value:g} s" if name == "recovery" else f"{name}={value}"
                 for name, value in named.items() if value is not None]  # fmt: skip
        return f"eventual({', '.join(parts)}, CI={self.spend:g} s, CP={self.period:g} s)"


DELTA = Policy("delta")
NONE = Policy("none")


def eventual_policy(recovery: float) -> Policy:
    """Footprints as a recovery within so many seconds needs them, for a twentieth of the time."""
    return Policy("eventual", spend=0.05, period=1.0, recovery=recovery)


def strictest(policies: list[Policy]) -> Policy | None:
    """Operators of a fragment are checkpointed together: the one who asks for most decides."""
    return min(policies, key=lambda policy: (_ORDER.index(policy.kind), policy.seconds), default=None)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a running fragment showed, per second.

    `written` is the bytes of state p-units of all epochs, `fresh` those of the p-units that were still part of the
    state at the end of an interval of `seconds` and had not been at its beginning, `read` the bytes of input that were
    processed. `history` is how many seconds of input `none` would have to process again; None where it is everything
    since the first epoch.
    """

    seconds: float
    written: float
    fresh: float
    read: float
    history: float | None


@dataclass(frozen=True, slots=True)
class Choice:
    """The policy of least cost, and the costs of all, in bytes per second."""

    policy: Policy
    costs: Mapping[str, float]
    why: str


def choose(measured: Measured, present: Policy, failures_per_hour: float) -> Choice:
    """Bytes written to make state durable, and bytes read again because it was not, weighted with how often hosts
    fail. `none` over an unbounded history is never chosen: its cost grows for ever."""
    failures = failures_per_hour / 3_600
    interval = Policy("interval", measured.seconds)
    costs = {
        str(DELTA): measured.written,
        str(interval): measured.fresh + failures * measured.read * measured.seconds / 2,
    }
    policies = {str(DELTA): DELTA, str(interval): interval}
    if measured.history is not None:
        costs[str(NONE)] = failures * measured.read * measured.history
        policies[str(NONE)] = NONE
    best = min(costs, key=lambda name: costs[name])
    known = costs.get(str(present))
    if known is not None and costs[best] > _WORTH * known:
        best = str(present)
    listed = ", ".join(f"{name} {_amount(cost)}/s" for name, cost in costs.items())
    return Choice(policies.get(best, present), costs, f"{best} costs least: {listed}")


def _amount(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1_000:
            return f"{size:.3g} {unit}"
        size /= 1_000
    return f"{size:.3g} GB"
