"""The history of a PostgreSQL table: every change of it, as it was committed, exactly once.

    holdfast run examples/postgres_history.py

The server needs wal_level = logical (`pip install 'holdfast[postgresql]'`). The rows that the table has come first.
Drop the slot when you do not need it any more: select pg_drop_replication_slot('orders_history').
"""

from __future__ import annotations

import polars as pl

import holdfast as hf


def build(url: str = "postgresql://postgres@localhost/shop") -> hf.Pipeline:
    """All changes of the table `orders`, and how many there are of each kind per minute."""
    source = hf.source.postgres_changes(url, "orders", key="id", slot="orders_history")
    pipeline = hf.Pipeline("history")
    changes = pipeline.source("orders", source, event_time="committed_at", lateness="1 min")
    changes.select(pl.all().exclude("unchanged")).sink("history", hf.sink.parquet("out/history"))
    changes.key_by("op").window(hf.window.tumbling("1 min")).agg(changes=hf.count()).sink(
        "counts", hf.sink.parquet("out/counts")
    )
    return pipeline


if __name__ == "__main__":
    hf.run(build())
