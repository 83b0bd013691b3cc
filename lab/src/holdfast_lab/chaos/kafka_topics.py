"""A campaign whose rows come from a topic of Kafka and go to another: what is in them, and where the input ends."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from holdfast.connect.base import Position, Source, Take
from holdfast.connect.kafka.kafka_servers import KafkaServers
from holdfast.connect.kafka.partition_reader import PartitionRange, messages_of
from holdfast.connect.kafka.topic_watch import TopicWatch
from holdfast.connect.sources.kafka_source import kafka
from holdfast.errors import HoldfastError
from holdfast_lab.chaos.victim import MeteredSource

__all__ = ["INPUT_TOPIC", "EndingSource", "input_source", "make_topic", "output_topic", "topic_rows", "write_frames"]

INPUT_TOPIC = "input"
_PARTITIONS = 2


class EndingSource(MeteredSource):
    """A topic that is known to hold so many messages, and ends behind them."""

    def __init__(self, inner: Source, pause: float, rows: int) -> None:
        super().__init__(inner, pause)
        self.rows = rows
        self.bounded = True

    def take(self, position: Position, rows: int, pieces: int) -> Take:
        found = super().take(position, rows, pieces)
        read = sum((found.position["offsets"] or {}).values())
        return Take(found.slices, found.position, done=read >= self.rows)

    def awaits(self, position: Position) -> bool:
        return True


def input_source(address: str, schema: pl.Schema, rows: int, pause: float) -> EndingSource:
    return EndingSource(kafka(address, INPUT_TOPIC, schema), pause, rows)


def output_topic(home: str) -> str:
    """Where a run puts its rows: each has a topic of its own."""
    return f"output-{Path(home).name}"


def make_topic(address: str, name: str, partitions: int = _PARTITIONS) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined] # noqa: PLC0415 - an extra

    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(name, partitions)])[name].result(30)


def write_frames(address: str, frames: Iterable[pl.DataFrame]) -> None:
    """Rows as JSON, in turns to the partitions."""
    from confluent_kafka import Producer  # noqa: PLC0415 - an extra

    make_topic(address, INPUT_TOPIC)
    producer = Producer({"bootstrap.servers": address, "linger.ms": 20, "acks": "all"})
    lines = (line for frame in frames for line in frame.write_ndjson().encode().splitlines())
    for number, line in enumerate(lines):
        _send(producer, line, number % _PARTITIONS)
    if left := producer.flush(120):
        raise HoldfastError(f"{left} messages were not sent", cure="see whether the broker's disk is full")


def _send(producer: Any, line: bytes, partition: int) -> None:
    while True:
        try:
            producer.produce(INPUT_TOPIC, line, partition=partition)
            return
        except BufferError:
            producer.poll(0.1)


def topic_rows(address: str, topic: str) -> pl.DataFrame:
    """The rows that a reader of committed messages sees."""
    servers = KafkaServers(address)
    watch = TopicWatch(servers, topic)
    lines = [
        value
        for partition, (low, end) in watch.look().items()
        for messages in messages_of(servers, PartitionRange(topic, partition, low, end))
        for value in messages.values()
        if value is not None
    ]
    watch.close()
    if not lines:
        return pl.DataFrame()
    return pl.read_ndjson(io.BytesIO(b"\n".join(lines)), infer_schema_length=None)
