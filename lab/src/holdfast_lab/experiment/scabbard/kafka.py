"""A Kafka broker of one's own for an experiment: one node, on this machine only, gone at the end.

The broker's jars come from a Maven repository (`jars.py`) and run on the Java that Spark runs on. Rows are sent by
Kafka's own performance test, so the producer is as good as Kafka's authors make it.
"""

from __future__ import annotations

import base64
import re
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.spark.java import find_java
from holdfast_lab.experiment.scabbard.jars import fetch

__all__ = ["VERSION", "Broker", "ProducerFigures", "broker"]

VERSION = "4.3.0"
_ARTIFACTS = (f"org.apache.kafka:kafka_2.13:{VERSION}", f"org.apache.kafka:kafka-tools:{VERSION}")
_PARTITIONS = 4
_START_SECONDS = 60.0
_STOP_SECONDS = 20.0
_LARGEST_MESSAGE = 8 << 20
# The watcher ends Java when its standard input ends, that is also when this process was killed.
_WATCHED = 'exec 3<&0; { read -r _ <&3; kill $$ 2>/dev/null; } & exec "$@" </dev/null 3<&-'
_CONFIG = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.quorum.voters=1@127.0.0.1:{controller}
log.dirs={logs}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
message.max.bytes={largest}
log.index.size.max.bytes=65536
log.segment.bytes=268435456
log.retention.bytes=268435456
log.retention.check.interval.ms=5000
"""
"""Small indexes, because a flush syncs them whole; old segments go, so that the disk does not fill."""

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

    port: int
    _java: list[str]

    def make_topic(self, name: str, settings: Mapping[str, str]) -> None:
        options = [word for key, value in settings.items() for word in ("--config", f"{key}={value}")]
        server = ["--bootstrap-server", f"127.0.0.1:{self.port}"]
        self._call(
            "org.apache.kafka.tools.TopicCommand", *server, "--create", "--topic", name,
            "--partitions", str(_PARTITIONS), "--replication-factor", "1", *options,
        )  # fmt: skip

    def send(self, topic: str, size: int, records: int, warm_up: int, settings: Mapping[str, str]) -> ProducerFigures:
        """Send records of `size` bytes as fast as they are taken, all acknowledged by the broker."""
        properties = {"acks": "all", "max.request.size": str(_LARGEST_MESSAGE), **settings}
        told = self._call(
            "org.apache.kafka.tools.ProducerPerformance", "--bootstrap-server", f"127.0.0.1:{self.port}",
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

    def _call(self, tool: str, *arguments: str) -> str:
        command = [*self._java, "-Xmx512m", tool, *arguments]
        told = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
        if told.returncode != 0:
            raise HoldfastError(
                f"{tool} ended with {told.returncode}: {(told.stdout + told.stderr)[-500:]}",
                cure="see whether the machine has memory and disk space left, then run the experiment again",
            )
        return told.stdout


@contextmanager
def broker(directory: Path, say: Callable[[str], None]) -> Iterator[Broker]:
    """A broker that keeps its log below `directory`; it is stopped at the end, whatever happens."""
    jars = fetch(f"kafka-{VERSION}", _ARTIFACTS, say)
    directory.mkdir(parents=True)
    ports = _free_ports(2)
    config = directory / "server.properties"
    config.write_text(
        _CONFIG.format(port=ports[0], controller=ports[1], logs=directory / "logs", largest=_LARGEST_MESSAGE)
    )
    java = [str(find_java().java), "-cp", f"{jars}/*"]
    made = Broker(ports[0], java)
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    made._call("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config))
    output = directory / "broker.out"
    with output.open("wb") as file:
        command = ["/bin/sh", "-c", _WATCHED, "sh", *java, "-Xmx1g", "kafka.Kafka", str(config)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT)
    try:
        _wait_for(process, ports[0], output)
        yield made
    finally:
        _stop(process)


def _free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _wait_for(process: subprocess.Popen[bytes], port: int, output: Path) -> None:
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    said = output.read_text(errors="replace")[-500:]
    raise HoldfastError(f"the Kafka broker did not start: {said}", cure="see that Java 17 or newer runs on the machine")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    finally:
        assert process.stdin is not None
        process.stdin.close()
