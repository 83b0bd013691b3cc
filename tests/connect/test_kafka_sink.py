"""The Kafka sink against a real broker: an epoch and its token are one transaction, and zombies cannot write."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import holdfast as hf
from harness import Cut, run_in
from holdfast.connect.base import Owner
from holdfast.connect.kafka.kafka_library import client_library
from holdfast.connect.kafka.kafka_servers import KafkaServers
from holdfast.connect.kafka.transactional_writer import FencedError, KafkaRow, TokenTopic
from holdfast.connect.sinks.kafka_sink import KafkaSink
from holdfast.errors import (
    DeclarationError,
    LeaseLostError,
    OperatorError,
    OutputConflictError,
    OutputUnwritableError,
    UnknownColumnError,
    WrongTypeError,
)
from holdfast_lab.chaos.kafka_server import KafkaServer
from kafka_broker import committed, make_topic, send

ROWS = pl.DataFrame({"page": ["a", "b"], "n": [1, 2]})


def opened(server: KafkaServer, topic: str, store: str = "store", **options: str) -> KafkaSink:
    sink = hf.sink.kafka(server.address, topic, **options)  # type: ignore[arg-type]
    sink.accept(ROWS.schema)
    sink.attach(Owner(store, "p", "out"))
    sink.bind(ROWS.schema)
    return sink


def rows_in(server: KafkaServer, topic: str) -> list[tuple[str, int]]:
    return [(row["page"], row["n"]) for row in (json.loads(message.value()) for message in committed(server, topic))]


def test_an_epoch_that_comes_again_is_written_once(kafka_broker: KafkaServer) -> None:
    topic = make_topic(kafka_broker)
    first = opened(kafka_broker, topic)
    first.check(0)
    assert first.delivered() is None
    first.deliver(1, ROWS, {"in": {"row": 2}})
    again = opened(kafka_broker, topic)  # as after a crash between Kafka's commit and ours
    again.check(0)
    assert again.delivered() == 1
    again.deliver(1, ROWS, {"in": {"row": 2}})
    again.deliver(2, ROWS[:1], {"in": {"row": 3}})
    assert rows_in(kafka_broker, topic) == [("a", 1), ("b", 2), ("a", 1)]


def test_a_transaction_that_was_not_ended_leaves_nothing_and_its_writer_is_fenced(
    kafka_broker: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.connect.sinks.kafka_sink._OTHER_SECONDS", 0.5)
    topic = make_topic(kafka_broker)
    zombie = opened(kafka_broker, topic)
    zombie.check(0)
    zombie.deliver(1, ROWS, {"in": {"row": 2}})
    writer = zombie._open
    assert writer is not None
    writer._producer.begin_transaction()  # it stops here, with rows at the broker
    writer._send(topic, KafkaRow(b'{"page": "zombie", "n": 0}'))
    writer._producer.flush(20)
    successor = opened(kafka_broker, topic)
    successor.check(1)
    successor.deliver(2, ROWS[:1], {"in": {"row": 3}})
    with pytest.raises(FencedError):  # and goes on here
        writer._patiently(writer._producer.commit_transaction, 0.0)
    zombie.deliver(2, ROWS[:1], {"in": {"row": 3}})  # the other one has written it
    with pytest.raises(LeaseLostError, match=f"another process writes to topic '{topic}' as 'p.out'"):
        zombie.deliver(3, ROWS, {"in": {"row": 5}})
    successor.deliver(3, ROWS[1:], {"in": {"row": 4}})
    assert rows_in(kafka_broker, topic) == [("a", 1), ("b", 2), ("a", 1), ("b", 2)]


def test_output_of_another_history_or_store_is_refused(kafka_broker: KafkaServer) -> None:
    topic = make_topic(kafka_broker)
    first = opened(kafka_broker, topic)
    first.check(0)
    first.deliver(1, ROWS, {"in": {"row": 2}})
    with pytest.raises(OutputConflictError, match="depends on"):
        opened(kafka_broker, topic).deliver(1, ROWS, {"in": {"row": 1}})
    opened(kafka_broker, topic).deliver(2, ROWS, {"in": {"row": 4}})
    with pytest.raises(OutputConflictError, match="up to epoch 2"):
        opened(kafka_broker, topic).check(0)
    with pytest.raises(OutputConflictError, match="from store store; this is store other"):
        opened(kafka_broker, topic, store="other").check(2)
    opened(kafka_broker, topic, writer="other").check(0)


def test_a_topic_that_is_not_there_is_told_before_anything_runs(kafka_broker: KafkaServer) -> None:
    with pytest.raises(OutputUnwritableError, match="the topic 'nowhere' does not exist") as caught:
        opened(kafka_broker, "nowhere").check(0)
    assert "--create --topic nowhere" in caught.value.cure


def test_key_timestamp_headers_and_partition_come_from_columns(kafka_broker: KafkaServer) -> None:
    topic = make_topic(kafka_broker, 2)
    rows = pl.DataFrame(
        {"k": ["x", None], "v": [b"1", b"2"], "at": [datetime(2020, 1, 1), datetime(2020, 1, 2)], "p": [1, 0],
         "h": [[{"name": "a", "value": b"b"}], []]},
        schema_overrides={"h": pl.List(pl.Struct({"name": pl.String, "value": pl.Binary}))},
    )  # fmt: skip
    sink = hf.sink.kafka(
        kafka_broker.address, topic, format="bytes", key="k", timestamp="at", headers="h", partition="p"
    )
    sink.accept(rows.schema)
    sink.attach(Owner("store", "p", "out"))
    sink.check(0)
    sink.deliver(1, rows, {})
    found = [
        (message.partition(), message.key(), message.value(), message.timestamp()[1], message.headers())
        for message in committed(kafka_broker, topic)
    ]
    assert found == [(0, None, b"2", 1577923200000, None), (1, b"x", b"1", 1577836800000, [("a", b"b")])]


def test_columns_that_cannot_be_what_they_are_named_for_are_refused_when_declared() -> None:
    with pytest.raises(UnknownColumnError, match="key='who' is not a column; the columns are page, n"):
        hf.sink.kafka("h:1", "t", key="who").accept(ROWS.schema)
    with pytest.raises(WrongTypeError, match="key='n' is Int64") as caught:
        hf.sink.kafka("h:1", "t", key="n").accept(ROWS.schema)
    assert "cast it before the sink to String or Binary" in caught.value.cure
    with pytest.raises(WrongTypeError, match="one column of type Binary"):
        hf.sink.kafka("h:1", "t", format="bytes").accept(ROWS.schema)
    with pytest.raises(DeclarationError, match="cannot be the name of a topic"):
        hf.sink.kafka("h:1", "a b")


def test_a_run_that_dies_between_kafka_s_commit_and_its_own_goes_on_without_doubling(
    kafka_broker: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From topic to topic through a window, against the same run without a crash."""
    came = make_topic(kafka_broker, 2)
    rows = [json.dumps({"at": number, "page": "abc"[number % 3]}).encode() for number in range(60)]
    for partition in range(2):
        send(kafka_broker, came, rows[partition::2], partition)

    def pipeline(topic: str) -> hf.Pipeline:
        made = hf.Pipeline("counts")
        source = hf.source.kafka(kafka_broker.address, came, {"at": pl.Int64, "page": pl.String})
        (
            made.source("in", source, event_time="at", time_unit="s", lateness="10s")
            .key_by("page")
            .window(hf.window.tumbling("10s"))
            .agg(n=hf.count())
            .sink("out", hf.sink.kafka(kafka_broker.address, topic, key="page"))
        )
        return made

    plain, crashed = make_topic(kafka_broker), make_topic(kafka_broker)
    run_in(tmp_path / "plain", pipeline(plain), Cut(rows=7))
    died: set[int] = set()
    deliver = KafkaSink.deliver

    def deliver_and_die(sink: KafkaSink, epoch: int, *given: Any) -> None:
        deliver(sink, epoch, *given)
        if epoch not in died and len(died) < 2:
            died.add(epoch)
            raise RuntimeError("killed")

    monkeypatch.setattr(KafkaSink, "deliver", deliver_and_die)
    for _ in range(2):
        with pytest.raises(OperatorError, match="killed"):
            run_in(tmp_path / "crashed", pipeline(crashed), Cut(rows=7))
    run_in(tmp_path / "crashed", pipeline(crashed), Cut(rows=7))
    assert len(died) == 2
    expected = [json.loads(message.value()) for message in committed(kafka_broker, plain)]
    found = [json.loads(message.value()) for message in committed(kafka_broker, crashed)]
    assert found == expected
    assert sum(row["n"] for row in found) == 40


def test_a_topic_that_has_just_been_made_is_waited_for(
    kafka_broker: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = client_library("a test")
    topic, asked = make_topic(kafka_broker, 1), [0]
    tokens = TokenTopic(KafkaServers(kafka_broker.address), topic)
    tokens.prepare()

    class Hasty(library.Consumer):  # type: ignore[name-defined,misc]
        def get_watermark_offsets(self, *given: object, **named: object) -> tuple[int, int]:
            asked[0] += 1
            if asked[0] < 3:
                raise library.KafkaException(library.KafkaError(library.KafkaError._UNKNOWN_PARTITION))
            return super().get_watermark_offsets(*given, **named)  # type: ignore[no-any-return]

    monkeypatch.setattr(library, "Consumer", Hasty)
    assert tokens.last("nobody") is None
    assert asked == [3]
