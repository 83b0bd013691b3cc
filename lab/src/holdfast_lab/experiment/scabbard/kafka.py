"""Kafka as the experiment on persistence uses it: rows are sent by Kafka's own performance test, so the producer is
as good as Kafka's authors make it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast_lab.chaos.kafka_server import KAFKA_VERSION, KafkaServer

__all__ = ["KAFKA_VERSION", "Broker", "ProducerFigures", "broker"]

_PARTITIONS = 4
_LARGEST_MESSAGE = 8 << 20
_SETTINGS = {
    "message.max.bytes": str(_LARGEST_MESSAGE),
    # Old segments go, so that the disk does not fill.
    "log.segment.bytes": "268435456",
    "log.retention.bytes": "268435456",
    "log.retention.check.interval.ms": "5000",
}

_SUMMARY = re.compile(
    r"(\d+) (?:steady state )?records sent, ([\d.]+) records/sec.*?, (\d+) ms 50th, (\d+) ms 95th, (\d+) ms 99th"
)


@dataclass(frozen=True, slots=True)
class ProducerFigures:
    """What the performance test says of the records after its warm-up. Times from handing in to acknowledgement."""

    records: int
    records_per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker that runs. Topics are made with their own settings."""

    server: KafkaServer

    def make_topic(self, name: str, settings: Mapping[str, str]) -> None:
        options = [word for key, value in settings.items() for word in ("--config", f"{key}={value}")]
        self.server.call(
            "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", self.server.address, "--create", "--topic",
            name, "--partitions", str(_PARTITIONS), "--replication-factor", "1", *options,
        )  # fmt: skip

    def send(self, topic: str, size: int, records: int, warm_up: int, settings: Mapping[str, str]) -> ProducerFigures:
        """Send records of `size` bytes as fast as they are taken, all acknowledged by the broker."""
        properties = {"acks": "all", "max.request.size": str(_LARGEST_MESSAGE), **settings}
        told = self.server.call(
            "org.apache.kafka.tools.ProducerPerformance", "--bootstrap-server", self.server.address,
            "--topic", topic, "--num-records", str(records), "--record-size", str(size), "--throughput", "-1",
            "--warmup-records", str(warm_up), "--command-property", *(f"{k}={v}" for k, v in properties.items()),
        )  # fmt: skip
        found = _SUMMARY.findall(told)
        if not found:
            raise HoldfastError(
                f"the performance test of Kafka said nothing usable: {told[-300:]}", cure="run it again with --quick"
            )
        count, rate, p50, p95, p99 = found[-1]  # the last line is that of the steady state
        return ProducerFigures(int(count), float(rate), float(p50), float(p95), float(p99))


@contextmanager
def broker(directory: Path, say: Callable[[str], None]) -> Iterator[Broker]:
    """A broker that keeps its log below `directory`; it is stopped at the end, whatever happens."""
    with KafkaServer(settings=_SETTINGS, light=False, memory="1g", home=directory, say=say) as server:
        yield Broker(server)
