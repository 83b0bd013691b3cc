"""The pipeline that the tests of the dashboard watch: orders of a shop, counted by country, cut by a p-stream."""

from __future__ import annotations

import numpy as np
import polars as pl

import holdfast as hf

RATE = 4_000
_SCHEMA = {"at": pl.Int64, "country": pl.String, "amount": pl.Float64}
_COUNTRIES = ["DE", "FR", "IT", "ES", "PL", "NL", "AT", "CZ"]
_FIRST = 1_790_000_000_000


def orders(start: int, stop: int) -> pl.DataFrame:
    """Every two hundredth order is ten minutes late; a third of them come from one country."""
    number = np.arange(start, stop, dtype=np.int64)
    late = np.where(number % 200 == 199, 600_000, 0)
    country = np.where(number % 3 == 0, 0, (number * 7) % len(_COUNTRIES))
    return pl.DataFrame(
        {
            "at": _FIRST + number // 4 - late,
            "country": [_COUNTRIES[index] for index in country],
            "amount": (number % 97).astype(np.float64),
        },
        schema=_SCHEMA,
    )


pipeline = hf.Pipeline("shop", guarantee=hf.Guarantee(recovery="20s"))
source = hf.source.generator(orders, _SCHEMA, rate=RATE)
paid = pipeline.source("orders", source, event_time="at", time_unit="ms").filter(pl.col("amount") > 1.0).named("paid")
kept = paid.persist("paid_orders")
counts = (
    kept.key_by("country")
    .window(hf.window.tumbling("1s"), name="by_country")
    .agg(orders=hf.count(), revenue=hf.sum("amount"))
)
counts.sink("totals", hf.sink.parquet("out/totals"))
counts.late.sink("late_orders", hf.sink.parquet("out/late"))
