"""Page views from a topic of Kafka, counted per page and minute into another topic, exactly once.

    kafka-topics.sh --bootstrap-server 127.0.0.1:9092 --create --topic views --partitions 2
    kafka-topics.sh --bootstrap-server 127.0.0.1:9092 --create --topic counts --partitions 2
    holdfast run examples/kafka_counts.py

Readers of `counts` must ask for committed messages (`isolation.level=read_committed`). KAFKA names other brokers.
"""

from __future__ import annotations

import os

import polars as pl

import holdfast as hf

VIEWS = {"at": pl.Int64, "page": pl.String}


def build(servers: str = os.environ.get("KAFKA", "127.0.0.1:9092")) -> hf.Pipeline:
    """Views per page and minute. A message that is no view is kept apart."""
    pipeline = hf.Pipeline("page-views")
    views = pipeline.source(
        "views",
        hf.source.kafka(servers, "views", VIEWS, start="earliest", bad_rows="dead_letter"),
        event_time="at",
        time_unit="ms",
        lateness="10s",
    )
    (
        views.key_by("page")
        .window(hf.window.tumbling("1 min"))
        .agg(views=hf.count())
        .sink("counts", hf.sink.kafka(servers, "counts", key="page"))
    )
    views.dead_letters.sink("bad-views", hf.sink.ndjson("out/bad-views"))
    return pipeline


if __name__ == "__main__":
    hf.run(build())
