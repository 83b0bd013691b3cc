"""The simulated worlds, and many seeds of them: what was run, how fast, and what was violated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from holdfast_lab.simulate.coverage import PLACES, PlacesReached
from holdfast_lab.simulate.hosts import HostsWorld
from holdfast_lab.simulate.planted import planted, worlds_of
from holdfast_lab.simulate.receiving import ReceivingWorld
from holdfast_lab.simulate.single_run import SingleRunWorld
from holdfast_lab.simulate.world import World, silent_logs

__all__ = ["WORLDS", "Failure", "SeedsReport", "find", "first_to_find", "replay", "run_seeds", "together", "world_of"]

WORLDS: tuple[type[World], ...] = (HostsWorld, ReceivingWorld, SingleRunWorld)


def world_of(seed: int) -> type[World]:
    """Seeds take turns."""
    return WORLDS[seed % len(WORLDS)]


@dataclass(frozen=True, slots=True)
class Failure:
    seed: int
    problem: str

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.problem}"


@dataclass(frozen=True, slots=True)
class SeedsReport:
    """What so many seeds have come to. `doubts` are transactions that were done and not answered."""

    first: int
    seeds: int
    events: int
    faults: int
    transactions: int
    doubts: int
    seconds: float
    failures: tuple[Failure, ...]
    reached: Mapping[str, int]
    """How often each place was that seeds are to reach (`PLACES`)."""

    @property
    def missed(self) -> list[str]:
        return [place for place, times in self.reached.items() if not times]

    @property
    def per_minute(self) -> float:
        return 60 * self.seeds / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "per_minute": self.per_minute,
            "failures": [asdict(failure) for failure in self.failures],
        }


def replay(seed: int) -> tuple[list[str], Failure | None]:
    """All that happens with a seed, and what is wrong with it, if anything is."""
    trace: list[str] = []
    _, failure = _run(seed, trace)
    return trace, failure


def _run(seed: int, trace: list[str] | None = None) -> tuple[World | None, Failure | None]:
    """Whatever a seed ends with that is not foreseen is a failure, too."""
    try:
        return world_of(seed).run(seed, trace), None
    except Exception as error:  # noqa: BLE001 - told with its seed
        return None, Failure(seed, f"{type(error).__name__}: {error}")


@silent_logs()
def run_seeds(
    first: int, count: int, *, most_failures: int = 10, clock: Callable[[], float] = time.perf_counter
) -> SeedsReport:
    """Run seeds until all are done or so many have failed."""
    begun = clock()
    failures: list[Failure] = []
    watched = PlacesReached()
    done = events = faults = transactions = doubts = 0
    for seed in range(first, first + count):
        with watched.watching():
            world, failure = _run(seed)
        done += 1
        if world is not None:
            events += world.scheduler.events
            faults += world.faults.total()
            transactions += world.database.transactions
            doubts += world.database.doubts
            for kind, times in world.faults.items():
                watched.note(f"fault: {kind}", times)
            watched.note("commit: an answer was lost", world.database.doubts)
            watched.note("commit: a connection was lost in its middle", world.database.breaks)
        if failure is not None:
            failures.append(failure)
            if len(failures) >= most_failures:
                break
    reached = {place: watched.counts[place] for place in PLACES}
    return SeedsReport(first, done, events, faults, transactions, doubts, clock() - begun, tuple(failures), reached)


def first_to_find(name: str, first: int = 0, count: int = 1_000) -> Failure | None:
    """The first seed that finds a planted bug; worlds in which it cannot show are passed over."""
    seeds = (seed for seed in range(first, first + count) if world_of(seed) in worlds_of(name))
    return next((failure for seed in seeds if (failure := find(name, seed)) is not None), None)


def find(name: str, seed: int) -> Failure | None:
    """What a seed finds of a planted bug. What it finds without that, too, does not count."""
    with planted(name):
        _, failure = _run(seed)
    return failure if failure is not None and _run(seed)[1] is None else None


def together(reports: Iterable[SeedsReport], seconds: float) -> SeedsReport:
    """One report of several, which took so many seconds side by side."""
    all_of = list(reports)
    counts = ("seeds", "events", "faults", "transactions", "doubts")
    return SeedsReport(
        first=min((report.first for report in all_of), default=0),
        seconds=seconds,
        reached={place: sum(report.reached[place] for report in all_of) for place in PLACES},
        failures=tuple(
            sorted((failure for report in all_of for failure in report.failures), key=lambda failure: failure.seed)
        ),
        **{name: sum(getattr(report, name) for report in all_of) for name in counts},
    )
