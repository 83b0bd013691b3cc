"""The traffic of one expressway, with the shape of the original benchmark: ever more vehicles over three hours, which
slow each other down, an accident about every twenty minutes, and requests beside one report in a hundred.

It is worked out for all vehicles at once in steps of 30 seconds, in which each of them reports once. It may begin in
the middle: the vehicles that are on the road by then enter where they are, with their first report, so that a few
minutes of the heaviest traffic need nothing before them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from holdfast_lab.linear_road.small_traffic import INPUT_SCHEMA

__all__ = ["FULL_MINUTES", "Expressway", "reports_per_second"]

Ints = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]
Column = npt.NDArray[Any]

FULL_MINUTES = 180
FIRST_RATE, LAST_RATE = 12.0, 1_700.0
"""Tuples per second at the beginning and at the end of three hours."""
REQUESTS = 0.01
"""Of the reports, how many come with a request."""
REQUEST_KINDS = {2: 0.5, 3: 0.1, 4: 0.4}
ACCIDENT_MINUTES = 20.0
"""Between two accidents, on average."""
STANDING_STEPS = (20, 40)
"""How long they stand: 10 to 20 minutes."""

_STEP = 30
_SEGMENTS, _FEET = 100, 5_280
_FEET_PER_STEP = 44
"""Of one mile per hour."""
_MEAN_TRIP = 22
"""Segments."""
_FREE_SPEED, _LEAST_SPEED, _SPEED_PER_CAR = 68.0, 24.0, 0.12
_SPEED_AT_ACCIDENT = 16.0
_LANE_OF_STANDING = 3
"""Where vehicles stand that stood before the first report that is given."""
_SETTLING_STEPS = 40
"""Unseen, before the first one that is given: entries and exits are in balance by then."""
_RETURNS = 0.2
"""Of the vehicles that enter, how many were on the road before."""
_AWAY_STEPS = 4
_LONE_STOPS = 0.3
"""Vehicles that stop alone, per step: no accidents."""
_DAYS = 69


def reports_per_second(seconds: float) -> float:
    """After so many seconds of three hours."""
    share = min(max(seconds / (60 * FULL_MINUTES), 0.0), 1.0)
    return (FIRST_RATE + (LAST_RATE - FIRST_RATE) * share) / (1 + REQUESTS)


@dataclass(frozen=True, slots=True)
class Expressway:
    """The traffic from minute `first` to minute `first + minutes` of the ramp, made from the seed alone. Times begin
    with 0 wherever in the ramp it begins. `density` multiplies the number of vehicles."""

    seed: int = 0
    first: float = 0.0
    minutes: float = FULL_MINUTES
    density: float = 1.0

    @staticmethod
    def peak(seed: int, minutes: float) -> Expressway:
        """The last minutes."""
        return Expressway(seed, FULL_MINUTES - minutes, minutes)

    def rows(self) -> pl.DataFrame:
        """In the columns of the input, by time; the order within a second is drawn by lot. Vehicles are numbered from
        0 without gaps, and so are requests."""
        road = _Road(np.random.default_rng(self.seed))
        for _ in range(_SETTLING_STEPS):
            road.fill(self._vehicles(0))
            road.have_accidents()
            road.move()
        road.begin()
        steps = []
        for step in range(int(60 * self.minutes) // _STEP):
            road.fill(self._vehicles(step * _STEP))
            road.have_accidents()
            steps.append(road.reports(step * _STEP))
            road.move()
        reports = {name: np.concatenate([made[name] for made in steps]) for name in steps[0]}
        return _with_requests(road.chance, reports)

    def _vehicles(self, seconds: float) -> int:
        """On the road at a time: each reports once in a step."""
        return round(self.density * _STEP * reports_per_second(60 * self.first + seconds))


@dataclass(slots=True)
class _Road:
    """The vehicles on the road. `stands` is for how many steps yet, `waits` marks those whose last report is due on the
    exit lane, `enters` those that have not reported."""

    chance: np.random.Generator
    columns: dict[str, Column] = field(default_factory=dict)
    vehicles: int = 0
    gone: list[Ints] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.columns = self._entering(0, np.zeros(0, np.int32))

    def begin(self) -> None:
        """From now on it is seen: the vehicles there enter now, and are numbered."""
        going = ~self.columns["waits"].astype(bool)
        self.columns = {name: column[going] for name, column in self.columns.items()}
        count = int(going.sum())
        self.columns |= {
            "vid": self.chance.permutation(count).astype(np.int32),
            "lane": np.zeros(count, np.int8),
            "enters": np.ones(count, bool),
        }
        self.vehicles, self.gone = count, []

    def fill(self, wanted: int) -> None:
        """Vehicles enter until there are so many; some of them were here before."""
        missing = wanted - len(self.columns["vid"])
        if missing <= 0:
            return
        back = np.zeros(0, np.int32)
        if len(self.gone) > _AWAY_STEPS:
            past = self.gone.pop(0)
            back = past[: min(len(past), int(missing * _RETURNS))]
        new = np.arange(self.vehicles, self.vehicles + missing - len(back), dtype=np.int32)
        self.vehicles += len(new)
        entering = self._entering(missing, np.concatenate([back, new]))
        self.columns = {name: np.concatenate([column, entering[name]]) for name, column in self.columns.items()}

    def _entering(self, count: int, vid: Ints) -> dict[str, Column]:
        chance = self.chance
        direction = chance.integers(0, 2, count, dtype=np.int8)
        pos = chance.integers(0, _SEGMENTS * _FEET, count, dtype=np.int32)
        feet = (chance.exponential(_MEAN_TRIP * _FEET, count) + _FEET / 4).astype(np.int32)
        return {
            "vid": vid,
            "dir": direction,
            "pos": pos,
            "target": np.clip(np.where(direction == 0, pos + feet, pos - feet), 0, _SEGMENTS * _FEET - 1),
            "lane": np.zeros(count, np.int8),
            "spd": chance.integers(15, 30, count, dtype=np.int16),
            "phase": chance.integers(0, _STEP, count, dtype=np.int8),
            "stands": np.zeros(count, np.int16),
            "enters": np.ones(count, bool),
            "waits": np.zeros(count, bool),
        }

    def reports(self, seconds: int) -> dict[str, Column]:
        """What all say in the step that begins then."""
        own = self.columns
        return {
            "time": seconds + own["phase"].astype(np.int32),
            **{name: own[name].copy() for name in ("vid", "spd", "lane", "dir", "pos")},
        }

    def move(self) -> None:
        """On to the next step. Who has exited is gone."""
        leaves = self.columns["waits"].astype(bool)
        if leaves.any():
            self.gone.append(self.columns["vid"][leaves].astype(np.int32))
            self.columns = {name: column[~leaves] for name, column in self.columns.items()}
        own, chance = self.columns, self.chance
        count = len(own["vid"])
        segment = own["dir"].astype(np.int32) * _SEGMENTS + own["pos"] // _FEET
        cars = np.bincount(segment, minlength=2 * _SEGMENTS)
        allowed = np.maximum(_FREE_SPEED - _SPEED_PER_CAR * cars, _LEAST_SPEED)
        allowed[np.unique(segment[own["stands"] > 0])] = _SPEED_AT_ACCIDENT
        speed = np.clip(chance.normal(allowed[segment], 4.0), 0, 100).astype(np.int16)
        stands = own["stands"] > 0
        speed[stands] = 0
        way = np.where(own["dir"] == 0, 1, -1) * speed.astype(np.int32) * _FEET_PER_STEP
        # Who crawls still changes its place, so that only who stands seems to stand.
        pos = own["pos"] + np.where(~stands & (way == 0), np.where(own["dir"] == 0, 1, -1), way)
        beyond = np.where(own["dir"] == 0, pos >= own["target"], pos <= own["target"]) & ~stands
        lane = np.where(stands, own["lane"], chance.integers(1, 4, count, dtype=np.int8))
        lane[stands & own["enters"]] = _LANE_OF_STANDING
        self.columns |= {
            "pos": np.where(beyond, own["target"], pos).astype(np.int32),
            "lane": np.where(beyond, 4, lane).astype(np.int8),
            "spd": speed,
            "stands": np.maximum(own["stands"] - 1, 0).astype(np.int16),
            "enters": np.zeros(count, bool),
            "waits": beyond,
        }

    def have_accidents(self) -> None:
        """Now and then two vehicles that are close to each other stop at one place, and now and then one stops."""
        own, chance = self.columns, self.chance
        free = np.flatnonzero((own["stands"] == 0) & (own["lane"] >= 1) & (own["lane"] <= 3))
        if len(free) < 2:
            return
        for _ in range(chance.poisson(_LONE_STOPS)):
            own["stands"][chance.choice(free)] = chance.integers(2, 9)
        for _ in range(chance.poisson(_STEP / (60 * ACCIDENT_MINUTES))):
            one = int(chance.choice(free))
            near = free[(own["dir"][free] == own["dir"][one]) & (free != one)]
            if not len(near):
                continue
            other = int(near[np.argmin(np.abs(own["pos"][near] - own["pos"][one]))])
            own["pos"][other], own["lane"][other] = own["pos"][one], own["lane"][one]
            own["stands"][[one, other]] = chance.integers(*STANDING_STEPS, 2)


def _with_requests(chance: np.random.Generator, reports: dict[str, Column]) -> pl.DataFrame:
    """Reports and the requests that come with some of them, in the order of time."""
    count = len(reports["vid"])
    asking = np.flatnonzero(chance.random(count) < REQUESTS)
    kinds = chance.choice(list(REQUEST_KINDS), len(asking), p=list(REQUEST_KINDS.values())).astype(np.int8)
    asks = {name: kinds == kind for name, kind in (("balance", 2), ("spent", 3), ("travel", 4))}

    def only(which: Flags, values: Column) -> Column:
        return np.where(which, values, -1)

    def drawn(low: int, high: int) -> Column:
        return chance.integers(low, high, len(asking))

    requests = {
        "type": kinds,
        "time": reports["time"][asking],
        "vid": reports["vid"][asking],
        "xway": only(~asks["balance"], np.zeros(len(asking), np.int16)),
        "qid": np.arange(len(asking)),
        "sinit": only(asks["travel"], drawn(0, _SEGMENTS)),
        "send": only(asks["travel"], drawn(0, _SEGMENTS)),
        "dow": only(asks["travel"], drawn(1, 8)),
        "tod": only(asks["travel"], drawn(1, 1441)),
        "day": only(asks["spent"], drawn(1, _DAYS + 1)),
    }
    given = {
        **reports,
        "type": np.zeros(count, np.int8),
        "xway": np.zeros(count, np.int16),
        "seg": reports["pos"] // _FEET,
    }
    order = np.lexsort((chance.random(count + len(asking)), np.concatenate([given["time"], requests["time"]])))
    columns = []
    for name, dtype in INPUT_SCHEMA.items():
        first, second = given.get(name), requests.get(name)
        parts = [np.full(size, -1) if part is None else part for part, size in ((first, count), (second, len(asking)))]
        kind = pl.Series(dtype=dtype).to_numpy().dtype
        columns.append(pl.Series(name, np.concatenate([part.astype(kind) for part in parts])[order]))
    return pl.DataFrame(columns)
