"""The pipeline of the demo: views of ads, counted by campaign in windows of ten seconds.

The events are a pure function of their numbers, so what the pipeline must put out can be computed from all of them at
once, by a few lines of Polars that share nothing with the engine.
"""

from __future__ import annotations

import numpy as np
import polars as pl

import holdfast as hf

__all__ = ["NAME", "OUTPUT", "ROWS", "build", "expected"]

NAME = "ad-views"
OUTPUT = "out"
ROWS = 8_000_000
_RATE = 1_000_000
"""Events per second of the clock."""
_PER_MILLISECOND = 100
"""Events per millisecond of event time."""
_WINDOW_MS = 10_000
_ADS, _CAMPAIGNS = 1_000, 100
_EVENT_TYPES = 3
_VIEW = 0
_SCHEMA = pl.Schema({"time": pl.Int64, "type": pl.Int8, "ad": pl.Int64})


def events(start: int, stop: int) -> pl.DataFrame:
    """Events `start` to `stop` - 1: every third is a view, the ads are scattered."""
    number = np.arange(start, stop, dtype=np.int64)
    scattered = (number.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
    columns = {
        "time": number // _PER_MILLISECOND,
        "type": (number % _EVENT_TYPES).astype(np.int8),
        "ad": (scattered % np.uint64(_ADS)).astype(np.int64),
    }
    return pl.DataFrame(columns, schema=_SCHEMA)


def campaigns() -> pl.DataFrame:
    """Which campaign each ad belongs to."""
    ads = np.arange(_ADS, dtype=np.int64)
    return pl.DataFrame({"ad": ads, "campaign": ads % _CAMPAIGNS})


def build() -> hf.Pipeline:
    """Writes to `OUTPUT` in the working directory."""
    pipeline = hf.Pipeline(NAME)
    source = hf.source.generator(events, _SCHEMA, rows=ROWS, rate=_RATE)
    views = pipeline.source("events", source, event_time="time", time_unit="ms").filter(pl.col("type") == _VIEW)
    by_campaign = views.select("time", "ad").join_table(campaigns(), on="ad").key_by("campaign")
    counts = by_campaign.window(hf.window.tumbling("10s"), name="counts").agg(
        views=hf.count(), last_view=hf.max("time")
    )
    counts.sink("out", hf.sink.parquet(OUTPUT))
    return pipeline


def expected() -> pl.DataFrame:
    """What the pipeline must put out."""
    views = events(0, ROWS).filter(pl.col("type") == _VIEW).join(campaigns(), on="ad")
    window = (pl.col("time") // _WINDOW_MS + 1) * _WINDOW_MS
    return views.group_by("campaign", window_end=window).agg(views=pl.len().cast(pl.Int64), last_view=pl.max("time"))
