"""YSB in plain Polars over files, run by itself: `python -m holdfast_lab.bench.polars_query FORMAT RESULT FILE...`.

The streaming engine reads and aggregates all files in one query; the results go to a Parquet file. The last line of its
output is JSON: seconds from before the first file is opened until the results are written, and the CPU seconds spent.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import polars as pl

from holdfast_lab.workloads.synthetic import ysb_ads, ysb_events

__all__ = ["views", "ysb_results"]

_WINDOW_MS = 10_000


def ysb_results(format: str, paths: list[Path], schema: pl.Schema) -> pl.LazyFrame:
    """Views and the last view of each campaign and window, from files."""
    files: list[Any] = list(paths)
    if format == "parquet":
        events = pl.scan_parquet(files)
    elif format == "csv":
        events = pl.scan_csv(files, schema=schema)
    else:
        # Its reader of JSON knows no integers of 8 and 16 bits.
        wide = {name: pl.Int64() if dtype in (pl.Int8, pl.Int16) else dtype for name, dtype in schema.items()}
        events = pl.scan_ndjson(files, schema=wide)
    return views(events)


def views(events: pl.LazyFrame) -> pl.LazyFrame:
    """Of each campaign and window, as the pipeline of YSB puts them out."""
    start = (pl.col("event_time") // _WINDOW_MS * _WINDOW_MS).alias("window_start")
    return (
        events.filter(pl.col("event_type") == 0)
        .select("event_time", "ad_id")
        .join(ysb_ads().lazy(), on="ad_id")
        .group_by("campaign_id", start)
        .agg(pl.len().cast(pl.Int64).alias("views"), pl.col("event_time").max().alias("last_view"))
    )


def _main(format: str, result: str, *names: str) -> None:
    schema = ysb_events(1).schema
    began, used = time.perf_counter(), time.process_time()
    ysb_results(format, [Path(name) for name in names], schema).collect(engine="streaming").write_parquet(result)
    taken = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - used}
    print(json.dumps({**taken, "threads": pl.thread_pool_size()}))


if __name__ == "__main__":
    _main(*sys.argv[1:])
