"""`holdfast bench linear-road`: the greatest number of expressways for which all answers are right and in time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar

from holdfast_lab.bench.road_run import RoadFigures
from holdfast_lab.experiment.definition import at_least, at_most

__all__ = ["RoadRating", "search"]

EXPRESSWAYS = 350
SECONDS = 1.46
"""What SEEP reached with 50 machines: expressways, and the 99th percentile of the latency."""
_GROWTH = 1.5
_FINE = 0.05
"""The search ends when the rating is known to such a part of it."""


class Holding(Protocol):
    @property
    def holds(self) -> bool: ...


Run = TypeVar("Run", bound=Holding)


def search(measure: Callable[[int], Run], first: int) -> list[Run]:
    """Measure at more and more expressways, from `first` on, until one number does not hold, then between the greatest
    that holds and the least that does not. All that was measured, in turn."""
    runs: list[Run] = []

    def holds(count: int) -> bool:
        runs.append(measure(count))
        return runs[-1].holds

    good, bad = 0, first
    while holds(bad):
        good, bad = bad, max(bad + 1, round(bad * _GROWTH))
    while bad - good > max(1, _FINE * good):
        middle = (good + bad) // 2
        if holds(middle):
            good = middle
        else:
            bad = middle
    return runs


@dataclass(frozen=True, slots=True)
class RoadRating:
    """All runs of a measurement."""

    runs: tuple[RoadFigures, ...]

    @property
    def best(self) -> RoadFigures | None:
        """The run with the most expressways of those that hold."""
        return max((run for run in self.runs if run.holds), key=lambda run: run.expressways, default=None)

    @property
    def rating(self) -> int:
        return 0 if self.best is None else self.best.expressways

    @property
    def engine(self) -> str:
        return self.runs[0].engine if self.runs else "holdfast"

    def lines(self) -> list[str]:
        """What is to be said after the runs."""
        lines = [f"L-rating: {self.rating}"] if len(self.runs) > 1 else []
        if self.engine != "holdfast":
            lines.append("toll notifications alone: no alerts, balances and expenditures, no requests in the input")
        return lines + [
            f"{bar['name']}: {bar['value']} of {bar['bar']}: {'reached' if bar['ok'] else 'missed'}"
            for bar in self.bars()
        ]

    def bars(self) -> list[dict[str, Any]]:
        """SEEP's figures, which are those of the whole benchmark."""
        if self.engine != "holdfast":
            return []
        overall = None if self.best is None else self.best.overall
        return [
            asdict(at_least("expressways (L)", self.rating, EXPRESSWAYS)),
            asdict(at_most("99th percentile of the latency in s", overall.p99 if overall else None, SECONDS)),
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "query": "linear-road",
            "engine": self.engine,
            "answers": "all" if self.engine == "holdfast" else "toll notifications alone",
            "rating": self.rating,
            "runs": [run.to_json() for run in self.runs],
            "bars": self.bars(),
        }
