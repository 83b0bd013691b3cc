"""Watch cards for fraud: keep a running state per card, and raise an alarm at the first payment that is far above what
the card usually pays. A card that was not used for a quarter of an hour is reported once by a timer, and its state
goes away after an hour.

holdfast run examples/keyed_process.py
"""

import numpy as np
import polars as pl

import holdfast as hf

PAYMENTS = {"time": pl.Int64, "card": pl.Int64, "cents": pl.Int64}
NOTICES = {"card": pl.Int64, "time": pl.Int64, "notice": pl.String, "cents": pl.Int64}
QUIET = 15 * 60
"""Seconds; `timers` promises that no timer is set for less."""
ENOUGH = 5
"""Payments after which a card's mean is trusted."""


def payments(start: int, stop: int) -> pl.DataFrame:
    """Twenty payments a second by 200 cards; every 997th is fifty times too large. After 500 s half of them stop."""
    number = np.arange(start, stop, dtype=np.int64)
    time = number // 20
    card = np.where(time < 500, number % 200, number % 100)
    return pl.DataFrame(
        {"time": time, "card": card, "cents": (1_000 + card * 10 + number % 7) * np.where(number % 997 == 996, 50, 1)},
        schema=PAYMENTS,
    )


def watch(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
    """Every payment is compared with all payments of its card before it. Rows and timers of a card come in order, in
    one call or in several: a timer fires only if no payment came in time."""
    before = rows.join(state, on="card", how="left", maintain_order="left").with_columns(
        n=pl.col("n").fill_null(0) + pl.int_range(pl.len(), dtype=pl.Int64).over("card"),
        total=pl.col("total").fill_null(0) + pl.col("cents").cum_sum().over("card") - pl.col("cents"),
    )
    alarms = before.filter((pl.col("n") >= ENOUGH) & (pl.col("cents") * pl.col("n") > 10 * pl.col("total")))
    quiet = context.timers.select(
        "card", time=pl.col("at"), notice=pl.lit("not used any more"), cents=pl.lit(None, dtype=pl.Int64)
    )
    latest = before.group_by("card", maintain_order=True).agg(
        n=pl.col("n").last() + 1,
        total=pl.col("total").last() + pl.col("cents").last(),
        last=pl.col("time").last(),
    )
    return hf.Step(
        output=pl.concat([alarms.select("card", "time", notice=pl.lit("unusual payment"), cents="cents"), quiet]),
        upserts=latest.select("card", "n", "total"),
        timers=latest.select("card", at=pl.col("last") + QUIET),
    )


pipeline = hf.Pipeline("card-watch")
cards = pipeline.source(
    "payments", hf.source.generator(payments, PAYMENTS, rows=60_000), event_time="time", time_unit="s"
)
notices = cards.key_by("card").process(
    watch,
    state={"n": pl.Int64, "total": pl.Int64},
    output=NOTICES,
    ttl="1h",
    timers="15 min",
    event_time="time",
    name="watch",
)
notices.sink("out", hf.sink.parquet("out/notices"))
