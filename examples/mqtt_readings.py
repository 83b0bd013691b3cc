"""Readings of sensors from an MQTT broker, acknowledged to it when durable; the pipeline takes means per sensor.

    holdfast run examples/mqtt_readings.py
    mosquitto_pub -q 1 -t site/a/temperature -m '{"id": "a-1", "at": 1000, "value": 20.5}'

A message may come twice after a crash: it is dropped by its id.
"""

from __future__ import annotations

import polars as pl

import holdfast as hf

READINGS = {"id": pl.String, "at": pl.Int64, "value": pl.Float64, "topic": pl.String}


def build(broker: str = "mqtt://127.0.0.1:1883") -> hf.Pipeline:
    """Means per topic and second."""
    readings = hf.source.mqtt(broker, "site/+/temperature", READINGS, client="readings-example", topic="topic")
    pipeline = hf.Pipeline("readings")
    (
        pipeline.source("readings", readings, event_time="at", time_unit="ms")
        .deduplicate("id", within="1 min")
        .key_by("topic")
        .window(hf.window.tumbling("1s"))
        .agg(mean=hf.mean("value"), readings=hf.count())
        .sink("results", hf.sink.parquet("out"))
    )
    return pipeline


if __name__ == "__main__":
    hf.run(build())
