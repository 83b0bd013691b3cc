"""The bottleneck detector: reports of CPU use in, how long an operator has been too busy or too idle out. Pure.

A report covers some seconds. A partition's utilisation is the CPU seconds it used in them by the wall clock's: 1 is a
task that never waited. One report above the threshold may be chance; several in a row are a bottleneck.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.engine.scaling_rules import Scaling

__all__ = ["Streaks", "Utilisation", "observed"]


@dataclass(frozen=True, slots=True)
class Utilisation:
    """A report about an operator: the CPU seconds of each of its partitions within some seconds."""

    cpu: tuple[float, ...]
    seconds: float

    @property
    def shares(self) -> tuple[float, ...]:
        """The utilisation of each partition."""
        return tuple(cpu / self.seconds for cpu in self.cpu)

    @property
    def total(self) -> float:
        return sum(self.cpu) / self.seconds


@dataclass(frozen=True, slots=True)
class Streaks:
    """Of an operator, how many reports in a row each partition was above the threshold, and how many it was calm.
    `peak` is the greatest utilisation of all partitions together in the calm ones."""

    above: tuple[int, ...] = ()
    calm: int = 0
    peak: float = 0.0

    def bottlenecks(self, scaling: Scaling) -> tuple[int, ...]:
        """The partitions that have been too busy for long enough."""
        return tuple(number for number, length in enumerate(self.above) if length >= scaling.reports)

    def is_calm(self, scaling: Scaling) -> bool:
        return self.calm >= scaling.calm


def observed(streaks: Streaks, report: Utilisation, scaling: Scaling) -> Streaks:
    """The streaks after one more report. With another number of partitions they start again."""
    partitions = len(report.cpu)
    before = streaks if len(streaks.above) == partitions else Streaks((0,) * partitions)
    above = tuple(
        length + 1 if share > scaling.threshold else 0
        for length, share in zip(before.above, report.shares, strict=True)
    )
    idle = partitions > scaling.least and report.total <= scaling.low_mark * (partitions - 1)
    return Streaks(above, before.calm + 1, max(before.peak, report.total)) if idle else Streaks(above)
