"""The simulated worlds, and many seeds of them: what was run, how fast, and what was violated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from holdfast_lab.simulate.hosts import HostsWorld
from holdfast_lab.simulate.receiving import ReceivingWorld
from holdfast_lab.simulate.world import World

__all__ = ["WORLDS", "Failure", "Report", "replay", "run_seeds", "together", "world_of"]

WORLDS: tuple[type[World], ...] = (HostsWorld, ReceivingWorld)


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
class Report:
    """What so many seeds have come to. `doubts` are transactions that were done and not answered."""

    first: int
    seeds: int
    events: int
    faults: int
    transactions: int
    doubts: int
    seconds: float
    failures: tuple[Failure, ...]

    @property
    def per_minute(self) -> float:
        return 60 * self.seeds / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "per_minute": self.per_minute, "failures": [asdict(each) for each in self.failures]}


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


def run_seeds(
    first: int, count: int, *, most_failures: int = 10, clock: Callable[[], float] = time.perf_counter
) -> Report:
    """Run seeds until all are done or so many have failed."""
    begun = clock()
    failures: list[Failure] = []
    done = events = faults = transactions = doubts = 0
    for seed in range(first, first + count):
        world, failure = _run(seed)
        done += 1
        if world is not None:
            events += world.scheduler.events
            faults += world.faults
            transactions += world.database.transactions
            doubts += world.database.doubts
        if failure is not None:
            failures.append(failure)
            if len(failures) >= most_failures:
                break
    return Report(first, done, events, faults, transactions, doubts, clock() - begun, tuple(failures))


def together(reports: Iterable[Report], seconds: float) -> Report:
    """One report of several, which took so many seconds side by side."""
    all_of = list(reports)
    counts = ("seeds", "events", "faults", "transactions", "doubts")
    return Report(
        first=min((each.first for each in all_of), default=0),
        seconds=seconds,
        failures=tuple(sorted((one for each in all_of for one in each.failures), key=lambda one: one.seed)),
        **{name: sum(getattr(each, name) for each in all_of) for name in counts},
    )
