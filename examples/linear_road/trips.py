"""Trips: what a vehicle's report means, next to the one before it. Keyed by vehicle.

A report may enter a segment, leave one, or say that the vehicle stands still. Every report also adds to the statistics
of its segment and minute. Only vehicles on a road have state: it goes when they exit.
"""

import polars as pl

import holdfast as hf

STATE = {
    "xway": pl.Int16,
    "dir": pl.Int8,
    "lane": pl.Int8,
    "seg": pl.Int8,
    "pos": pl.Int32,
    "minute": pl.Int16,
    "still": pl.Int16,
    "reports": pl.Int8,
    "speed": pl.Int16,
}
"""The last report: where it came from, how many in a row came from there, and how many came from its segment in its
minute, with the sum of their speeds."""

MOVES = {
    "vid": pl.Int32,
    "time": pl.Int32,
    "xway": pl.Int16,
    "dir": pl.Int8,
    "seg": pl.Int8,
    "lane": pl.Int8,
    "pos": pl.Int32,
    "enters": pl.Boolean,
    "leaves": pl.Boolean,
    "stopped": pl.Int8,
    "cars": pl.Int8,
    "reports": pl.Int8,
    "mean": pl.Int32,
    "speed": pl.Int16,
}
"""`enters`: the vehicle is notified of a toll. `leaves`: the toll of the segment before is charged. `stopped`: 1 when
it has just stopped, 0 while it stands, -1 at the old place when it moves on; otherwise null. The last four add to the
statistics of the segment in that minute: the vehicle, if it is new there, the report, the change of the vehicle's mean
speed in sixtieths, and the speed."""

STOPPED = 4
"""Reports from one place that make a vehicle count as stopped."""
ENTRY, EXIT = 0, 4
_SIXTIETHS = 60
"""Means of up to six reports are whole numbers of these, so that sums are exact."""


def minute() -> pl.Expr:
    """Of the time of a row, from 1."""
    return (pl.col("time") // 60 + 1).cast(pl.Int16)


def _before(column: str) -> pl.Expr:
    """Of the report before; null for the first one of a trip."""
    return pl.when(~pl.col("first")).then(pl.col(column).shift(1))


def _since(start: pl.Expr, amount: pl.Expr) -> pl.Expr:
    """The sum of an amount since the last row that is a start, that row included."""
    total = amount.cast(pl.Int64).cum_sum()
    return total - pl.when(start).then(total - amount).forward_fill()


def follow(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
    """All reports of a vehicle in order, with its state as a report before them."""
    reports = pl.concat(
        [
            state.with_columns(known=True),
            rows.with_columns(known=False, minute=minute(), still=1, reports=1, speed="spd").drop("spd"),
        ],
        how="diagonal_relaxed",
    ).sort("vid", maintain_order=True)
    reports = _without_strays(reports)
    same = pl.all_horizontal(pl.col(name) == _before(name) for name in ("xway", "dir", "lane", "pos"))
    here = pl.all_horizontal(pl.col(name) == _before(name) for name in ("xway", "dir", "seg", "minute"))
    reports = reports.with_columns(
        still=_since(~same.fill_null(False), pl.col("still")),
        reports=_since(~here.fill_null(False), pl.col("reports")),
        total=_since(~here.fill_null(False), pl.col("speed")),
        changes=pl.col("seg") != _before("seg"),
        moved=~same & (pl.col("vid") == pl.col("vid").shift(1)),
    )
    reports = reports.with_columns(stood=pl.col("moved") & (pl.col("still").shift(1) >= STOPPED))
    last = reports.filter((pl.col("vid") != pl.col("vid").shift(-1)).fill_null(True))
    return hf.Step(
        output=_moves(reports),
        upserts=last.filter(pl.col("lane") != EXIT).with_columns(speed="total").select("vid", *STATE),
        deletes=last.filter(pl.col("lane") == EXIT).select("vid"),
    )


def _without_strays(reports: pl.DataFrame) -> pl.DataFrame:
    """Marks the first report of each trip; what is reported between an exit and the next entry is ignored."""
    begins = (pl.col("vid") != pl.col("vid").shift(1)).fill_null(True) | (pl.col("lane").shift(1) == EXIT)
    reports = reports.with_columns(first=begins)
    on_a_road = ~pl.col("first") | pl.col("known") | (pl.col("lane") == ENTRY)
    if reports.select(on_a_road.all()).item():
        return reports
    entered = pl.when(pl.col("first")).then(on_a_road).forward_fill()
    return _without_strays(reports.filter(entered))


def _moves(reports: pl.DataFrame) -> pl.DataFrame:
    count, total, speed = pl.col("reports"), pl.col("total"), pl.col("speed")
    mean = _SIXTIETHS * total // count
    before = pl.when(count > 1).then(_SIXTIETHS * (total - speed) // (count - 1)).otherwise(0)
    moves = reports.filter(~pl.col("known")).select(
        "vid", "time", "xway", "dir", "seg", "lane", "pos",
        enters=(pl.col("lane") != EXIT) & (pl.col("first") | pl.col("changes").fill_null(False)),
        leaves=pl.col("changes").fill_null(False),
        stopped=pl.when(pl.col("still") >= STOPPED).then(pl.col("still") == STOPPED).cast(pl.Int8),
        cars=(count == 1).cast(pl.Int8),
        reports=pl.lit(1, pl.Int8),
        mean=mean - before,
        speed="speed",
    )  # fmt: skip
    places = ["xway", "dir", "seg", "lane", "pos"]
    gone = reports.select("vid", "time", "stood", *(pl.col(name).shift(1) for name in places)).filter("stood")
    if not gone.height:
        return moves
    away = gone.drop("stood").with_columns(
        enters=False, leaves=False, stopped=pl.lit(-1, pl.Int8), cars=0, reports=0, mean=0, speed=0
    )
    return pl.concat([moves, away], how="vertical_relaxed")
