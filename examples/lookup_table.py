"""Orders with the names of their customers, from a table that changes while the pipeline runs.

Run it with `holdfast run examples/lookup_table.py`. The orders are in memory; the customers are a Parquet file, which
this program writes when it is not there. Write another one over it, under a name that begins with ".", then renamed:
orders from then on have the new names.
"""

from pathlib import Path

import polars as pl

import holdfast as hf

CUSTOMERS = Path("customers/all.parquet")

if not CUSTOMERS.exists():
    CUSTOMERS.parent.mkdir(exist_ok=True)
    names = [f"customer {number}" for number in range(9)]
    pl.DataFrame({"customer": range(9), "name": names}).write_parquet(CUSTOMERS)

orders = pl.DataFrame({"at": range(1_000), "customer": [at % 10 for at in range(1_000)], "amount": [1.5] * 1_000})

pipeline = hf.Pipeline("named-orders")
(
    pipeline.source("orders", hf.source.memory([orders]), event_time="at", time_unit="s")
    .join_table(hf.lookup.files(CUSTOMERS, every="1s", settle=0), on="customer", how="left")
    .key_by("name")
    .window(hf.window.tumbling("100s"))
    .agg(amount=hf.sum("amount"))
    .sink("amounts", hf.sink.parquet("out/amounts"))
)
