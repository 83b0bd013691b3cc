"""A campaign whose rows come from a topic of Kafka and go to another: what is in them, and where the input ends."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import polars as pl

from holdfast.connect.base import Position, Source, Take
from holdfast.connect.kafka.kafka_servers import KafkaServers
from holdfast.connect.kafka.partition_reader import PartitionRange, messages_of
from holdfast.connect.kafka.topic_watch import TopicWatch
from holdfast.connect.sources.kafka_source import kafka
from holdfast.errors import HoldfastError
from holdfast_lab.chaos.kafka_server import KafkaServer
from holdfast_lab.chaos.victim import MeteredSource, bounded_input
from holdfast_lab.workloads.queries import Query

__all__ = ["INPUT_TOPIC", "EndingSource", "make_topic", "output_topic", "thinned", "topic_rows", "write_input"]

INPUT_TOPIC = "input"
_PARTITIONS = 2
_AT_ONCE = 500_000
_MOST_ROWS = 5_000
"""Of an epoch."""


class EndingSource(MeteredSource):
    """A topic that is known to hold so many messages, and ends behind them."""

    def __init__(self, inner: Source, pause: float, rows: int) -> None:
        super().__init__(inner, pause)
        self.rows = rows
        self.bounded = True
        self.in_order = inner.in_order

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


def make_topic(server: KafkaServer, name: str, partitions: int = _PARTITIONS) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined] # noqa: PLC0415 - an extra

    admin = AdminClient({"bootstrap.servers": server.address})
    admin.create_topics([NewTopic(name, partitions)])[name].result(30)


def thinned(epoch_rows: int) -> int:
    """One event of how many is sent, so that epochs of so many rows do not take long to send."""
    return max(1, epoch_rows // _MOST_ROWS)


def write_input(server: KafkaServer, asked: Query, rows: int, every: int, directory: Path) -> None:
    """One of so many of the query's events as JSON, in turns to the partitions."""
    from confluent_kafka import Producer  # noqa: PLC0415 - an extra

    make_topic(server, INPUT_TOPIC)
    producer = Producer({"bootstrap.servers": server.address, "linger.ms": 20, "acks": "all"})
    source = bounded_input(asked, rows * every, directory)
    position, sent, done = source.start(), 0, False
    while not done:
        take = source.take(position, _AT_ONCE // every * every, 1)
        for piece in take.slices:
            for chunk in source.read(piece):
                at = pl.col(asked.dataset.event_time)
                frame = chunk.frame.with_columns(
                    (at.to_physical() + chunk.shift).cast(chunk.frame.schema[at.meta.output_name()])
                )
                for line in frame.gather_every(every).write_ndjson().encode().splitlines():
                    _send(producer, line, sent % _PARTITIONS)
                    sent += 1
        position, done = take.position, take.done
    if producer.flush(120) or sent != rows:
        raise HoldfastError(f"{sent} of {rows} messages were sent", cure="see whether the broker's disk is full")


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
