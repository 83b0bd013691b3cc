"""What each query must put out, computed in the most direct way, apart from the engine.

An oracle gets all rows at once and goes through the windows one by one: take the rows inside, group,
aggregate. At the end of a bounded input all windows close, so every window with a row in it counts, also
those that begin before the first row or end after the last. Results have the columns of the engine's results,
with the rows in any order; `first_difference` compares two results.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

import polars as pl

from holdfast.graph.durations import ticks
from holdfast_lab.workloads.datasets import Dataset, ysb_ads
from holdfast_lab.workloads.queries import (
    CEC_WINDOW,
    FEET_PER_SEGMENT,
    MILESTONE,
    SLOW,
    TOP,
    Query,
    query,
)

__all__ = ["first_difference", "oracle", "same_rows"]

Piece = tuple[int, int, pl.DataFrame]


def oracle(name: str, events: pl.DataFrame, *, slide: int | None = None) -> pl.DataFrame:
    """The result of query `name` over all of `events`; `slide` as in `Query.build`."""
    asked = query(name)
    rows = events.sort(asked.dataset.event_time, maintain_order=True)
    return _ORACLES[asked.name](rows, asked, asked.checked_slide(slide))


def same_rows(actual: pl.DataFrame, expected: pl.DataFrame, float_tolerance: float = 1e-9) -> bool:
    """Whether both have the same columns and the same rows, in whatever order."""
    return first_difference(actual, expected, float_tolerance) is None


def first_difference(actual: pl.DataFrame, expected: pl.DataFrame, float_tolerance: float = 1e-9) -> str | None:
    """What differs first, once both are sorted, or None if nothing does.

    Floats may differ by `float_tolerance`, relative to values above 1 and absolutely below. Rows are paired
    in the order of the columns that are not floats, which must tell the rows of a result apart.
    """
    if actual.schema != expected.schema:
        return f"columns are {dict(actual.schema)}, expected {dict(expected.schema)}"
    exact = [column for column, dtype in expected.schema.items() if not dtype.is_float()]
    floats = [column for column in expected.columns if column not in exact]
    left, right = (frame.sort([*exact, *floats]) for frame in (actual, expected))
    for number, (mine, wanted) in enumerate(zip(left.iter_rows(named=True), right.iter_rows(named=True), strict=False)):
        same = all(mine[column] == wanted[column] for column in exact)
        if not same or not all(_close(mine[column], wanted[column], float_tolerance) for column in floats):
            return f"row {number} (sorted) is {mine}, expected {wanted}"
    if left.height != right.height:
        longer, what = (left, "too much") if left.height > right.height else (right, "missing")
        extra = longer.row(min(left.height, right.height), named=True)
        return f"{left.height} rows, expected {right.height}; {what}, from: {extra}"
    return None


def _close(mine: float | None, wanted: float | None, tolerance: float) -> bool:
    if mine is None or wanted is None:
        return mine is wanted
    return mine == wanted or abs(mine - wanted) <= tolerance * max(1.0, abs(mine), abs(wanted))


def _windows(rows: pl.DataFrame, time: str, size: int, slide: int) -> Iterator[Piece]:
    """(start, end, rows inside) of every window with a row in it. In ticks; `rows` are in order of time."""
    times: list[int] = rows[time].to_list()
    if not times:
        return
    start = (times[0] - size) // slide * slide
    while start <= times[-1]:
        low, high = bisect_left(times, start), bisect_left(times, start + size)
        if high > low:
            yield start, start + size, rows.slice(low, high - low)
        start += slide


def _per_window(
    rows: pl.DataFrame, data: Dataset, size: int, slide: int, keys: list[str], *aggregates: pl.Expr
) -> pl.DataFrame:
    """Group the rows of each window; `size` and `slide` in seconds."""
    size, slide = ticks(size, data.time_unit), ticks(slide, data.time_unit)
    results = [
        (inside.group_by(keys).agg(*aggregates) if keys else inside.select(*aggregates)).with_columns(
            pl.lit(start, pl.Int64).alias("window_start"), pl.lit(end, pl.Int64).alias("window_end")
        )
        for start, end, inside in _windows(rows, data.event_time, size, slide)
    ]
    if not results:
        empty = rows.group_by(keys).agg(*aggregates) if keys else rows.select(*aggregates).clear()
        bounds = [pl.lit(0, pl.Int64).alias(name) for name in ("window_start", "window_end")]
        results = [empty.with_columns(bounds).clear()]
    frame = pl.concat(results)
    values = [column for column in frame.columns if column not in (*keys, "window_start", "window_end")]
    return frame.select(*keys, "window_start", "window_end", *values)


def _mean(column: str, alias: str) -> pl.Expr:
    return pl.col(column).cast(pl.Float64).mean().alias(alias)


def _rows_as(alias: str) -> pl.Expr:
    return pl.len().cast(pl.Int64).alias(alias)


def _cm1(rows: pl.DataFrame, asked: Query, slide: int) -> pl.DataFrame:
    total = pl.col("cpu").cast(pl.Float64).sum().alias("total_cpu")
    return _per_window(rows, asked.dataset, 60, slide, ["category"], total)


def _cm2(rows: pl.DataFrame, asked: Query, slide: int) -> pl.DataFrame:
    failed = rows.filter(pl.col("event_type") == 3)
    return _per_window(failed, asked.dataset, 60, slide, ["job_id"], _mean("cpu", "mean_cpu"))


def _sg1(rows: pl.DataFrame, asked: Query, slide: int) -> pl.DataFrame:
    return _per_window(rows, asked.dataset, 3600, slide, [], _mean("value", "global_mean"))


def _sg2(rows: pl.DataFrame, asked: Query, slide: int) -> pl.DataFrame:
    plug = ["plug", "household", "house"]
    return _per_window(rows, asked.dataset, 128, slide, plug, _mean("value", "local_mean"))


def _sg3(rows: pl.DataFrame, asked: Query, slide: int) -> pl.DataFrame:
    means = {row["window_end"]: row["global_mean"] for row in _sg1(rows, asked, slide).iter_rows(named=True)}
    above = Counter(
        (row["house"], row["window_end"])
        for row in _sg2(rows, asked, slide).iter_rows(named=True)
        if row["window_end"] in means and row["local_mean"] > means[row["window_end"]]
    )
    step = ticks(slide, asked.dataset.time_unit)
    return pl.DataFrame(
        [(house, end - step, end, plugs) for (house, end), plugs in above.items()],
        schema={"house": pl.Int32, "window_start": pl.Int64, "window_end": pl.Int64, "plugs": pl.Int64},
        orient="row",
    )


def _with_segment(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns((pl.col("position") // FEET_PER_SEGMENT).alias("segment"))


def _lrb1(rows: pl.DataFrame, asked: Query, slide: int) -> pl.DataFrame:
    segment = ["highway", "direction", "segment"]
    speeds = _per_window(_with_segment(rows), asked.dataset, 300, slide, segment, _mean("speed", "mean_speed"))
    return speeds.filter(pl.col("mean_speed") < SLOW)


def _lrb2(rows: pl.DataFrame, asked: Query, slide: int) -> pl.DataFrame:
    keys = ["highway", "direction", "segment", "vehicle"]
    return _per_window(_with_segment(rows), asked.dataset, 30, slide, keys, _rows_as("reports"))


def _lrb3(rows: pl.DataFrame, asked: Query, slide: int) -> pl.DataFrame:
    step = ticks(slide, asked.dataset.time_unit)
    keys = ["highway", "direction", "segment", "window_end"]
    vehicles = _lrb2(rows, asked, slide).group_by(keys).agg(_rows_as("vehicles"))
    start = (pl.col("window_end") - step).alias("window_start")
    return vehicles.select("highway", "direction", "segment", start, "window_end", "vehicles")


def _ysb(rows: pl.DataFrame, asked: Query, slide: int) -> pl.DataFrame:
    campaigns = dict(ysb_ads().iter_rows())
    views = rows.filter(pl.col("event_type") == 0)
    campaign = pl.Series("campaign_id", [campaigns.get(ad) for ad in views["ad_id"]], dtype=pl.Int64)
    known = views.with_columns(campaign).filter(pl.col("campaign_id").is_not_null())
    last = pl.col("event_time").max().alias("last_view")
    return _per_window(known, asked.dataset, 10, slide, ["campaign_id"], _rows_as("views"), last)


def _nq(rows: pl.DataFrame, asked: Query, slide: int) -> pl.DataFrame:
    size, step = ticks(60, asked.dataset.time_unit), ticks(slide, asked.dataset.time_unit)
    hot: list[tuple[int, int, int]] = []
    for _, end, inside in _windows(rows, asked.dataset.event_time, size, step):
        bids = Counter(inside["auction"].to_list())
        most = max(bids.values())
        hot.extend((auction, end, most) for auction, n in bids.items() if n == most)
    return pl.DataFrame(hot, schema={"auction": pl.Int64, "window_end": pl.Int64, "bids": pl.Int64}, orient="row")


def _sm(rows: pl.DataFrame, asked: Query, slide: int) -> pl.DataFrame:
    means = [_mean(column, f"mean_{column}") for column in ("mf01", "mf02", "mf03")]
    return _per_window(rows, asked.dataset, 60, slide, [], *means)


def _words(rows: pl.DataFrame, asked: Query, slide: int) -> pl.DataFrame:
    words = [(time, word) for time, text in rows.select("time", "text").iter_rows() for word in text.split()]
    split = pl.DataFrame(words, schema={"time": pl.Int64, "word": pl.String}, orient="row")
    return _per_window(split, asked.dataset, 30, slide, ["word"], _rows_as("times"))


def _topk(rows: pl.DataFrame, asked: Query, slide: int) -> pl.DataFrame:
    size, step = ticks(30, asked.dataset.time_unit), ticks(slide, asked.dataset.time_unit)
    rankings = []
    for _, end, inside in _windows(rows, asked.dataset.event_time, size, step):
        counts = Counter(inside["language"].to_list())
        best = sorted(counts.items(), key=lambda item: (item[1], item[0]), reverse=True)[:TOP]
        rankings.append((end - step, end, [language for language, _ in best], [views for _, views in best]))
    return pl.DataFrame(
        rankings,
        schema={
            "window_start": pl.Int64,
            "window_end": pl.Int64,
            "ranking": pl.List(pl.String),
            "views": pl.List(pl.Int64),
        },
        orient="row",
    )


def _cec(rows: pl.DataFrame, asked: Query, slide: int) -> pl.DataFrame:
    prices: dict[int, list[float]] = defaultdict(list)
    for item, price in rows.select("item_id", "item_price").iter_rows():
        prices[item].append(price)
    means = [
        (item, index, sum(paid[index * CEC_WINDOW : (index + 1) * CEC_WINDOW]) / CEC_WINDOW)
        for item, paid in prices.items()
        for index in range(len(paid) // CEC_WINDOW)
    ]
    schema = {"item_id": pl.Int64, "window_index": pl.Int64, "mean_price": pl.Float64}
    return pl.DataFrame(means, schema=schema, orient="row")


def _keyed(rows: pl.DataFrame, asked: Query, slide: int) -> pl.DataFrame:
    totals: dict[int, tuple[int, int]] = {}
    milestones = []
    for key, value, time in rows.select("key", "value", "event_time").iter_rows():
        n, total = totals.get(key, (0, 0))
        totals[key] = n + 1, total + value
        if (n + 1) % MILESTONE == 0:
            milestones.append((key, time, n + 1, total + value))
    return pl.DataFrame(milestones, schema=dict.fromkeys(("key", "event_time", "n", "total"), pl.Int64), orient="row")


_ORACLES: dict[str, Callable[[pl.DataFrame, Query, int], pl.DataFrame]] = {
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
    "words": _words,
    "topk": _topk,
    "cec": _cec,
    "keyed": _keyed,
}
