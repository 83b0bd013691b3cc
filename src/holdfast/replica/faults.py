"""What goes wrong in a simulated run: drawn from the seed before it starts, so that the seed is the whole story."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import Enum

from holdfast.replica.schemes import Scheme

__all__ = ["Fault", "FaultKind", "Scenario", "Weather", "scenario"]


class FaultKind(Enum):
    CRASH = "kill -9"
    CRASH_ALL = "kill -9 of all hosts"
    PAUSE = "stopped like by SIGSTOP"
    PARTITION = "cut off from the store"
    ISOLATION = "cut off from everything"
    STORE_DOWN = "the store does not answer"
    LOST_REPLIES = "the store's answers get lost"
    BAD_NETWORK = "messages are delayed, lost, doubled and reordered"
    DISK_FULL = "the disk is full"
    CLOCK_JUMP = "the clock jumps"
    SUPERVISOR_DOWN = "no supervisor"

    # Looked up with every message; the enum's own hash is that of the name.
    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True)
class Fault:
    at: float
    kind: FaultKind
    host: str
    seconds: float
    amount: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """`turns` are the times at which a step of the wheel is asked for, and to which scheme; some are not possible.
    `odd` is a host whose results differ from some epoch on, as those of a function that is not deterministic."""

    seed: int
    hosts: tuple[str, ...]
    precise: bool
    scheme: Scheme
    faults: tuple[Fault, ...]
    turns: tuple[tuple[float, Scheme | int], ...]
    odd: tuple[str, int] | None
    calm_at: float


@dataclass(slots=True)
class Weather:
    """The faults that last, and what they do to messages. Some are of one host, some of all."""

    until: dict[tuple[FaultKind, str], float] = field(default_factory=dict)
    clear_at: float = 0.0
    """From then on nothing lasts: asked with every message."""

    def begin(self, fault: Fault, now: float) -> None:
        place = fault.host if fault.kind in (FaultKind.PARTITION, FaultKind.ISOLATION) else ""
        self.until[fault.kind, place] = now + fault.seconds
        self.clear_at = max(self.clear_at, now + fault.seconds)

    def is_on(self, kind: FaultKind, host: str, now: float) -> bool:
        return self.until.get((kind, host), 0.0) > now

    def copies(self, host: str, now: float, draw: random.Random) -> tuple[float, ...]:
        """When a message from or to a host arrives, once for each copy; nothing if it is lost."""
        if now >= self.clear_at:
            return (now + 0.002 + 0.01 * draw.random(),)
        if self.is_on(FaultKind.ISOLATION, host, now):
            return ()
        at = now + 0.002 + 0.01 * draw.random()
        if not self.is_on(FaultKind.BAD_NETWORK, "", now):
            return (at,)
        chance = draw.random()
        if chance < 0.15:
            return ()
        if chance < 0.3:
            return (at, at + draw.random())
        if chance < 0.34:
            return (at + 4 * draw.random(),)
        return (at + draw.random() ** 3,)


_WEIGHTS: dict[FaultKind, int] = {
    FaultKind.CRASH: 5,
    FaultKind.CRASH_ALL: 1,
    FaultKind.PAUSE: 5,
    FaultKind.PARTITION: 3,
    FaultKind.ISOLATION: 2,
    FaultKind.STORE_DOWN: 1,
    FaultKind.LOST_REPLIES: 2,
    FaultKind.BAD_NETWORK: 3,
    FaultKind.DISK_FULL: 2,
    FaultKind.CLOCK_JUMP: 2,
    FaultKind.SUPERVISOR_DOWN: 1,
}


def scenario(seed: int, calm_at: float = 6.0) -> Scenario:
    draw = random.Random(seed)
    hosts = ("a", "b", "c")[: draw.choice((2, 2, 3))]
    kinds, weights = list(_WEIGHTS), list(_WEIGHTS.values())
    faults = []
    for _ in range(draw.choice((0, 1, 2, 3, 4, 5, 6, 8))):
        at = draw.uniform(0.3, calm_at - 0.3)
        kind = draw.choices(kinds, weights)[0]
        seconds = min(draw.choice((0.3, 1.0, 1.5, 2.5, 4.0)) * draw.uniform(0.7, 1.3), calm_at - at)
        faults.append(Fault(at, kind, draw.choice(hosts), seconds, draw.uniform(-5, 5)))
    # A number is a step up or down from wherever the wheel is then; a scheme may be out of reach.
    turns: list[tuple[float, Scheme | int]] = [
        (draw.uniform(0.3, calm_at), draw.choice((-1, -1, 1, 1, draw.choice(list(Scheme)))))
        for _ in range(draw.choice((0, 0, 1, 3, 6)))
    ]
    return Scenario(
        seed,
        hosts,
        precise=draw.random() < 0.75,
        scheme=draw.choice(list(Scheme)),
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        turns=tuple(sorted(turns, key=lambda turn: turn[0])),
        odd=(draw.choice(hosts), draw.randint(3, 12)) if draw.random() < 0.08 else None,
        calm_at=calm_at,
    )
