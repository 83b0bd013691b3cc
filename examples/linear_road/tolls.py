"""Tolls: accidents, the statistics of each segment by the minute, and the toll that follows from them.

The statistics of a minute are complete with its last report, and count in the five minutes after it. An accident counts
from the minute after the one in which it became known.
"""

from dataclasses import dataclass
from typing import Literal

import polars as pl

import holdfast as hf
from trips import minute

Rules = Literal["paper", "walmart"]

SEGMENT = ["xway", "dir", "seg"]
STANDING = {"standing": pl.Int16}
SIGNALS = {
    "xway": pl.Int16,
    "dir": pl.Int8,
    "lane": pl.Int8,
    "pos": pl.Int32,
    "seg": pl.Int8,
    "time": pl.Int32,
    "cleared": pl.Boolean,
}
"""An accident at a place: seen standing in the minute of `time`, or cleared then."""

_CELL = pl.Struct({"minute": pl.Int16, "cars": pl.Int32, "reports": pl.Int32, "mean": pl.Int64, "speed": pl.Int64})
_ACCIDENT = pl.Struct({"minute": pl.Int16, "distance": pl.Int8, "cleared": pl.Boolean})
SEGMENT_STATE = {"cells": pl.List(_CELL), "accidents": pl.List(_ACCIDENT)}
"""What is known of a segment: its last six minutes, and the minutes in which an accident so many segments downstream
counts."""

NOTICES = {
    "vid": pl.Int32,
    "time": pl.Int32,
    "xway": pl.Int16,
    "dir": pl.Int8,
    "seg": pl.Int8,
    "leaves": pl.Boolean,
    "lav": pl.Int16,
    "toll": pl.Int32,
    "accident": pl.Int8,
}
"""What a vehicle that enters a segment is told; `accident` is the segment of the nearest one, if any."""

SCOPE = 4
"""An accident counts in its own segment and so many upstream."""
MINUTES = 5
"""Of which the average speed is taken."""
FREE_CARS, FREE_SPEED = 50, 40


def watch_place(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
    """Keyed by place: two vehicles that stand there are an accident, until fewer than two do."""
    place = ["xway", "dir", "lane", "pos"]
    events = rows.join(state, on=place, how="left", maintain_order="left").with_columns(
        standing=pl.col("standing").fill_null(0) + pl.col("stopped").cum_sum().over(place)
    )
    seen = (pl.col("stopped") >= 0) & (pl.col("standing") >= 2)
    cleared = (pl.col("stopped") < 0) & (pl.col("standing") == 1)
    last = events.group_by(place, maintain_order=True).last().select(*place, "standing")
    return hf.Step(
        output=events.filter(seen | cleared).select(*place, "seg", "time", cleared=cleared),
        upserts=last.filter(pl.col("standing") > 0),
        deletes=last.filter(pl.col("standing") == 0).select(place),
    )


def upstream(signals: hf.Stream, columns: dict[str, pl.DataType]) -> hf.Stream:
    """Signals of accidents, once for each segment in which they count, in the columns of moves."""
    downwards = pl.when(pl.col("dir") == 0).then(-1).otherwise(1)
    distance = pl.lit(list(range(SCOPE + 1)), pl.List(pl.Int8))
    reached = signals.with_columns(distance=distance).explode("distance")
    reached = reached.with_columns(seg=(pl.col("seg") + downwards * pl.col("distance")).cast(pl.Int8))
    reached = reached.filter(pl.col("seg").is_between(0, 99))
    have = {*reached.schema}
    return reached.select(
        *(pl.col(name) if name in have else pl.lit(None, dtype).alias(name) for name, dtype in columns.items())
    )


@dataclass(frozen=True)
class TollCalculator:
    """Keyed by segment: `rows` are moves of vehicles and signals of accidents."""

    rules: Rules = "paper"

    def __call__(self, rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
        rows = rows.with_columns(minute=minute())
        moves = rows.filter(pl.col("distance").is_null()).drop("distance", "cleared")
        signals = rows.filter(pl.col("distance").is_not_null())
        cells = self._cells(moves, state)
        accidents = self._accidents(signals, state)
        entering = moves.filter("enters").select("vid", "time", *SEGMENT, "minute", "leaves")
        notices = (
            entering.join(self._speeds(cells, entering), on=[*SEGMENT, "minute"], how="left", maintain_order="left")
            .join(self._in_force(accidents), on=[*SEGMENT, "minute"], how="left", maintain_order="left")
            .with_columns(pl.col("cars").fill_null(0), free=self._is_free(pl.col("lav")))
        )
        crowd = (pl.col("cars") - FREE_CARS).clip(0).cast(pl.Int32)
        ahead = pl.when(pl.col("dir") == 0).then(pl.col("distance")).otherwise(-pl.col("distance"))
        output = notices.select(
            "vid", "time", *SEGMENT, "leaves",
            lav=self._shown(pl.col("lav")).fill_null(0),
            toll=pl.when(pl.col("free") | pl.col("distance").is_not_null()).then(0).otherwise(2 * crowd**2),
            accident=pl.col("seg") + ahead,
        )  # fmt: skip
        return hf.Step(output=output, upserts=self._kept(rows, cells, accidents))

    def _cells(self, moves: pl.DataFrame, state: pl.DataFrame) -> pl.DataFrame:
        """The statistics by segment and minute."""
        known = state.select(*SEGMENT, "cells").explode("cells").drop_nulls("cells").unnest("cells")
        sums = ["cars", "reports", "mean", "speed"]
        added = moves.group_by(*SEGMENT, "minute").agg(pl.col(name).cast(known.schema[name]).sum() for name in sums)
        return pl.concat([known, added]).group_by(*SEGMENT, "minute").agg(pl.col(sums).sum())

    def _accidents(self, signals: pl.DataFrame, state: pl.DataFrame) -> pl.DataFrame:
        """The minutes in which an accident counts. Under Walmart's rules it ends with the minute in which it is
        cleared, and another one in the same segment is never seen."""
        known = state.select(*SEGMENT, "accidents").explode("accidents").drop_nulls("accidents").unnest("accidents")
        counts = pl.when(pl.col("cleared")).then(pl.col("minute")).otherwise(pl.col("minute") + 1).cast(pl.Int16)
        new = signals.select(*SEGMENT, counts, "distance", "cleared")
        if self.rules == "paper":
            new = new.filter(~pl.col("cleared"))
        return pl.concat([known, new]).unique()

    def _speeds(self, cells: pl.DataFrame, entering: pl.DataFrame) -> pl.DataFrame:
        """For each segment and minute in which a vehicle enters: the vehicles of the minute before (`cars`), and the
        average speed of the last five (`lav`)."""
        wanted = entering.select(*SEGMENT, "minute").unique()
        past = wanted.join(cells.rename({"minute": "then"}), on=SEGMENT)
        age = pl.col("minute") - pl.col("then")
        past = past.filter(age.is_between(1, MINUTES)).sort(*SEGMENT, "minute", "then")
        if self.rules == "paper":
            lav = (pl.col("mean") / (60 * pl.col("cars"))).mean()
        else:
            lav = pl.col("speed").sum() / pl.col("reports").sum()
        return past.group_by(*SEGMENT, "minute").agg(lav=lav, cars=pl.col("cars").filter(age == 1).sum())

    def _in_force(self, accidents: pl.DataFrame) -> pl.DataFrame:
        where = [*SEGMENT, "distance"]
        cleared = accidents.filter("cleared").group_by(where).agg(over=pl.col("minute").min())
        seen = accidents.filter(~pl.col("cleared")).join(cleared, on=where, how="left")
        seen = seen.filter((pl.col("minute") <= pl.col("over")).fill_null(True))
        return seen.group_by(*SEGMENT, "minute").agg(pl.col("distance").min())

    def _shown(self, lav: pl.Expr) -> pl.Expr:
        return (lav if self.rules == "paper" else (lav + 0.5).floor()).cast(pl.Int16)

    def _is_free(self, lav: pl.Expr) -> pl.Expr:
        """Whether traffic is fast enough for no toll, or its speed unknown."""
        speed = lav if self.rules == "paper" else self._shown(lav)
        return (speed >= FREE_SPEED).fill_null(True)

    def _kept(self, rows: pl.DataFrame, cells: pl.DataFrame, accidents: pl.DataFrame) -> pl.DataFrame:
        """Rows of minutes that nobody will ask for go."""
        now = rows.group_by(SEGMENT).agg(now=pl.col("minute").max())
        cells = cells.join(now, on=SEGMENT).filter(pl.col("minute") >= pl.col("now") - MINUTES)
        accidents = accidents.join(now, on=SEGMENT).filter((pl.col("minute") >= pl.col("now")) | pl.col("cleared"))
        return (
            now.select(SEGMENT)
            .join(_packed(cells, "cells", _CELL), on=SEGMENT, how="left")
            .join(_packed(accidents, "accidents", _ACCIDENT), on=SEGMENT, how="left")
        )


def _packed(rows: pl.DataFrame, name: str, dtype: pl.Struct) -> pl.DataFrame:
    fields = [field.name for field in dtype.fields]
    return rows.sort(*SEGMENT, *fields).group_by(SEGMENT).agg(pl.struct(fields).alias(name))
