"""From an Iceberg table that grows into another one, exactly once.

    pip install 'holdfast[iceberg]'
    holdfast run examples/iceberg_tables.py --store store

The catalog is a file of SQLite, and tables are in the directory `warehouse`. The pipeline reads what each snapshot of
`shop.orders` adds and appends the sales of each shop and minute to `shop.sales`. This file makes a first snapshot of
`shop.orders`, if there is none, and reads the table as it is; without `grow=False` it would wait for more.
"""

from datetime import datetime, timedelta
from pathlib import Path

import polars as pl
from pyiceberg.catalog import load_catalog

import holdfast as hf

HERE = Path.cwd()
CATALOG = {"type": "sql", "uri": f"sqlite:///{HERE / 'catalog.db'}", "warehouse": f"file://{HERE / 'warehouse'}"}


def make_orders() -> None:
    """Orders of ten minutes, as another program would append them."""
    first = datetime(2026, 1, 1)
    orders = pl.DataFrame(
        {
            "at": [first + timedelta(seconds=second) for second in range(600)],
            "shop": [f"shop {second % 3}" for second in range(600)],
            "amount": [float(second % 20) for second in range(600)],
        }
    ).to_arrow(compat_level=pl.CompatLevel.oldest())
    catalog = load_catalog("default", **CATALOG)
    catalog.create_namespace_if_not_exists("shop")
    if not catalog.table_exists("shop.orders"):
        catalog.create_table("shop.orders", schema=orders.schema).append(orders)


make_orders()

pipeline = hf.Pipeline("sales")
orders = pipeline.source("orders", hf.source.iceberg("shop.orders", CATALOG, grow=False), event_time="at")
sales = orders.key_by("shop").window(hf.window.tumbling("1 min")).agg(sales=hf.count(), amount=hf.sum("amount"))
sales.sink("sales", hf.sink.iceberg("shop.sales", CATALOG, partition_by="shop", every="30s"))
