"""Which checkpoint policy a running fragment has, where its user named none: over each interval it is measured what the
policies would have cost, and the one that costs least is taken."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.connect.base import Source
from holdfast.epoch.record import EpochRecord
from holdfast.plan.eventual import can_be_eventual
from holdfast.plan.program import Program
from holdfast.state.policy import Choice, Measured, Policy, choose, eventual_policy

__all__ = ["Amounts", "Choosing", "may_choose"]

_STRING_BYTES = 16
_WORTH_TRYING = 1e6
"""Bytes per second that the best known policy costs: below that, no other need be tried."""


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


class Choosing:
    """Follows the epochs of one fragment. `interval` is the c of interval(c), and how long is measured for a choice."""

    def __init__(self, program: Program, *, interval: float, failures_per_hour: float, recovery: float | None) -> None:
        self._interval = interval
        self._failures_per_hour = failures_per_hour
        self._recovery = recovery
        self._row_bytes = _row_bytes(program)
        self._may_try = can_be_eventual(program)
        self._tried: tuple[float, float] | None = None
        """What windows left per second, and what a recovery would have taken."""
        self._measuring: _Measuring | None = None
        self.choice: Choice | None = None

    def epoch(self, record: EpochRecord, amounts: Amounts, policy: Policy, history: float | None, now: float) -> Policy:
        """The policy after an epoch that was run under `policy`; without it `history` seconds would be replayed."""
        measuring = self._measuring
        if policy.kind == "eventual" and not record.footings:
            self._measuring = None  # the epoch began under another policy
            return policy
        if measuring is None:
            self._measuring = _Measuring(now, record.files())
            return policy
        measuring.add(amounts)
        seconds = now - measuring.began
        if seconds < self._interval:
            return policy
        self._measuring = _Measuring(now, record.files())
        if policy.kind == "eventual":
            predicted = max((footing.predicted or 0.0 for footing in record.footings.values()), default=0.0)
            self._tried = (measuring.left / seconds, predicted)
        measured = self._measured(measuring, record, seconds, history)
        self.choice = choose(measured, policy, self._failures_per_hour, self._recovery)
        if self._may_try and min(self.choice.costs.values()) > _WORTH_TRYING:
            # What windows would leave is not known before they do: for one interval they may.
            self._may_try = False
            self._measuring = None  # the first epoch has footprints of all windows, which is not what it costs
            return eventual_policy(self._recovery or self._interval)
        return self.choice.policy

    def _measured(self, measuring: _Measuring, record: EpochRecord, seconds: float, history: float | None) -> Measured:
        """What was seen in an interval. Under `eventual`, state is written as under the others."""
        fresh = sum(unit.bytes for unit in record.units() if unit.name not in measuring.names)
        left, gathering = self._tried or (None, 0.0)
        return Measured(
            self._interval,
            measuring.written / seconds,
            fresh / seconds,
            measuring.rows * self._row_bytes / seconds,
            history,
            min(1.0, measuring.busy / seconds),
            left,
            gathering,
        )


@dataclass(slots=True)
class _Measuring:
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
