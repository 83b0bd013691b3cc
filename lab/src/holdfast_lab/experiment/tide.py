"""A rate of input that rises and falls in steps, again and again."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Tide"]


@dataclass(frozen=True, slots=True)
class Tide:
    """So many rows per second for so many seconds, step after step, and again from the first."""

    steps: tuple[tuple[float, float], ...]

    @property
    def period(self) -> float:
        return sum(seconds for seconds, _ in self.steps)

    def rate(self, at: float) -> float:
        """Rows per second at that time."""
        left = at % self.period
        for seconds, rate in self.steps:
            if left < seconds:
                return rate
            left -= seconds
        return self.steps[-1][1]

    def until(self, at: float) -> float:
        """How many rows are due within so many seconds of the beginning."""
        rounds, left = divmod(max(0.0, at), self.period)
        due = rounds * sum(seconds * rate for seconds, rate in self.steps)
        for seconds, rate in self.steps:
            due += rate * min(seconds, left)
            left = max(0.0, left - seconds)
        return due
