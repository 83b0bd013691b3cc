"""Seeds that are known to find planted bugs, and to reach together all that there is to reach: a file of the tests.

Whoever changes what happens in which order moves them. Those that still do what they are known for stay; for the others
the first one is taken that does. What is found is written at once, so that a search can be broken off and gone on with.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast_lab.simulate.coverage import PLACES
from holdfast_lab.simulate.planted import PLANTED
from holdfast_lab.simulate.worlds import find, first_to_find, run_seeds

__all__ = ["UNREACHED", "KnownSeeds", "ReachedPlaces", "cover", "finds", "reached_by"]

UNREACHED = frozenset({"instruction: GiveUp"})
"""What no seed is known to reach: a primary whose process has got the second seat before its run took another step."""


@dataclass(slots=True)
class KnownSeeds:
    finding: dict[str, int] = field(default_factory=dict)
    """For each planted bug a seed that finds it."""
    reaching: list[int] = field(default_factory=list)
    """Seeds that together reach all."""

    @staticmethod
    def read(path: Path) -> KnownSeeds:
        found = json.loads(path.read_text()) if path.exists() else {"finding": {}, "reaching": []}
        return KnownSeeds(found["finding"], found["reaching"])

    def write(self, path: Path) -> None:
        ordered = {name: self.finding[name] for name in PLANTED if name in self.finding}
        path.write_text(json.dumps({"finding": ordered, "reaching": sorted(self.reaching)}, indent=2) + "\n")


def finds(known: Mapping[str, int], count: int, name: str) -> tuple[str, int | None]:
    """The seed that is known to find a bug, if it still does; else the first of so many that does."""
    seed = known.get(name)
    if seed is not None and find(name, seed) is not None:
        return name, seed
    failure = first_to_find(name, 0, count)
    return name, None if failure is None else failure.seed


@dataclass(frozen=True, slots=True)
class ReachedPlaces:
    seed: int
    places: frozenset[str]


def reached_by(seed: int) -> ReachedPlaces:
    """What a seed reaches, which is nothing if it finds a violation."""
    report = run_seeds(seed, 1)
    return ReachedPlaces(seed, frozenset() if report.failures else frozenset(PLACES) - set(report.missed))


def cover(all_of: Iterable[ReachedPlaces]) -> tuple[list[int], frozenset[str]]:
    """Few of these seeds that together reach as much as all of them, and what that leaves out."""
    left = list(all_of)
    missing, chosen = frozenset(PLACES) - UNREACHED, list[int]()
    while missing:
        best = max(left, key=lambda report: (len(report.places & missing), -report.seed), default=None)
        if best is None or not best.places & missing:
            break
        chosen.append(best.seed)
        missing -= best.places
    return sorted(chosen), missing
