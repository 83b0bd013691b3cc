"""A broker with TLS and SASL, and one that is killed while a pipeline runs. Each starts a broker of its own."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from confluent_kafka import Producer

import holdfast as hf
from connect.drain import drain
from harness import Cut, run_in
from holdfast.connect.base import Owner
from holdfast.errors import HoldfastError, InputError
from holdfast_lab.chaos.kafka_server import KafkaServer
from kafka_broker import committed, make_topic, send

pytestmark = pytest.mark.long  # brokers are started for each test

FILES = Path(__file__).parents[1] / "data" / "tls"
ROW = {"n": pl.Int64}
FAILED = threading.Event()
"""Not all messages could be sent: nobody is to wait for them."""


class Fed(hf.source.Source):
    """A topic that ends when so many messages were read."""

    def __init__(self, inner: hf.source.Source, sent: int) -> None:
        self.inner, self.sent = inner, sent
        self.schema, self.in_order, self.keeps, self.bounded = inner.schema, False, True, True

    def start(self) -> hf.source.Position:
        return self.inner.start()

    def take(self, position: hf.source.Position, rows: int, pieces: int) -> hf.source.Take:
        found = self.inner.take(position, rows, pieces)
        done = sum((found.position["offsets"] or {}).values()) >= self.sent
        return hf.source.Take(found.slices, found.position, done)

    def read(self, piece: hf.source.Slice) -> Iterator[hf.source.Chunk]:
        return self.inner.read(piece)

    def awaits(self, position: hf.source.Position) -> bool:
        return not FAILED.is_set()


def broker(**given: object) -> KafkaServer:
    try:
        return KafkaServer(**given)  # type: ignore[arg-type]
    except HoldfastError as error:
        pytest.skip(f"there is no Kafka broker to start: {error.problem}")


def test_a_broker_behind_tls_and_sasl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KAFKA_WORD", "hush-hush")
    pem = tmp_path / "server.pem"
    pem.write_text((FILES / "server.key").read_text() + (FILES / "server.pem").read_text())
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    settings = {
        "listener.name.secure.ssl.keystore.type": "PEM",
        "listener.name.secure.ssl.keystore.location": str(pem),
        "listener.name.secure.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.secure.plain.sasl.jaas.config": f'{plain} user_me="hush-hush";',
    }
    caplog.set_level(logging.DEBUG)
    with broker(settings=settings, listeners={"SECURE": "SASL_SSL"}) as server:
        topic, out = make_topic(server), make_topic(server)
        send(server, topic, [b'{"n": 1}'])
        address = f"localhost:{server.ports['SECURE']}"
        given = {"tls": True, "ca": FILES / "ca.pem", "sasl": "PLAIN", "user": "me"}
        # The address that the broker names is not in its certificate.
        more = {"ssl.endpoint.identification.algorithm": "none"}
        servers = hf.kafka.servers(address, **given, password="env:KAFKA_WORD", settings=more)  # type: ignore[arg-type]
        assert drain(hf.source.kafka(servers, topic, ROW))[0].rows() == [(1,)]
        sink = hf.sink.kafka(servers, out)
        sink.attach(Owner("store", "p", "out"))
        sink.check(0)
        sink.deliver(1, pl.DataFrame({"n": [2]}), {})
        assert [message.value() for message in committed(server, out)] == [b'{"n":2}']
        monkeypatch.setenv("KAFKA_WORD", "wrong-word")
        with pytest.raises(InputError, match="no broker answers") as caught:
            drain(hf.source.kafka(servers, topic, ROW))
    for word in ("hush-hush", "wrong-word"):
        assert word not in f"{caplog.text} {caught.value} {servers!r}"


def test_a_run_outlives_its_broker(tmp_path: Path) -> None:
    """The broker is killed again and again while rows come, and started anew: nothing is lost and nothing doubled."""
    with broker() as server:
        came, went = make_topic(server, 2), make_topic(server)
        sent = 3_000
        stop = threading.Event()
        FAILED.clear()

        def feed() -> None:
            try:
                producer = Producer({"bootstrap.servers": server.address, "enable.idempotence": True})
                for n in range(sent):
                    producer.produce(came, json.dumps({"n": n}).encode())
                    producer.poll(0)
                    time.sleep(0.003)
                assert producer.flush(60) == 0
            except BaseException:
                FAILED.set()
                raise
            finally:
                stop.set()

        def kill() -> None:
            while not stop.wait(2.0):
                server.kill()
                server.start()

        pipeline = hf.Pipeline("p")
        pipeline.source("in", Fed(hf.source.kafka(server.address, came, ROW), sent)).sink(
            "out", hf.sink.kafka(server.address, went)
        )
        threads = [threading.Thread(target=feed), threading.Thread(target=kill)]
        for thread in threads:
            thread.start()
        try:
            run_in(tmp_path, pipeline, Cut(rows=100))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        found = sorted(json.loads(message.value())["n"] for message in committed(server, went))
        assert found == list(range(sent))
