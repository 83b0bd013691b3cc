"""Clients push orders over HTTP and get their answer when the rows are durable; the pipeline adds them up.

    holdfast run examples/push.py
    curl -H 'Content-Type: application/x-ndjson' -H 'Holdfast-Batch: 1' --data-binary @orders.ndjson \\
        http://127.0.0.1:8080/v1/streams/orders

The same batch sent again is answered in the same way, and taken once.
"""

from __future__ import annotations

import polars as pl

import holdfast as hf

ORDERS = {"at": pl.Int64, "shop": pl.String, "amount": pl.Float64}


def build(http: str = "127.0.0.1:8080") -> hf.Pipeline:
    """Totals of orders per shop and second."""
    pipeline = hf.Pipeline("orders")
    (
        pipeline.source("orders", hf.source.push(ORDERS, http=http), event_time="at", time_unit="ms")
        .filter(pl.col("amount") > 0)
        .key_by("shop")
        .window(hf.window.tumbling("1s"))
        .agg(total=hf.sum("amount"), orders=hf.count())
        .sink("results", hf.sink.parquet("out"))
    )
    return pipeline


if __name__ == "__main__":
    hf.run(build())
