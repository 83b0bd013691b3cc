"""From a Delta table that grows into another one, exactly once.

    pip install 'holdfast[delta]'
    holdfast run examples/delta_tables.py --store store

Somebody appends orders to the table `orders`. The pipeline reads what each version adds and appends the sales of each
shop and minute to the table `out/sales`, partitioned by shop. Kill it at any moment and start it again: every minute is
in the table once. This file makes a first version of `orders`, if there is none, and reads the table as it is;
without `grow=False` it would wait for more.
"""

from datetime import datetime, timedelta
from pathlib import Path

import polars as pl

import holdfast as hf


def make_orders(path: Path) -> None:
    """Orders of ten minutes, as another program would append them."""
    first = datetime(2026, 1, 1)
    orders = pl.DataFrame(
        {
            "at": [first + timedelta(seconds=second) for second in range(600)],
            "shop": [f"shop {second % 3}" for second in range(600)],
            "amount": [float(second % 20) for second in range(600)],
        }
    )
    orders.write_delta(str(path), mode="append")


if not Path("orders/_delta_log").is_dir():
    make_orders(Path("orders"))

pipeline = hf.Pipeline("sales")
orders = pipeline.source("orders", hf.source.delta("orders", grow=False), event_time="at")
sales = orders.key_by("shop").window(hf.window.tumbling("1 min")).agg(sales=hf.count(), amount=hf.sum("amount"))
sales.sink("sales", hf.sink.delta("out/sales", partition_by="shop", every="30s"))
