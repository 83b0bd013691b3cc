"""A Kafka broker of one's own, one node on this machine only, to be stopped, killed and started again.

The broker's jars come from a Maven repository (`jars.py`) and run on the Java that Spark runs on.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.spark.java import find_java
from holdfast_lab.experiment.scabbard.jars import fetch

__all__ = ["KAFKA_VERSION", "KafkaServer", "kafka_jars"]

KAFKA_VERSION = "4.3.0"
_ARTIFACTS = (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}")
_START_SECONDS = 60.0
_STOP_SECONDS = 20.0
# The watcher ends Java when its standard input ends, that is also when this process was killed.
_WATCHED = 'exec 3<&0; { read -r _ <&3; kill -9 $$ 2>/dev/null; } & exec "$@" </dev/null 3<&-'
_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    # After kill -9 a broker waits until its own session has ended.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    # Small indexes, because a flush syncs them whole.
    "log.index.size.max.bytes": "65536",
}
_LIGHT = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""For a broker that is to start soon rather than to be fast."""


def kafka_jars(say: Callable[[str], None] = lambda text: None) -> Path:
    """The directory of Kafka's jars, fetched if they are not there."""
    return fetch(f"kafka-{KAFKA_VERSION}", _ARTIFACTS, say)


class KafkaServer:
    """A broker with no topics, started by `start` and gone without a trace after `close`.

    What was acknowledged outlives `stop` and `kill`, not a fall of the machine. The broker ends with the process that
    has started it, however that ends. `settings` are added to the broker's own; `listeners` are those besides the
    plain one, by name, with their protocols.
    """

    def __init__(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        listeners: Mapping[str, str] | None = None,
        light: bool = True,
        memory: str = "768m",
        home: Path | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        jars = kafka_jars(say)
        self._java = [str(find_java().java), "-cp", f"{jars}/*"]
        self._options = [*(_LIGHT if light else ()), f"-Xmx{memory}"]
        self._process: subprocess.Popen[bytes] | None = None
        self._own = home is None
        self.home = Path(tempfile.mkdtemp(prefix="hf-kafka-")) if home is None else home
        self.home.mkdir(parents=True, exist_ok=True)
        protocols = {"PLAINTEXT": "PLAINTEXT", **(listeners or {})}
        names = [*protocols, "CONTROLLER"]
        self.ports = dict(zip(names, _free_ports(len(names)), strict=True))
        self._config = self.home / "server.properties"
        lines = {
            **_SETTINGS,
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in self.ports.items()),
            "listener.security.protocol.map": ",".join(
                f"{name}:{protocol}" for name, protocol in {**protocols, "CONTROLLER": "PLAINTEXT"}.items()
            ),
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.quorum.voters": f"1@127.0.0.1:{self.ports['CONTROLLER']}",
            "log.dirs": str(self.home / "logs"),
            **(settings or {}),
        }
        self._config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        try:
            self.call("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._config))
        except BaseException:
            self.close()
            raise

    @property
    def port(self) -> int:
        return self.ports["PLAINTEXT"]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, also again after `stop` or `kill`, on the same ports and with what was acknowledged."""
        assert self._process is None, "it runs"
        output = self.home / "broker.out"
        with output.open("ab") as file:
            command = ["/bin/sh", "-c", _WATCHED, "sh", *self._java, *self._options, "kafka.Kafka", str(self._config)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until and self._process.poll() is None:
            with closing(socket.socket()) as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        self.kill()
        raise HoldfastError(
            f"the Kafka broker did not start: {output.read_text(errors='replace')[-500:]}",
            cure="see that Java 17 or newer runs on the machine",
        )

    def kill(self) -> None:
        """kill -9 of the broker, and wait until it is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop in order."""
        self._end(signal.SIGTERM)

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Meanwhile the broker is stopped: connections stay, and nobody answers. Ends when it leads its partitions
        again: after a pause it has to register anew."""
        try:
            with self._stopped():
                yield
        finally:
            self._await_leaders()

    @contextmanager
    def slowed(self, seconds: float = 0.05) -> Iterator[None]:
        """Meanwhile the broker is stopped for so long, again and again, and works as long in between."""
        over = threading.Event()

        def work() -> None:
            while not over.wait(seconds):
                with self._stopped():
                    over.wait(seconds)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self._await_leaders()

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        assert self._process is not None, "it does not run"
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def _await_leaders(self) -> None:
        """Until the ends of all partitions are told."""
        from confluent_kafka import KafkaException, TopicPartition  # noqa: PLC0415 - an extra
        from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined] # noqa: PLC0415 - an extra

        admin = AdminClient({"bootstrap.servers": self.address})
        until = time.monotonic() + _START_SECONDS
        while True:
            with suppress(KafkaException):
                topics = admin.list_topics(timeout=5).topics.items()
                places = [TopicPartition(name, number) for name, topic in topics for number in topic.partitions]
                latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
                asked: Any = dict.fromkeys(places, latest)
                ends = admin.list_offsets(asked, request_timeout=5) if places else {}
                for end in ends.values():
                    end.result()
                return
            if time.monotonic() > until:
                raise HoldfastError("the Kafka broker does not lead its partitions again", cure="see its log")
            time.sleep(0.1)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        assert process.stdin is not None
        process.stdin.close()

    def close(self) -> None:
        """Stop, and remove everything."""
        self._end(signal.SIGKILL if self._own else signal.SIGTERM)
        if self._own:
            shutil.rmtree(self.home, ignore_errors=True)

    def call(self, tool: str, *arguments: str, seconds: float = 300.0) -> str:
        """Run one of Kafka's own tools; what it printed."""
        command = [*self._java, *_LIGHT, "-Xmx512m", tool, *arguments]
        told = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds)
        if told.returncode != 0:
            raise HoldfastError(
                f"{tool} ended with {told.returncode}: {(told.stdout + told.stderr)[-500:]}",
                cure="see whether the machine has memory and disk space left, then run it again",
            )
        return told.stdout

    def __enter__(self) -> KafkaServer:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
