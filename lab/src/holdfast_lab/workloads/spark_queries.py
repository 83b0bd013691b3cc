"""The eleven queries as one would write them in plain Structured Streaming, for comparison.

Each takes a streaming DataFrame with the columns of the query's dataset and returns one with the columns of
the Holdfast query, so that both can be held against the same oracle. They are for append mode: a window comes
out once, when the watermark has passed its end. SG3, LRB3 and NQ chain stateful operators, SG3 and NQ with a
join of two streams among them, each in one streaming query.

Spark has no end of input: the windows that are open when the last row has come stay open.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every PySpark program uses

from holdfast.errors import DeclarationError
from holdfast.graph.durations import TimeUnit
from holdfast_lab.workloads.queries import FEET_PER_SEGMENT, PAPER_QUERIES, SLOW, query
from holdfast_lab.workloads.synthetic import ysb_ads

__all__ = ["spark_query"]

_EVENT = "event_moment"
"""The event time as a Spark timestamp, which carries the watermark."""

_TO_TIMESTAMP: dict[TimeUnit, Callable[[Column], Column]] = {
    "s": F.timestamp_seconds,
    "ms": F.timestamp_millis,
    "us": F.timestamp_micros,
}
_TO_TICKS: dict[TimeUnit, Callable[[Column], Column]] = {
    "s": F.unix_seconds,
    "ms": F.unix_millis,
    "us": F.unix_micros,
}
_SEGMENT = ("highway", "direction", "segment")


def spark_query(name: str, events: DataFrame, *, slide: int | None = None) -> DataFrame:
    """Query `name` over a streaming DataFrame; `slide` as in `Query.build`."""
    asked = query(name)
    if asked.name not in PAPER_QUERIES:
        raise DeclarationError(
            f"query {asked.name} has no twin in Structured Streaming",
            cure=f"choose one of: {', '.join(PAPER_QUERIES)}",
        )
    data = asked.dataset
    moment = _TO_TIMESTAMP[data.time_unit](F.col(data.event_time))
    watched = events.withColumn(_EVENT, moment).withWatermark(_EVENT, "0 seconds")
    result = _QUERIES[asked.name](watched, asked.checked_slide(slide))
    return _with_bounds(result, data.time_unit)


def _with_bounds(result: DataFrame, unit: TimeUnit) -> DataFrame:
    """The window as two integers in the unit of the event time, behind the keys and before the values."""
    ticks = _TO_TICKS[unit]
    columns: list[Column] = []
    for column in result.columns:
        if column == "window":
            columns += [ticks(F.col("window.start")).alias("window_start")]
            columns += [ticks(F.col("window.end")).alias("window_end")]
        elif column == "window_end":
            columns.append(ticks(F.col("window_end")).alias("window_end"))
        else:
            columns.append(F.col(column))
    return result.select(*columns)


def _windowed(rows: DataFrame, keys: tuple[str, ...], size: int, slide: int, *aggregates: Column) -> DataFrame:
    """One row per key and window, with the window's last moment as the event time for what follows."""
    window = F.window(_EVENT, f"{size} seconds", f"{slide} seconds")
    grouped = rows.groupBy(*keys, window).agg(*aggregates)
    values = [column for column in grouped.columns if column not in (*keys, "window")]
    return grouped.select(*keys, "window", *values)


def _last_moment(windows: DataFrame) -> DataFrame:
    """The end of a window, less the smallest step, as the event time of its result."""
    return windows.withColumn(_EVENT, F.window_time("window"))


def _cm1(events: DataFrame, slide: int) -> DataFrame:
    return _windowed(events, ("category",), 60, slide, F.sum("cpu").alias("total_cpu"))


def _cm2(events: DataFrame, slide: int) -> DataFrame:
    failed = events.where(F.col("event_type") == 3)
    return _windowed(failed, ("job_id",), 60, slide, F.avg("cpu").alias("mean_cpu"))


def _sg1(events: DataFrame, slide: int) -> DataFrame:
    return _windowed(events, (), 3600, slide, F.avg("value").alias("global_mean"))


def _sg2(events: DataFrame, slide: int) -> DataFrame:
    keys = ("plug", "household", "house")
    return _windowed(events, keys, 128, slide, F.avg("value").alias("local_mean"))


def _sg3(events: DataFrame, slide: int) -> DataFrame:
    local = _last_moment(_sg2(events, slide)).select("house", "local_mean", _EVENT)
    everywhere = _last_moment(_sg1(events, slide)).select("global_mean", F.col(_EVENT).alias("at"))
    above = local.join(everywhere, F.col(_EVENT) == F.col("at")).where("local_mean > global_mean")
    return _windowed(above.drop("at"), ("house",), slide, slide, F.count("*").alias("plugs"))


def _segments(events: DataFrame) -> DataFrame:
    return events.withColumn("segment", F.floor(F.col("position") / FEET_PER_SEGMENT).cast("int"))


def _lrb1(events: DataFrame, slide: int) -> DataFrame:
    speeds = _windowed(_segments(events), _SEGMENT, 300, slide, F.avg("speed").alias("mean_speed"))
    return speeds.where(F.col("mean_speed") < SLOW)


def _lrb2(events: DataFrame, slide: int) -> DataFrame:
    keys = (*_SEGMENT, "vehicle")
    return _windowed(_segments(events), keys, 30, slide, F.count("*").alias("reports"))


def _lrb3(events: DataFrame, slide: int) -> DataFrame:
    reports = _last_moment(_lrb2(events, slide)).drop("window")
    return _windowed(reports, _SEGMENT, slide, slide, F.count("vehicle").alias("vehicles"))


def _ysb(events: DataFrame, slide: int) -> DataFrame:
    ads = events.sparkSession.createDataFrame(ysb_ads().to_arrow())
    views = events.where(F.col("event_type") == 0).select("event_time", "ad_id", _EVENT)
    return _windowed(
        views.join(F.broadcast(ads), "ad_id"),
        ("campaign_id",),
        10,
        slide,
        F.count("*").alias("views"),
        F.max("event_time").alias("last_view"),
    )


def _nq(events: DataFrame, slide: int) -> DataFrame:
    counts = _last_moment(_windowed(events, ("auction",), 60, slide, F.count("*").alias("bids")))
    most = _windowed(counts.drop("window"), (), slide, slide, F.max("bids").alias("most"))
    top = _last_moment(most).select("most", F.col(_EVENT).alias("at"))
    hot = counts.join(top, (F.col(_EVENT) == F.col("at")) & (F.col("bids") == F.col("most")))
    return hot.select("auction", F.col("window.end").alias("window_end"), "bids")


def _sm(events: DataFrame, slide: int) -> DataFrame:
    means = [F.avg(column).alias(f"mean_{column}") for column in ("mf01", "mf02", "mf03")]
    return _windowed(events, (), 60, slide, *means)


_QUERIES: dict[str, Callable[[DataFrame, int], DataFrame]] = {
    "CM1": _cm1,
    "CM2": _cm2,
    "SG1": _sg1,
    "SG2": _sg2,
    "SG3": _sg3,
    "LRB1": _lrb1,
    "LRB2": _lrb2,
    "LRB3": _lrb3,
    "YSB": _ysb,
    "NQ": _nq,
    "SM": _sm,
}
