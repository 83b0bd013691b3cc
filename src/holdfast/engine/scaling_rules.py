"""When operators are scaled, as the user sets it, and what was decided about an operator: `hf.Scaling`,
`hf.ScalingDecision`."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import DeclarationError
from holdfast.plan.scale_command import MOST_PARTITIONS

__all__ = ["Scaling", "ScalingDecision"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """When the parallelism of operators changes automatically.

    Every `report` seconds the CPU use of each partition is looked at. An operator is split when one of its partitions
    was above `threshold` in `reports` reports in a row. It is merged when in `calm` reports in a row its partitions,
    merged into fewer, would have stayed below `low`, by default half the threshold. After a change nothing is decided
    about the operator for `cooldown` seconds.

    `least` and `most` bound the partitions of an operator and the tasks that read; by default `most` is half the slots
    of the Spark session. An operator that has more already keeps them. With `sources=False` the number of tasks that
    read stays as it is.
    """

    report: float = 5.0
    reports: int = 2
    threshold: float = 0.7
    low: float | None = None
    calm: int = 12
    cooldown: float = 15.0
    least: int = 1
    most: int | None = None
    sources: bool = True

    def __post_init__(self) -> None:
        if not self.report > 0:
            raise _wrong("report", self.report, "give the seconds between two reports, more than 0")
        if not 0 < self.threshold <= 1:
            raise _wrong("threshold", self.threshold, "give a share of a CPU, more than 0 and at most 1")
        if not 0 < self.low_mark <= 0.8 * self.threshold:
            raise _wrong(
                "low",
                self.low_mark,
                f"give more than 0 and at most 0.8 * threshold = {0.8 * self.threshold:g};"
                " closer to it, merged partitions would soon be split again",
            )
        for name, value in (("reports", self.reports), ("calm", self.calm), ("least", self.least)):
            if value < 1:
                raise _wrong(name, value, "give at least 1")
        if self.cooldown < 0:
            raise _wrong("cooldown", self.cooldown, "give the seconds to wait after a change, 0 or more")
        if self.most is not None and not self.least <= self.most <= MOST_PARTITIONS:
            raise _wrong("most", self.most, f"give a number from least = {self.least} to {MOST_PARTITIONS}")

    @property
    def low_mark(self) -> float:
        """`low`, or what is used in its place."""
        return self.threshold / 2 if self.low is None else self.low


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """A decision about an operator of a fragment, its reason and its outcome.

    `epoch` is the first one that ran so, `problem` why it was not done; both are None while it is under way. If nothing
    can be done about a bottleneck, `before` and `after` are the same.
    """

    at: float
    fragment: str
    operator: str
    before: int
    after: int
    bounds: tuple[int, ...] | None
    reason: str
    epoch: int | None = None
    problem: str | None = None

    def __str__(self) -> str:
        change = f"{self.before} → {self.after}" if self.acts else f"stays at {self.before}"
        end = f" (from epoch {self.epoch} on)" if self.epoch is not None else ""
        end = f" (not done: {self.problem})" if self.problem is not None else end
        return f"scaling {self.operator} of {self.fragment}: {change}; {self.reason}{end}"

    @property
    def acts(self) -> bool:
        """Whether it changes anything."""
        return self.bounds is not None or self.before != self.after


def _wrong(name: str, value: float, cure: str) -> DeclarationError:
    return DeclarationError(f"scaling cannot have {name} = {value:g}", cure=cure)
