"""Many seeds, one after the other: what was run, how fast, and what was violated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.replica.faults import scenario
from holdfast.replica.invariants import ViolationError
from holdfast.replica.simulation import Parts, World

__all__ = ["Failure", "Report", "history", "replay", "run_seed", "run_seeds", "together"]


@dataclass(frozen=True, slots=True)
class Failure:
    seed: int
    problem: str

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.problem}"


@dataclass(frozen=True, slots=True)
class Report:
    """`epochs` were committed, in `takeovers` a host became primary; `gaps` are inputs left out by gap recoveries."""

    first: int
    seeds: int
    events: int
    epochs: int
    faults: int
    takeovers: int
    gaps: int
    seconds: float
    failures: tuple[Failure, ...]

    @property
    def per_minute(self) -> float:
        return 60 * self.seeds / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "per_minute": self.per_minute, "failures": [asdict(each) for each in self.failures]}


def run_seed(seed: int, parts: Parts | None = None) -> World:
    """Run one seed to its end; raises ViolationError at the first violation."""
    world = World(scenario(seed), parts or Parts())
    world.run()
    return world


def replay(seed: int, parts: Parts | None = None) -> tuple[list[str], Failure | None]:
    """All that happened with a seed, and what was violated in the end, if anything was."""
    told: list[str] = []
    world = World(scenario(seed), parts or Parts(), history=told)
    try:
        world.run()
    except ViolationError as error:
        told.append(f"{world.now:8.4f} violation  {error}")
        return told, Failure(seed, str(error))
    return told, None


def history(seed: int, parts: Parts | None = None) -> list[str]:
    """All that happened with a seed, up to the violation if there is one. The same every time."""
    return replay(seed, parts)[0]


def run_seeds(
    first: int,
    count: int,
    parts: Parts | None = None,
    *,
    most_failures: int = 10,
    clock: Callable[[], float] = time.perf_counter,
) -> Report:
    """Run seeds until all are done or so many have failed."""
    begun = clock()
    failures: list[Failure] = []
    done = events = epochs = faults = takeovers = gaps = 0
    for seed in range(first, first + count):
        world = World(scenario(seed), parts or Parts())
        done += 1
        try:
            world.run()
        except ViolationError as error:
            failures.append(Failure(seed, str(error)))
        events += world.events
        epochs += world.checker.committed
        faults += len(world.scenario.faults)
        takeovers += world.checker.takeovers
        gaps += world.checker.gaps
        if len(failures) >= most_failures:
            break
    return Report(first, done, events, epochs, faults, takeovers, gaps, clock() - begun, tuple(failures))


def together(reports: Iterable[Report], seconds: float) -> Report:
    """One report of several, which took so many seconds side by side."""
    all_of = list(reports)
    counts = ("seeds", "events", "epochs", "faults", "takeovers", "gaps")
    return Report(
        first=min((each.first for each in all_of), default=0),
        seconds=seconds,
        failures=tuple(sorted((one for each in all_of for one in each.failures), key=lambda one: one.seed)),
        **{name: sum(getattr(each, name) for each in all_of) for name in counts},
    )
