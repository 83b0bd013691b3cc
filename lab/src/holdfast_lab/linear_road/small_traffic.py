"""A few minutes of traffic on a few segments, so dense and so clumsy that everything happens: tolls, charges, stops,
accidents, exits, re-entries, and requests at any time. For comparing the application with the oracle."""

from __future__ import annotations

import random
from dataclasses import dataclass

import polars as pl

__all__ = ["INPUT_SCHEMA", "SmallTraffic"]

_COLUMNS = (
    "type",
    "time",
    "vid",
    "spd",
    "xway",
    "lane",
    "dir",
    "seg",
    "pos",
    "qid",
    "sinit",
    "send",
    "dow",
    "tod",
    "day",
)
INPUT_SCHEMA = pl.Schema(
    {
        name: {"time": pl.Int32, "vid": pl.Int32, "spd": pl.Int16, "xway": pl.Int16, "pos": pl.Int32, "qid": pl.Int32,
               "sinit": pl.Int16, "send": pl.Int16, "tod": pl.Int16}.get(name, pl.Int8)
        for name in _COLUMNS
    }
)  # fmt: skip
_FEET = 5280
_LANES = (1, 2, 3)
_LAYBYS = (3_000, 3_100)
"""Vehicles stop at few places, so that some of them meet there."""


@dataclass(frozen=True, slots=True)
class SmallTraffic:
    """Made from its seed alone. Reports and requests in the order of time, that of a second drawn by lot."""

    seed: int
    minutes: int = 9
    vehicles: int = 600
    xways: int = 1
    segments: int = 3

    def rows(self) -> pl.DataFrame:
        chance = random.Random(self.seed)
        rows: list[dict[str, int]] = []
        for vid in range(self.vehicles):
            time = chance.randrange(0, 60 * self.minutes // 2)
            for _ in range(chance.choice((1, 1, 2))):
                time = self._trip(chance, vid, time, rows) + chance.randrange(61, 200)
        for number, row in enumerate(rows):
            row["order"] = chance.randrange(1 << 30)
            row["qid"] = number if row["type"] else -1
        frame = pl.DataFrame(rows).filter(pl.col("time") < 60 * self.minutes).sort("time", "order").drop("order")
        return frame.select(_COLUMNS).cast(INPUT_SCHEMA)

    def _trip(self, chance: random.Random, vid: int, time: int, rows: list[dict[str, int]]) -> int:
        """Reports every 30 s from an entry to an exit, with requests now and then; when the last one was."""
        xway, direction = chance.randrange(self.xways), chance.randrange(2)
        seg = chance.randrange(self.segments)
        place, lane, stays = seg * _FEET + chance.randrange(_FEET), 0, 0
        for number in range(chance.randrange(2, 14)):
            if stays:
                stays, speed = stays - 1, 0
            else:
                speed = chance.choice((0, 5, 10, 20, 30, 60))
                if number:
                    lane = chance.choice(_LANES)
                    place = min(max(place + (1 - 2 * direction) * speed * 44, 0), self.segments * _FEET - 1)
                    if chance.random() < 0.12:
                        stays, lane = chance.randrange(2, 9), 3
                        place = place // _FEET * _FEET + chance.choice(_LAYBYS)
            self._report(rows, 0, time, vid, xway, direction, lane, place, speed)
            self._requests(chance, rows, time, vid, xway)
            time += 30
        self._report(rows, 0, time, vid, xway, direction, 4, place, 10)
        return time

    def _report(
        self, rows: list[dict[str, int]], kind: int, time: int, vid: int, xway: int, direction: int, lane: int,
        place: int, speed: int,
    ) -> None:  # fmt: skip
        rows.append(
            dict.fromkeys(_COLUMNS, -1)
            | {"type": kind, "time": time, "vid": vid, "spd": speed, "xway": xway, "lane": lane, "dir": direction,
               "seg": place // _FEET, "pos": place}
        )  # fmt: skip

    def _requests(self, chance: random.Random, rows: list[dict[str, int]], time: int, vid: int, xway: int) -> None:
        kind = chance.choice((2, 3, 4, None, None, None))
        if kind is not None:
            day = chance.randrange(1, 4)
            rows.append(
                dict.fromkeys(_COLUMNS, -1) | {"type": kind, "time": time, "vid": vid, "xway": xway, "day": day}
            )
