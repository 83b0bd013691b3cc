"""Which faults to make, and when each was over. Pure: the same seed gives the same plan.

When a fault is over: after the loss of the driver, its Java or the host, when the next driver has committed an epoch.
After what is done to workers or executors, or a change of parallelism, when all epochs that had been launched by then
are committed, or the next one if none had been.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

__all__ = ["DRIVERS", "KINDS", "OF_CREWS", "CommitSeen", "Kind", "PlannedFault", "Strike", "plan_faults"]

Kind = Literal[
    "driver", "java", "worker", "workers", "stop", "cut", "unreachable", "memory", "executor", "host", "scale", "broker"
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
DRIVERS: frozenset[Kind] = frozenset({"driver", "java", "host"})
"""Faults after which there is another driver."""
OF_CREWS: frozenset[Kind] = frozenset({"cut", "unreachable"})
"""Faults of connections between workers, which only those of a crew have."""

_PAUSE_SECONDS = 3.0
_START_SECONDS = 8.0
_SHARE_DURING_START = 0.25


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault to be made while the pipeline runs or, with `during_start`, while its process starts.

    `moment` in [0, 1) says when within the time that there is for it, `pick` in [0, 1) which process of the kind.
    """

    kind: Kind
    moment: float
    during_start: bool
    pick: float

    def due(self, started: float, struck: float, committed: float | None) -> float | None:
        """When to make it: the process started then, the last fault was then, and the first commit after it then.

        None before that commit, unless the fault is one for a start and there was a start since the last fault.
        """
        if self.during_start and started >= struck:
            return started + self.moment * _START_SECONDS
        return None if committed is None else committed + self.moment * _PAUSE_SECONDS


def plan_faults(count: int, kinds: Sequence[Kind], seed: int) -> list[PlannedFault]:
    """`count` faults, the kinds as equally often as may be, in random order at random moments."""
    rng = random.Random(seed)
    order = [kinds[i % len(kinds)] for i in range(count)]
    rng.shuffle(order)
    return [PlannedFault(kind, rng.random(), rng.random() < _SHARE_DURING_START, rng.random()) for kind in order]


@dataclass(frozen=True, slots=True)
class CommitSeen:
    """A commit, as the victim reported it: by which process, and when its epoch was launched and committed."""

    pid: int
    epoch: int
    started: float
    committed: float


@dataclass(slots=True)
class Strike:
    """A fault that was made, and when it was over."""

    kind: str
    at: float
    driver: int
    recovered: float | None = None
    session: float | None = None
    """When the next driver had its Spark session, after the loss of a driver."""
    _last: float | None = field(default=None, repr=False)

    @property
    def seconds(self) -> float | None:
        return None if self.recovered is None else self.recovered - self.at

    def on_session(self, pid: int, at: float) -> None:
        """A driver has opened its session."""
        if self.kind in DRIVERS and pid != self.driver and self.session is None:
            self.session = at

    def on_commit(self, commit: CommitSeen) -> None:
        """A commit was seen; commits come in their order."""
        if self.recovered is not None or commit.committed <= self.at:
            return
        if self.kind in DRIVERS or commit.pid != self.driver:
            if commit.pid != self.driver:
                self.recovered = commit.committed
        elif commit.started <= self.at:
            self._last = commit.committed
        else:
            self.recovered = commit.committed if self._last is None else self._last

    def on_end(self, at: float) -> None:
        """The run has ended well: whatever was lost is made up for."""
        if self.recovered is None:
            self.recovered = at if self._last is None else self._last
