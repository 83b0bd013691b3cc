"""From a table of a database into another one, whose rows are updated by key, exactly once.

    holdfast run examples/database_tables.py --store store

Another program adds orders to the table `orders`, which counts them up. The pipeline reads them in the order of their
`id` and keeps one row per shop and minute in `sales`. With a URL such as postgresql://user@host/shop it is the same:
rows are then written by COPY (`pip install 'holdfast[postgresql]'`). This file makes some orders, if there are none,
and reads those that are there; without `grow=False` it would wait for more.
"""

import sqlite3
from contextlib import closing

import polars as pl

import holdfast as hf

URL = "sqlite:///shop.db"


def make_orders() -> None:
    """Orders of ten minutes, as another program would add them."""
    with closing(sqlite3.connect("shop.db")) as database:
        database.execute(
            "create table if not exists orders (id integer primary key, at_ms integer, shop text, amount real)"
        )
        if not database.execute("select count(*) from orders").fetchone()[0]:
            orders = [(second * 1_000, f"shop {second % 3}", float(second % 20)) for second in range(600)]
            database.executemany("insert into orders (at_ms, shop, amount) values (?, ?, ?)", orders)
            database.commit()


make_orders()

SCHEMA = pl.Schema({"id": pl.Int64, "at_ms": pl.Int64, "shop": pl.String, "amount": pl.Float64})

pipeline = hf.Pipeline("sales")
source = hf.source.database(URL, "orders", key="id", schema=SCHEMA, grow=False)
orders = pipeline.source("orders", source, event_time="at_ms", time_unit="ms")
sales = orders.key_by("shop").window(hf.window.tumbling("1 min")).agg(sales=hf.count(), amount=hf.sum("amount"))
sales.sink("sales", hf.sink.database(URL, "sales", key=["shop", "window_start"]))
