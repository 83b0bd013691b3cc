"""Linear Road (Arasu et al., VLDB 2004): variable tolls on expressways, as SEEP's operator graph.

    feeder ─ forwarder ─ trips ─┬─ accidents ─┬─ toll calculator ─ toll assessment ─ balance account ─ collector
                                └─────────────┘

Vehicles report where they are every 30 seconds. Who enters a segment is told its toll, which depends on how many
vehicles were there in the minute before and on how fast they went in the last five; accidents ahead make it free, and
vehicles are warned of them. Vehicles may ask for their balance and for what they spent on a day of the past.
"""

from functools import partial

import polars as pl

import holdfast as hf
from accounts import ACCOUNT, BALANCES, EVENTS, assess
from tolls import NOTICES, SEGMENT, SEGMENT_STATE, SIGNALS, STANDING, Rules, TollCalculator, upstream, watch_place
from trips import MOVES, STATE, follow

INPUT = {
    "type": pl.Int8,
    "time": pl.Int32,
    "vid": pl.Int32,
    "spd": pl.Int16,
    "xway": pl.Int16,
    "lane": pl.Int8,
    "dir": pl.Int8,
    "seg": pl.Int8,
    "pos": pl.Int32,
    "qid": pl.Int32,
    "sinit": pl.Int16,
    "send": pl.Int16,
    "dow": pl.Int8,
    "tod": pl.Int16,
    "day": pl.Int8,
}
HISTORY = {"vid": pl.Int32, "day": pl.Int8, "xway": pl.Int16, "toll": pl.Int32}
ANSWERS = {
    "type": pl.Int8,
    "time": pl.Int32,
    "vid": pl.Int32,
    "xway": pl.Int16,
    "dir": pl.Int8,
    "seg": pl.Int8,
    "lav": pl.Int16,
    "qid": pl.Int32,
    "amount": pl.Int64,
}
"""Toll notifications (0), accident alerts (1), balances (2) and expenditures (3). `amount` is a toll or a balance."""
REPORT, BALANCE, EXPENDITURE = 0, 2, 3


def linear_road(
    feeder: hf.source.Source, history: pl.DataFrame, sink: hf.sink.Sink, rules: Rules = "paper"
) -> hf.Pipeline:
    """`history` has the tolls of past days. Travel time requests are taken and not answered."""
    pipeline = hf.Pipeline("linear-road")
    rows = pipeline.source("feeder", feeder, event_time="time", time_unit="s")
    forwarder = rows.filter(pl.col("type").is_in([REPORT, BALANCE, EXPENDITURE])).named("forwarder")
    reports = forwarder.filter(pl.col("type") == REPORT).select(
        "time", "vid", "spd", "xway", "lane", "dir", "seg", "pos"
    )
    moves = (
        reports.key_by("vid")
        .process(follow, state=STATE, output=MOVES, event_time="time", keep_forever=True, name="trips")
        .with_columns(distance=pl.lit(None, pl.Int8), cleared=pl.lit(None, pl.Boolean))
    )
    signals = (
        moves.filter(pl.col("stopped").is_not_null())
        .key_by("xway", "dir", "lane", "pos")
        .process(watch_place, state=STANDING, output=SIGNALS, event_time="time", keep_forever=True, name="accidents")
    )
    notices = (
        moves.union(upstream(signals, dict(moves.schema)))
        .key_by(*SEGMENT)
        .process(
            TollCalculator(rules), state=SEGMENT_STATE, output=NOTICES, event_time="time", keep_forever=True,
            name="toll-calculator",
        )
    )  # fmt: skip
    events = partial(_as, EVENTS)
    balances = (
        events(notices)
        .union(
            events(moves.filter(pl.col("leaves") & ~pl.col("enters")), toll=0),
            events(forwarder.filter(pl.col("type") == BALANCE), toll=None, leaves=False),
        )
        .key_by("vid")
        .process(assess, state=ACCOUNT, output=BALANCES, event_time="time", keep_forever=True, name="toll-assessment")
    )
    spent = forwarder.filter(pl.col("type") == EXPENDITURE).join_table(history, on=["vid", "day", "xway"], how="left")
    alerts = notices.filter(pl.col("accident").is_not_null()).with_columns(seg="accident")
    answers = partial(_as, ANSWERS)
    collector = answers(notices, type=0, amount=pl.col("toll")).union(
        answers(alerts, type=1),
        answers(balances, type=2, amount=pl.col("balance")).named("balance-account"),
        answers(spent, type=3, amount=pl.col("toll").fill_null(0)),
        name="collector",
    )
    collector.sink("answers", sink)
    return pipeline


def _as(columns: dict[str, pl.DataType], stream: hf.Stream, **given: object) -> hf.Stream:
    """A stream in these columns: those given, those it has, and null for the rest."""

    def of(name: str, dtype: pl.DataType) -> pl.Expr:
        if name not in given and stream.schema.get(name) == dtype:
            return pl.col(name)
        value = given.get(name)
        return (value if isinstance(value, pl.Expr) else pl.lit(value)).cast(dtype).alias(name)

    return stream.select(*(of(name, dtype) for name, dtype in columns.items()))
