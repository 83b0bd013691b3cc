"""Kafka for tests: one real broker for all of them, and topics of its own for each test."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from holdfast.errors import HoldfastError
from holdfast_lab.chaos.kafka_server import KafkaServer

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[KafkaServer]:
    """The broker. Not to be stopped or killed by a test: one that does so starts its own."""
    try:
        server = KafkaServer(settings={"log.retention.check.interval.ms": "1000"})
    except HoldfastError as error:
        pytest.skip(f"there is no Kafka broker to start: {error.problem}")
    with server:
        yield server


def make_topic(server: KafkaServer, partitions: int = 1, name: str | None = None) -> str:
    from confluent_kafka.admin import AdminClient, NewTopic  # noqa: PLC0415 - an extra

    name = name or f"topic{next(_NUMBERS)}"
    admin = AdminClient({"bootstrap.servers": server.address})
    # Some messages have timestamps of long ago, which the broker would take for expired when it next looks.
    forever = {"retention.ms": "-1"}
    admin.create_topics([NewTopic(name, partitions, config=forever)])[name].result(20)
    # The broker answers before it has told itself.
    until = time.monotonic() + 10
    while len(admin.list_topics(timeout=10).topics.get(name, _NONE).partitions) < partitions:
        assert time.monotonic() < until
        time.sleep(0.02)
    return name


class _NONE:
    partitions: Mapping[int, Any] = {}


def send(server: KafkaServer, topic: str, values: Sequence[bytes | None], partition: int = -1, **more: Any) -> None:
    """Messages, all of them acknowledged."""
    from confluent_kafka import Producer  # noqa: PLC0415 - an extra

    producer = Producer({"bootstrap.servers": server.address, "linger.ms": 1})
    for value in values:
        producer.produce(topic, value, partition=partition, **more)
    assert producer.flush(20) == 0


def committed(server: KafkaServer, topic: str) -> list[Any]:
    """All messages that a reader of committed ones sees, partition by partition."""
    from confluent_kafka import Consumer, TopicPartition  # noqa: PLC0415 - an extra

    settings = {
        "bootstrap.servers": server.address,
        "group.id": "test",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "fetch.wait.max.ms": 20,
    }
    consumer = Consumer(settings)
    partitions = sorted(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
    found: list[Any] = []
    for partition in partitions:
        consumer.assign([TopicPartition(topic, partition, 0)])
        until = time.monotonic() + 20
        while (message := consumer.poll(0.1)) is None or message.error() is None:
            assert time.monotonic() < until
            if message is not None:
                found.append(message)
    consumer.close()
    return found
