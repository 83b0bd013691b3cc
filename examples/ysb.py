"""The Yahoo Streaming Benchmark: views of ads, counted by campaign in windows of ten seconds.

holdfast run examples/ysb.py
"""

import numpy as np
import polars as pl

import holdfast as hf

EVENTS, EVENTS_PER_SECOND = 100_000, 10_000
ADS, CAMPAIGNS = 1_000, 100
VIEW, EVENT_TYPES = 0, 3  # views, clicks and purchases in turn

number = np.arange(EVENTS)
events = pl.DataFrame(  # ten seconds, replayed with shifted times
    {
        "user_id": np.random.default_rng(1).integers(0, 100_000, EVENTS),
        "ad_id": np.random.default_rng(2).integers(0, ADS, EVENTS),
        "event_type": number % EVENT_TYPES,
        "event_time": number * 1_000 // EVENTS_PER_SECOND,
    }
)
campaigns = pl.DataFrame({"ad_id": np.arange(ADS), "campaign_id": np.arange(ADS) % CAMPAIGNS})

pipeline = hf.Pipeline("ysb")
ads = pipeline.source(
    "events", hf.source.replay(events, time="event_time", rows=1_000_000), event_time="event_time", time_unit="ms"
)
views = ads.filter(pl.col("event_type") == VIEW).select("event_time", "ad_id")
by_campaign = views.join_table(campaigns, on="ad_id").key_by("campaign_id")
counts = by_campaign.window(hf.window.tumbling("10s"), name="counts").agg(
    views=hf.count(), last_view=hf.max("event_time")
)
counts.sink("out", hf.sink.parquet("out/ysb"))
