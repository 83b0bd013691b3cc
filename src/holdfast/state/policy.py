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

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["DELTA", "NONE", "Choice", "Kind", "Measured", "Policy", "choose", "eventual_policy", "strictest"]

Kind = Literal["delta", "interval", "eventual", "none"]
_ORDER: tuple[Kind, ...] = ("delta", "interval", "eventual", "none")
_WORTH = 0.7
"""Another policy must cost less than this share of the present one: figures are noisy, and a change is not free."""
_SHORTEST = 0.5
"""Seconds between checkpoints: below that, `delta` does as well."""
_LEAST_BUSY = 0.05


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
    return min(policies, key=_strictness, default=None)


def _strictness(policy: Policy) -> tuple[float, ...]:
    bounds = (policy.recovery, policy.most_records, policy.most_rows)
    return (_ORDER.index(policy.kind), policy.seconds, *(math.inf if bound is None else bound for bound in bounds))


@dataclass(frozen=True, slots=True)
class Measured:
    """What a running fragment showed, per second.

    `written` is the bytes of state p-units of all epochs, `fresh` those of the p-units that were still part of the
    state at the end of an interval of `seconds` and had not been at its beginning, `read` the bytes of input that were
    processed. `history` is how many seconds of input `none` would have to process again; None where it is everything
    since the first epoch. `busy` is the share of the time that epochs took: input of a second is replayed in so many.
    `footprints` is the bytes that windows left under `eventual`, and `gathering` the seconds that a recovery from them
    was expected to take; None where that policy was not tried.
    """

    seconds: float
    written: float
    fresh: float
    read: float
    history: float | None
    busy: float = 1.0
    footprints: float | None = None
    gathering: float = 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """The policy of least cost, and the costs of all, in bytes per second."""

    policy: Policy
    costs: Mapping[str, float]
    why: str


@dataclass(frozen=True, slots=True)
class _Option:
    policy: Policy
    cost: float
    recovery: float


def choose(measured: Measured, present: Policy, failures_per_hour: float, recovery: float | None = None) -> Choice:
    """Bytes written to make state durable, and bytes read again because it was not, weighted with how often hosts
    fail. `none` over an unbounded history is never chosen: its cost grows for ever.

    With `recovery`, only policies count after which state that is lost is back within so many seconds.
    """
    every = _options(measured, failures_per_hour / 3_600, recovery)
    kept = [option for option in every if recovery is None or option.recovery <= recovery]
    best = min(kept, key=lambda option: option.cost)
    known = next((option for option in kept if option.policy.kind == present.kind), None)
    if known is not None and best.cost > _WORTH * known.cost:
        same = known.policy.kind == "interval" and recovery is not None and present.seconds <= known.policy.seconds
        best = _Option(present, known.cost, known.recovery) if same or recovery is None else known
    listed = ", ".join(f"{option.policy} {_amount(option.cost)}/s" for option in kept)
    why = f"{best.policy} costs least: {listed}"
    slow = [f"{option.policy} ({option.recovery:.2g} s)" for option in every if option not in kept]
    if recovery is not None:
        why += f"; a recovery within {recovery:g} s rules out {', '.join(slow) or 'nothing'}"
    return Choice(best.policy, {str(option.policy): option.cost for option in every}, why)


def _options(measured: Measured, failures: float, recovery: float | None) -> list[_Option]:
    """All policies with their cost and the time that a recovery takes at most."""
    seconds = measured.seconds
    if recovery is not None:
        seconds = max(_SHORTEST, min(seconds, recovery / max(measured.busy, _LEAST_BUSY)))
        seconds = math.floor(10 * seconds) / 10  # figures are noisy: not another interval for each of them
    fresh = min(max(measured.written, measured.fresh), measured.fresh * measured.seconds / seconds)
    options = [
        _Option(DELTA, measured.written, 0.0),
        _Option(Policy("interval", seconds), fresh + failures * measured.read * seconds / 2, seconds * measured.busy),
    ]
    if measured.footprints is not None:
        target = measured.seconds if recovery is None else recovery
        again = failures * measured.read * measured.gathering / max(measured.busy, _LEAST_BUSY)
        options.append(_Option(eventual_policy(target), measured.footprints + again, measured.gathering))
    if measured.history is not None:
        cost = failures * measured.read * measured.history
        options.append(_Option(NONE, cost, measured.history * measured.busy))
    return options


def _amount(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1_000:
            return f"{size:.3g} {unit}"
        size /= 1_000
    return f"{size:.3g} GB"
