"""An MQTT broker and its receiver: what was published comes at least once, whoever is killed, and nothing is
acknowledged that is not durable."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import polars as pl
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from receiving import stored

from holdfast.connect.sources.mqtt_source import MqttSource, mqtt
from holdfast.errors import BadRowError, DeclarationError, HoldfastError, ListenError
from holdfast.ingress import IngressServer
from holdfast.meta import MetaStore
from holdfast.pstream.appender import Appender, open_appender
from mqtt_broker import MqttBroker, mosquitto

SCHEMA = {"id": pl.Int64, "topic": pl.String}
PATIENCE = 30.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[MqttBroker]:
    if mosquitto() is None:
        pytest.skip("there is no mosquitto, and no package of it")
    home = tmp_path / "broker"
    home.mkdir()
    made = MqttBroker(home)
    made.start()
    yield made
    made.kill()


def until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Publisher:
    """Publishes numbered messages with QoS 1; what the broker has not taken, it publishes again after a cut."""

    def __init__(self, port: int) -> None:
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id="publisher", clean_session=False)
        self._client.reconnect_delay_set(1, 1)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    def send(self, topic: str, payload: bytes | str, qos: int = 1, retain: bool = False) -> None:
        self._client.publish(topic, payload, qos=qos, retain=retain).wait_for_publish(PATIENCE)

    def numbers(self, topic: str, start: int, stop: int) -> None:
        infos = [self._client.publish(topic, json.dumps({"id": number}), qos=1) for number in range(start, stop)]
        for info in infos:
            info.wait_for_publish(PATIENCE)

    def connected(self) -> None:
        """After the broker was killed: the client may not know of it yet."""
        until(lambda: self._client.publish("elsewhere", qos=0).rc == 0 and self._client.is_connected())

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@pytest.fixture
def publisher(broker: MqttBroker) -> Iterator[Publisher]:
    made = Publisher(broker.port)
    yield made
    made.close()


@contextlib.contextmanager
def receiving(place: Path, source: MqttSource, **settings: Any) -> Iterator[tuple[IngressServer, Appender]]:
    with contextlib.closing(MetaStore(place)) as meta:
        appender = open_appender(
            meta, place, "p.events", source.schema, event_time=None, lateness=0, budget=source.budget, **settings
        )
        try:
            with IngressServer({"events": (source, appender)}, grace=5.0) as server:
                yield server, appender
        finally:
            appender.close()


def rows(place: Path) -> list[tuple[Any, ...]]:
    with contextlib.closing(MetaStore(place)) as meta:
        return stored(meta, place).rows()


def source_of(broker: MqttBroker, topics: Any = "site/#", **settings: Any) -> MqttSource:
    return mqtt(broker.url, topics, SCHEMA, **{"client": "pipeline", "topic": "topic", **settings})


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_messages_of_topics_with_wildcards_become_rows_with_their_topic(
    broker: MqttBroker, publisher: Publisher, tmp_path: Path, version: Any
) -> None:
    source = source_of(broker, ["site/+/temp", "site/b/#"], version=version)
    with receiving(tmp_path, source) as (server, _):
        assert server.addresses["events"]["mqtt"].port == broker.port
        publisher.send("site/a/temp", '{"id": 1}')
        publisher.send("site/a/humidity", '{"id": 2}')
        publisher.send("site/b/x/y", '{"id": 3, "other": true}')
        publisher.send("site/c/temp", '{\n"id": 4}', qos=0)
        until(lambda: server.totals()["events"].rows == 3)
        server.check()
    assert rows(tmp_path) == [(1, "site/a/temp"), (3, "site/b/x/y"), (4, "site/c/temp")]


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_what_comes_while_nobody_receives_is_kept_by_the_broker_and_comes_once(
    broker: MqttBroker, publisher: Publisher, tmp_path: Path, version: Any
) -> None:
    source = source_of(broker, version=version)
    publisher.send("site/retained", '{"id": -1}', retain=True)
    with receiving(tmp_path, source) as (server, _):
        until(lambda: server.totals()["events"].rows == 1)
    publisher.numbers("site/a", 0, 50)
    with receiving(tmp_path, source) as (server, _):
        until(lambda: server.totals()["events"].rows >= 50)
    found = [number for number, _ in rows(tmp_path)]
    again = found.count(-1) - 1
    assert again == (0 if version == "5" else 1)  # 3.1.1 gives the retained one with every connection
    assert [number for number in found if number >= 0] == list(range(50))


def test_nothing_is_acknowledged_before_it_is_durable(broker: MqttBroker, publisher: Publisher, tmp_path: Path) -> None:
    def fails(frame: pl.DataFrame) -> pl.DataFrame:
        raise HoldfastError("no", cure="yes")

    with receiving(tmp_path, source_of(broker)) as (server, _):
        publisher.numbers("site/a", 0, 10)
        until(lambda: server.totals()["events"].rows == 10)
    with receiving(tmp_path, source_of(broker), prepare=fails) as (server, _):
        publisher.numbers("site/a", 10, 20)
        until(lambda: server._receivers[0]._failure is not None)  # type: ignore[attr-defined]
        with pytest.raises(HoldfastError, match="no"):
            server.check()
    with receiving(tmp_path, source_of(broker)) as (server, _):
        until(lambda: server.totals()["events"].rows == 10)
    assert [number for number, _ in rows(tmp_path)] == list(range(20))


def test_a_full_stream_holds_the_broker_back_and_loses_nothing(
    broker: MqttBroker, publisher: Publisher, tmp_path: Path
) -> None:
    with receiving(tmp_path, source_of(broker, budget=2_000, in_flight=20)) as (server, appender):
        publisher.numbers("site/a", 0, 500)
        until(lambda: appender.is_full)
        time.sleep(0.5)
        taken = server.totals()["events"].rows
        assert taken < 500
    with receiving(tmp_path, source_of(broker)) as (server, _):
        until(lambda: server.totals()["events"].rows >= 500 - taken)
    assert sorted({number for number, _ in rows(tmp_path)}) == list(range(500))


def test_a_message_that_does_not_fit_stops_the_receiver_or_is_skipped(
    broker: MqttBroker, publisher: Publisher, tmp_path: Path
) -> None:
    with receiving(tmp_path, source_of(broker)) as (server, _):
        publisher.send("site/a", "no JSON")
        until(lambda: server._receivers[0]._failure is not None)  # type: ignore[attr-defined]
        with pytest.raises(BadRowError, match=r"topic 'site/a' does not fit.*it is: no JSON") as error:
            server.check()
        assert error.value.operator == "events"
    with receiving(tmp_path, source_of(broker, bad_rows="skip")) as (server, _):
        publisher.send("site/a", '{"id": 1}')
        until(lambda: server.totals()["events"].rows == 1)
        assert server.totals()["events"].skipped == 1  # it was not acknowledged, and came again


def test_a_broker_that_is_not_there_or_refuses_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if mosquitto() is None:
        pytest.skip("there is no mosquitto, and no package of it")
    home = tmp_path / "broker"
    home.mkdir()
    (home / "passwords").write_text("")
    broker = MqttBroker(home, "allow_anonymous false", f"password_file {home / 'passwords'}")
    monkeypatch.setenv("MQTT_SECRET", "wrong")
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.ingress.mqtt_receiver._START_SECONDS", 0.3)
        with (
            pytest.raises(ListenError, match="check that the address is right"),
            receiving(tmp_path, source_of(broker)),
        ):
            pass
    broker.start()
    try:
        source = source_of(broker, user="env:MQTT_SECRET", password="env:MQTT_SECRET")
        assert "wrong" not in repr(source)
        with pytest.raises(ListenError, match="refuses the connection: Not authorized"), receiving(tmp_path, source):
            pass
    finally:
        broker.kill()


def test_tls_and_a_password_from_a_file(tmp_path: Path) -> None:
    if mosquitto() is None:
        pytest.skip("there is no mosquitto, and no package of it")
    home, tls = tmp_path / "broker", Path(__file__).parents[1] / "data" / "tls"
    home.mkdir()
    salt = b"twelve bytes"
    packed = base64.b64encode(hashlib.sha512(b"s3cret" + salt).digest()).decode()
    (home / "passwords").write_text(f"sensor:$6${base64.b64encode(salt).decode()}${packed}\n")
    for name in ("server.pem", "server.key", "ca.pem"):
        shutil.copy(tls / name, home)
    broker = MqttBroker(
        home, "allow_anonymous false", f"password_file {home / 'passwords'}", f"cafile {home / 'ca.pem'}",
        f"certfile {home / 'server.pem'}", f"keyfile {home / 'server.key'}",
    )  # fmt: skip
    (tmp_path / "user").write_text("sensor\n")
    (tmp_path / "password").write_text("s3cret\n")
    secrets: dict[str, Any] = {"user": f"file:{tmp_path / 'user'}", "password": f"file:{tmp_path / 'password'}"}
    broker.start()
    try:
        url = f"mqtts://localhost:{broker.port}"
        source = mqtt(url, "a", SCHEMA, client="c", topic="topic", ca=tls / "ca.pem", **secrets)
        sender = paho.Client(CallbackAPIVersion.VERSION2)
        sender.tls_set(str(tls / "ca.pem"))
        sender.username_pw_set("sensor", "s3cret")
        with receiving(tmp_path, source) as (server, _):
            sender.connect("localhost", broker.port)
            sender.loop_start()
            sender.publish("a", '{"id": 1}', qos=1).wait_for_publish(PATIENCE)
            until(lambda: server.totals()["events"].rows == 1)
        sender.disconnect()
        sender.loop_stop()
        unknown = mqtt(url, "a", SCHEMA, client="c", topic="topic", **secrets)
        with pytest.raises(ListenError, match="TLS failed"), receiving(tmp_path, unknown):
            pass
    finally:
        broker.kill()
    assert rows(tmp_path) == [(1, "a")]


PIPELINE = """
import polars as pl
import holdfast as hf

pipeline = hf.Pipeline("p")
source = hf.source.mqtt("{url}", "site/#", {{"id": pl.Int64, "topic": pl.String}}, client="pipeline", topic="topic")
pipeline.source("events", source).sink("out", hf.sink.parquet("out"))
"""


def ingress(place: Path) -> subprocess.Popen[str]:
    """Returns when it has subscribed."""
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", "ingress", "pipeline.py"]
    process = subprocess.Popen(
        [*command, "--store", "store"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=place
    )
    assert process.stdout is not None
    said = ""
    while "mqtt on" not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    return process


@pytest.mark.long  # three processes are started
def test_kills_of_the_receiver_and_of_the_broker_lose_no_message(
    broker: MqttBroker, publisher: Publisher, tmp_path: Path
) -> None:
    (tmp_path / "pipeline.py").write_text(PIPELINE.format(url=broker.url))
    store = tmp_path / "store"
    process = ingress(tmp_path)
    try:
        publisher.numbers("site/a", 0, 300)
        for round in range(2):  # in the middle of what it takes
            base = 300 + 2_000 * round
            infos = [
                publisher._client.publish("site/a", json.dumps({"id": number}), qos=1)
                for number in range(base, base + 2_000)
            ]
            time.sleep(0.2)
            process.kill()
            process.communicate()
            for info in infos:
                info.wait_for_publish(PATIENCE)
            process = ingress(tmp_path)
        time.sleep(2.5)  # so long the broker may take to write down what it has acknowledged
        broker.kill()
        broker.start()
        publisher.connected()
        publisher.numbers("site/a", 4_300, 4_400)

        def there() -> set[int]:
            return {number for number, _ in rows(store)}

        until(lambda: len(there()) == 4_400)
        assert there() == set(range(4_400))
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=30)
        assert process.returncode == 0, said
        assert "is gone" in said
        assert "again" in said
        assert "lost the session" not in said
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"broker": "http://host"}, "not an address"),
        ({"broker": "mqtt://user:secret@host"}, "not an address"),
        ({"topics": "a/#/b"}, "is not a topic"),
        ({"topics": "a/b+"}, "is not a topic"),
        ({"topics": []}, "there is no topic"),
        ({"client": ""}, "client="),
        ({"topic": "id"}, "not a String column"),
        ({"format": "xml"}, "format="),
        ({"format": "bytes", "topic": None}, "one column"),
        ({"version": "4"}, "version="),
        ({"bad_rows": "maybe"}, "bad_rows="),
        ({"in_flight": 0}, "in_flight="),
        ({"password": "env:HOME"}, "without a user"),
        ({"user": "me"}, "user is a secret"),
        ({"ca": "ca.pem"}, "no TLS"),
        ({"broker": "mqtts://host", "certificate": "c.pem"}, "belong together"),
    ],
)
def test_settings_that_cannot_work_are_told_at_once(settings: dict[str, Any], told: str) -> None:
    given: dict[str, Any] = {"broker": "mqtt://host", "topics": "a", "client": "c", "topic": "topic", **settings}
    broker, topics = given.pop("broker"), given.pop("topics")
    with pytest.raises(DeclarationError, match=told) as error:
        mqtt(broker, topics, SCHEMA, **given)
    assert "secret@" not in str(error.value)
    assert error.value.cure
