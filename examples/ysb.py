"""The Yahoo Streaming Benchmark: views of ads, counted by campaign in windows of ten seconds.

holdfast run examples/ysb.py
"""

import polars as pl

import holdfast as hf
from holdfast.workloads.synthetic import ysb_ads, ysb_events

events = ysb_events(100_000, rows_per_second=10_000)  # ten seconds, replayed with shifted times

pipeline = hf.Pipeline("ysb")
ads = pipeline.source(
    "events", hf.replay(events, time="event_time", rows=1_000_000), event_time="event_time", time_unit="ms"
)
views = ads.filter(pl.col("event_type") == 0).select("event_time", "ad_id")
campaigns = views.join_table(ysb_ads(), on="ad_id").key_by("campaign_id")
counts = campaigns.window(hf.tumbling("10s"), name="counts").agg(views=hf.count(), last_view=hf.max("event_time"))
counts.sink("out", hf.parquet("out/ysb"))
