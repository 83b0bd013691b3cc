"""Sales per shop and minute in a DuckDB file, one row per key, exactly once; anybody may query it meanwhile.

    holdfast run examples/duckdb_totals.py --store store
    duckdb shop.duckdb 'select shop, sum(amount) from sales group by shop'

Needs `pip install 'holdfast[duckdb]'`.
"""

import polars as pl

import holdfast as hf

ORDERS = pl.DataFrame(
    {
        "at_ms": [1_000 * second for second in range(600)],
        "shop": [f"shop {second % 3}" for second in range(600)],
        "amount": [float(second % 20) for second in range(600)],
    }
)

pipeline = hf.Pipeline("totals")
orders = pipeline.source("orders", hf.source.memory(ORDERS), event_time="at_ms", time_unit="ms")
sales = orders.key_by("shop").window(hf.window.tumbling("1 min")).agg(sales=hf.count(), amount=hf.sum("amount"))
sales.sink("sales", hf.sink.database("duckdb:///shop.duckdb", "sales", key=["shop", "window_start"]))
