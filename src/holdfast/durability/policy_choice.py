"""The checkpoint policy of a running fragment whose user has not chosen one: for each interval, the cost of every
policy is estimated from measurements, and the cheapest one is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.connect.base import Source
from holdfast.epoch.record import EpochRecord
from holdfast.graph.policies import CheckpointPolicy, PolicyFigures, PricedPolicy, catalog, strictest
from holdfast.plan.fragment_facts import ProgramFacts
from holdfast.plan.program import Program

__all__ = ["Amounts", "PolicyChoice", "PolicyChooser", "choose", "may_choose"]

_STRING_BYTES = 16
_WORTH_TRYING = 1e6
"""Bytes per second that the best known policy costs: below that, no other need be tried."""
_WORTH = 0.7
"""Another policy must cost less than this share of the present one: figures are noisy, and a change is not free."""


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """The policy of least cost, and the costs of all, in bytes per second."""

    policy: CheckpointPolicy
    costs: Mapping[str, float]
    why: str


def choose(
    figures: PolicyFigures, present: CheckpointPolicy, failures_per_hour: float, recovery: float | None = None
) -> PolicyChoice:
    """Bytes written to make state durable, and bytes read again because it was not, weighted with how often hosts fail.

    With `recovery`, only policies count after which state that is lost is back within so many seconds.
    """
    priced = [
        found
        for policy in catalog.POLICIES
        if (found := policy.priced(figures, failures_per_hour / 3_600, recovery)) is not None
    ]
    fast = [option for option in priced if recovery is None or option.recovery <= recovery]
    best = min(fast, key=lambda option: option.cost)
    same = next((option for option in fast if type(option.policy) is type(present)), None)
    if same is not None and best.cost > _WORTH * same.cost:
        stays = recovery is None or strictest([present, same.policy]) == present
        best = PricedPolicy(present, same.cost, same.recovery) if stays else same
    listed = ", ".join(f"{option.policy} {_amount(option.cost)}/s" for option in fast)
    why = f"{best.policy} costs least: {listed}"
    slow = [f"{option.policy} ({option.recovery:.2g} s)" for option in priced if option not in fast]
    if recovery is not None:
        why += f"; a recovery within {recovery:g} s rules out {', '.join(slow) or 'nothing'}"
    return PolicyChoice(best.policy, {str(option.policy): option.cost for option in priced}, why)


def may_choose(program: Program) -> bool:
    """Other policies than delta read input again: only where the sources promise that they still have it."""
    return program.spark_input is None and all(
        isinstance(node.source, Source) and node.source.keeps for node in program.sources
    )


@dataclass(frozen=True, slots=True)
class Amounts:
    """Rows read, bytes of state written, bytes of footprints, and seconds at work."""

    rows: int = 0
    written: int = 0
    left: int = 0
    busy: float = 0.0


class PolicyChooser:
    """Follows the epochs of one fragment. `interval` is the c of interval(c), and how long is measured for a choice."""

    def __init__(self, program: Program, *, interval: float, failures_per_hour: float, recovery: float | None) -> None:
        self._interval = interval
        self._failures_per_hour = failures_per_hour
        self._recovery = recovery
        self._row_bytes = _row_bytes(program)
        facts = ProgramFacts(program)
        trials = (policy.trial(facts, recovery or interval) for policy in catalog.POLICIES)
        self._untried = [trial for trial in trials if trial is not None]
        self._footprints: tuple[float, float] | None = None
        """What windows left per second, and what a recovery would have taken."""
        self._sums: _IntervalSums | None = None
        self.choice: PolicyChoice | None = None

    def epoch(
        self, record: EpochRecord, amounts: Amounts, policy: CheckpointPolicy, history: float | None, now: float
    ) -> CheckpointPolicy:
        """The policy after an epoch that was run under `policy`; without it `history` seconds would be replayed."""
        sums = self._sums
        if policy.footprints is not None and not record.footings:
            self._sums = None  # the epoch began under another policy
            return policy
        if sums is None:
            self._sums = _IntervalSums(now, record.files())
            return policy
        sums.add(amounts)
        seconds = now - sums.began
        if seconds < self._interval:
            return policy
        self._sums = _IntervalSums(now, record.files())
        if policy.footprints is not None:
            predicted = max((footing.predicted or 0.0 for footing in record.footings.values()), default=0.0)
            self._footprints = (sums.left / seconds, predicted)
        figures = self._figures(sums, record, seconds, history)
        self.choice = choose(figures, policy, self._failures_per_hour, self._recovery)
        if self._untried and min(self.choice.costs.values()) > _WORTH_TRYING:
            self._sums = None  # the first epoch has footprints of all windows, which is not what it costs
            return self._untried.pop(0)
        return self.choice.policy

    def _figures(
        self, sums: _IntervalSums, record: EpochRecord, seconds: float, history: float | None
    ) -> PolicyFigures:
        """What was seen in an interval. Where windows leave footprints, state is written as it is elsewhere."""
        fresh = sum(unit.bytes for unit in record.units() if unit.name not in sums.names)
        left, gathering = self._footprints or (None, 0.0)
        return PolicyFigures(
            self._interval,
            sums.written / seconds,
            fresh / seconds,
            sums.rows * self._row_bytes / seconds,
            history,
            min(1.0, sums.busy / seconds),
            left,
            gathering,
        )


@dataclass(slots=True)
class _IntervalSums:
    """What the epochs of an interval came to, and the p-units that its state began with."""

    began: float
    names: frozenset[str]
    rows: int = 0
    written: int = 0
    left: int = 0
    busy: float = 0.0

    def add(self, more: Amounts) -> None:
        self.rows += more.rows
        self.written += more.written
        self.left += more.left
        self.busy += more.busy


def _row_bytes(program: Program) -> int:
    widths = []
    for node in program.sources:
        sizes = [_STRING_BYTES if not dtype.is_numeric() else 8 for dtype in node.schema.values()]
        widths.append(sum(sizes))
    return max(widths, default=8)


def _amount(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1_000:
            return f"{size:.3g} {unit}"
        size /= 1_000
    return f"{size:.3g} GB"
