"""The policy `eventual`: each window leaves footprints of itself in a p-stream, when it opens and again as needed. If
the volatile tier is lost, the last ones are gathered, and the epochs since the oldest of them are replayed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from holdfast.errors import DeclarationError
from holdfast.graph.policies.checkpoint_policy import (
    CheckpointPolicy,
    FragmentFacts,
    PolicyFigures,
    PricedPolicy,
    ReplayStart,
    ReplayStarts,
)
from holdfast.spans import Duration, parse_duration
from holdfast.state.goals import FootprintRules

__all__ = ["OPEN_ONLY", "EventualPolicy", "eventual", "eventual_within"]

_RECOVERY, _SPEND, _PERIOD = "2s", "50ms", "1s"


@dataclass(frozen=True, slots=True)
class EventualPolicy(CheckpointPolicy):
    """Footprints by these rules."""

    name: ClassVar[str] = "eventual"
    usage: ClassVar[str] = (
        "'eventual(2s)' with your recovery time or with Q, U, CI and CP as in"
        " 'eventual(Q=200000, U=1000000, CI=50ms, CP=1s)'"
    )
    rules: FootprintRules

    def __str__(self) -> str:
        rules = self.rules
        if rules.only_open:
            return "eventual(open)"
        parts = [] if rules.recovery is None else [f"recovery={rules.recovery:g} s"]
        parts += [
            f"{name}={most}" for name, most in (("Q", rules.most_records), ("U", rules.most_rows)) if most is not None
        ]
        return f"eventual({', '.join(parts)}, CI={rules.spend:g} s, CP={rules.period:g} s)"

    @classmethod
    def parsed(cls, arguments: str | None) -> EventualPolicy:
        parts = [part.strip() for part in (arguments or "").split(",") if part.strip()]
        if parts == ["open"]:
            return OPEN_ONLY
        named: dict[str, Any] = {}
        for part in parts:
            name, equals, given = (piece.strip() for piece in part.partition("="))
            if not equals:
                name, given = "recovery", name
            if name in named or given == "open":
                raise ValueError(part)
            named[name] = int(given.replace("_", "")) if name in ("Q", "U") else given
        return eventual(**named)

    def explain(self, fragment: FragmentFacts) -> list[str]:
        return [
            *(
                f"windows of {operator} write footprints to the p-stream {stream};"
                for operator, stream in fragment.footprint_streams().items()
            ),
            "if the volatile tier is lost, the last ones are collected and the epochs since are replayed;",
        ]

    def check(self, fragment: FragmentFacts) -> None:
        CheckpointPolicy.check(self, fragment)
        fragment.footprint_streams()

    def check_on_hosts(self, fragment: str) -> None:
        raise DeclarationError(
            f"the checkpoint policy '{self}' of '{fragment}' needs a single process for the order of its footprints",
            cure="use delta, interval(5s) or none with several hosts",
        )

    @property
    def strictness(self) -> tuple[float, ...]:
        bounds = (self.rules.recovery, self.rules.most_records, self.rules.most_rows)
        return tuple(math.inf if bound is None else bound for bound in bounds)

    @property
    def footprints(self) -> FootprintRules:
        return self.rules

    def replay_start(self, starts: ReplayStarts) -> ReplayStart:
        return "copy" if starts.footprints is None else "footprints"

    @classmethod
    def priced(cls, figures: PolicyFigures, failures: float, recovery: float | None) -> PricedPolicy | None:
        if figures.footprints is None:
            return None
        again = failures * figures.read * figures.replayed_in(figures.gathering)
        policy = eventual_within(figures.seconds if recovery is None else recovery)
        return PricedPolicy(policy, figures.footprints + again, figures.gathering)

    @classmethod
    def trial(cls, fragment: FragmentFacts, recovery: float) -> EventualPolicy | None:
        """What windows leave is not known before they do."""
        try:
            streams = fragment.footprint_streams()
        except DeclarationError:
            return None
        return eventual_within(recovery) if streams else None


OPEN_ONLY = EventualPolicy(FootprintRules(only_open=True))
"""Footprints of opening and closing windows only, as a baseline."""


def eventual_within(recovery: float) -> EventualPolicy:
    """Footprints as a recovery within so many seconds needs them, for a twentieth of the time."""
    return EventualPolicy(FootprintRules(spend=0.05, period=1.0, recovery=recovery))


def eventual(
    recovery: Duration | None = None,
    *,
    Q: int | None = None,  # noqa: N803 - the names that the literature gives them
    U: int | None = None,  # noqa: N803
    CI: Duration = _SPEND,  # noqa: N803
    CP: Duration = _PERIOD,  # noqa: N803
) -> EventualPolicy:
    """Continuous eventual checkpoints: each window leaves footprints in the operator's output stream, when it opens and
    again while it stays open, and never does the operator stop to write all of its state.

    By default the windows get as many footprints as a recovery within `recovery` needs. With `Q` or `U`, the oldest
    get one while recovery would have to read more than `Q` footprints or to replay more than `U` rows. No more than
    `CI` out of every `CP` are spent on it. The sources must keep the rows since the oldest footprint.
    """
    spend, period = parse_duration(CI) / 1e9, parse_duration(CP) / 1e9
    for name, number in (("Q", Q), ("U", U)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise DeclarationError(f"{name} is {number!r}", cure=f"give {name} as a positive number of records or rows")
    if not 0 < spend <= period:
        raise DeclarationError(
            f"{spend:g} s out of every {period:g} s for checkpoints", cure="give a positive CI that is at most CP"
        )
    sized = Q is not None or U is not None
    if sized and recovery is not None:
        raise DeclarationError(
            "both a recovery time and sizes (Q, U) are given", cure="give either: the sizes follow from the time"
        )
    target = None if sized else parse_duration(_RECOVERY if recovery is None else recovery) / 1e9
    if target is not None and target <= 0:
        raise DeclarationError(f"a recovery within {target:g} s", cure="give a positive duration, e.g. '2s'")
    return EventualPolicy(FootprintRules(Q, U, spend, period, target))
