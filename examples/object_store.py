"""From files in a bucket to files in a bucket, exactly once.

    pip install 'holdfast[objectstore]'
    export AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=… AWS_REGION=…
    BUCKET=s3://my-bucket holdfast run examples/object_store.py --store store

Somebody puts NDJSON files with orders under `orders/`. The pipeline writes the sales of each shop and minute as Parquet
files under `sales/`. Kill it at any moment and start it again: every minute is there once. For a server other than
Amazon's set AWS_ENDPOINT_URL. This reads what is there; with grow=True it would wait for more.
"""

from __future__ import annotations

import os

import polars as pl

import holdfast as hf

ORDERS = {"at": pl.Int64, "shop": pl.String, "amount": pl.Float64}


def build(bucket: str = os.environ.get("BUCKET", "s3://shop"), options: dict[str, str] | None = None) -> hf.Pipeline:
    """Sales per shop and minute. The options are what the environment does not say, e.g. another endpoint."""
    source = hf.source.files(f"{bucket}/orders", format="ndjson", schema=ORDERS, storage_options=options)
    pipeline = hf.Pipeline("sales")
    orders = pipeline.source("orders", source, event_time="at", time_unit="ms")
    sales = orders.key_by("shop").window(hf.window.tumbling("1 min")).agg(sales=hf.count(), amount=hf.sum("amount"))
    sales.sink("sales", hf.sink.parquet(f"{bucket}/sales", every="10s", storage_options=options))
    return pipeline


if __name__ == "__main__":
    hf.run(build())
