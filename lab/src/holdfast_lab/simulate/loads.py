"""Seeded traces of load: days of events per second and bytes of state, with their nights, steps, bursts and noise.

What is drawn may jump; `limited` lets it rise by no more than so much per second, since nobody can be ready for a load
that comes from one moment to the next. It falls as fast as it likes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["DAY", "Load", "limited", "trace"]

DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Load:
    at: float
    rows_per_second: float
    state_bytes: float


def limited(values: Iterator[Load], growth: float) -> Iterator[Load]:
    """The same load, with what rises too fast coming later."""
    before: Load | None = None
    for load in values:
        if before is not None:
            most = (1 + growth) ** (load.at - before.at)
            load = Load(
                load.at,
                min(load.rows_per_second, before.rows_per_second * most),
                min(load.state_bytes, before.state_bytes * most),
            )
        before = load
        yield load


def trace(seed: int, days: float = 1.0, every: float = 10.0, most: float = 1.5e6) -> Iterator[Load]:
    """Load every so many seconds: a day's curve, steps that last for hours, bursts of minutes, and noise. A fragment
    holds back a source that gives more than `most` rows per second."""
    draw = random.Random(seed)
    peak = 10 ** draw.uniform(3.5, 6.0)
    depth, phase = draw.uniform(0.3, 0.95), draw.uniform(0, 2 * math.pi)
    state = 10 ** draw.uniform(6.0, 9.5)
    noise = draw.uniform(0, 0.05)
    end = days * DAY
    steps = sorted(draw.uniform(0, end) for _ in range(draw.randint(0, int(6 * days) + 1)))
    bursts = [(draw.uniform(0, end), draw.uniform(60, 1800), draw.uniform(1.5, 8)) for _ in range(draw.randint(0, 12))]
    level, size = 1.0, 1.0
    for number in range(int(end / every)):
        at = number * every
        while steps and steps[0] <= at:
            steps.pop(0)
            level, size = draw.uniform(0.3, 3), draw.uniform(0.2, 5)
        rows = peak * level * (1 - depth / 2 + depth / 2 * math.sin(2 * math.pi * at / DAY + phase))
        for begin, length, height in bursts:
            if begin <= at < begin + length:
                rows *= height
        rows *= 1 + noise * draw.uniform(-1, 1)
        growing = 0.6 + 0.4 * math.sin(2 * math.pi * at / DAY + phase - 0.5)
        yield Load(at, min(most, max(1.0, rows)), state * size * growing)
