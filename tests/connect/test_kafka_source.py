"""The Kafka source against a real broker: what a slice is, where reading begins, and what is told where it cannot."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

import holdfast as hf
from connect.drain import drain, rows_of
from holdfast.connect.kafka.topic_watch import TopicWatch
from holdfast.connect.source_need import SourceNeed
from holdfast.errors import BadRowError, InputError
from holdfast_lab.chaos.kafka_server import KafkaServer
from kafka_broker import make_topic, send
from strategies import long_cases

ROW = {"n": pl.Int64}


@pytest.fixture(params=["fetches", "client library"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How messages are read: both give the same."""
    if request.param == "fetches":

        def unusual(*given: object, **more: object) -> None:
            raise AssertionError("the client library was asked")

        monkeypatch.setattr("holdfast.connect.kafka.partition_reader._PartitionReader.read", unusual)
    else:
        monkeypatch.setattr("holdfast.connect.kafka.partition_reader.can_fetch", lambda servers: False)
    return str(request.param)


def numbers(first: int, last: int) -> list[bytes]:
    return [json.dumps({"n": n}).encode() for n in range(first, last)]


def values(frame: pl.DataFrame, column: str = "n") -> list[int]:
    return frame[column].to_list()


@pytest.mark.parametrize(("rows", "pieces"), [(1000, 1), (7, 4)])
@pytest.mark.usefixtures("way")
def test_every_message_is_read_once_however_it_is_cut(kafka_broker: KafkaServer, rows: int, pieces: int) -> None:
    topic = make_topic(kafka_broker, 2)
    send(kafka_broker, topic, numbers(0, 60), 0)
    send(kafka_broker, topic, numbers(60, 75), 1)
    source = hf.source.kafka(kafka_broker.address, topic, ROW)
    frame, position = drain(source, rows=rows, pieces=pieces)
    assert sorted(values(frame)) == list(range(75))
    assert position["offsets"] == {"0": 60, "1": 15}
    send(kafka_broker, topic, numbers(75, 80), 1)
    frame, _ = drain(source, position=position)
    assert values(frame) == list(range(75, 80))
    assert source.lag(position) is None


@pytest.mark.usefixtures("way")
def test_key_timestamp_headers_and_place_become_columns(kafka_broker: KafkaServer) -> None:
    topic = make_topic(kafka_broker)
    send(kafka_broker, topic, [b'{"n": 1}'], key=b"k", timestamp=1_700_000_000_123, headers=[("a", b"x"), ("b", None)])
    send(kafka_broker, topic, [None], timestamp=5)
    source = hf.source.kafka(
        kafka_broker.address, topic, {"n": pl.Int64, "who": pl.String},
        key="who", timestamp="at", headers="heads", partition="part", offset="off",
    )  # fmt: skip
    assert source.schema.names() == ["n", "who", "at", "heads", "part", "off"]
    frame, _ = drain(source)
    heads = [{"name": "a", "value": b"x"}, {"name": "b", "value": None}]
    assert frame.rows() == [
        (1, "k", datetime(2023, 11, 14, 22, 13, 20, 123000), heads, 0, 0),
        (None, None, datetime(1970, 1, 1, 0, 0, 0, 5000), [], 0, 1),
    ]


def test_plain_bytes_are_one_column(kafka_broker: KafkaServer) -> None:
    topic = make_topic(kafka_broker)
    send(kafka_broker, topic, [b"\x00\xff", "ä".encode(), None])
    raw, _ = drain(hf.source.kafka(kafka_broker.address, topic, {"raw": pl.Binary}, format="bytes"))
    assert raw["raw"].to_list() == [b"\x00\xff", "ä".encode(), None]
    text = hf.source.kafka(kafka_broker.address, topic, {"raw": pl.String}, format="bytes", bad_rows="skip", offset="o")
    frame, _ = drain(text)
    assert frame.rows() == [("ä", 1), (None, 2)]


def test_json_may_have_line_breaks_and_bad_messages_are_told_one_by_one(kafka_broker: KafkaServer) -> None:
    topic = make_topic(kafka_broker)
    send(
        kafka_broker,
        topic,
        [b'{"n":\n 1}', b"", b'{"n": "x"}', b'{"n": 4}\n', b'{"n": 5} {"n": 6}', b"\n", b'{"n": 7}'],
    )
    letters: list[pl.DataFrame] = []
    kept = hf.source.kafka(kafka_broker.address, topic, ROW, bad_rows="dead_letter", offset="o")
    frame, _ = drain(kept, seen=lambda chunk: letters.append(chunk.bad) if chunk.bad is not None else None)
    assert frame.rows() == [(1, 0), (4, 3), (7, 6)]
    assert [place.rpartition(" ")[2] for place in letters[0]["place"]] == ["1", "2", "4", "5"]
    assert "column 'n' is not Int64" in letters[0]["reason"][1]
    with pytest.raises(BadRowError, match=rf"topic '{topic}', partition 0, offset 1: .*3 more near it") as caught:
        drain(hf.source.kafka(kafka_broker.address, topic, ROW))
    assert "dead_letter" in caught.value.cure


@pytest.mark.usefixtures("way")
def test_messages_of_aborted_transactions_are_not_read_and_open_ones_are_waited_for(kafka_broker: KafkaServer) -> None:
    topic = make_topic(kafka_broker)
    producer = Producer({"bootstrap.servers": kafka_broker.address, "transactional.id": topic})
    producer.init_transactions(20)
    for number in range(6):
        producer.begin_transaction()
        for value in numbers(10 * number, 10 * number + 10):
            producer.produce(topic, value)
        producer.flush(20)  # or an abort would keep them from being sent
        producer.abort_transaction(20) if number % 2 else producer.commit_transaction(20)
    source = hf.source.kafka(kafka_broker.address, topic, ROW)
    wanted = [n for n in range(60) if n // 10 % 2 == 0]
    frame, position = drain(source, rows=8)
    assert values(frame) == wanted
    assert position["offsets"] == {"0": 66}  # each transaction has a marker, too
    producer.begin_transaction()
    producer.produce(topic, b'{"n": 1000}')
    producer.flush(20)
    assert drain(source, position=position)[0].height == 0
    producer.commit_transaction(20)
    assert values(drain(source, position=position)[0]) == [1000]


@pytest.mark.parametrize("codec", ["snappy", "zstd", *long_cases("none", "gzip", "lz4")])
def test_messages_may_be_compressed_and_large(kafka_broker: KafkaServer, codec: str) -> None:
    topic = make_topic(kafka_broker)
    producer = Producer({"bootstrap.servers": kafka_broker.address, "compression.type": codec, "linger.ms": 50})
    texts = ["x" * size for size in (0, 1, 100, 10_000, 300_000)] * 3
    for number, text in enumerate(texts):
        producer.produce(topic, json.dumps({"n": number, "text": text}).encode(), key=text[:200].encode())
    assert producer.flush(20) == 0
    source = hf.source.kafka(kafka_broker.address, topic, {"n": pl.Int64, "text": pl.String}, key="k", offset="o")
    frame, _ = drain(source)
    assert frame["text"].to_list() == texts
    assert frame["k"].to_list() == [text[:200].encode() for text in texts]
    assert frame["o"].to_list() == list(range(15))


def test_reading_begins_where_it_is_told(kafka_broker: KafkaServer) -> None:
    topic = make_topic(kafka_broker, 2)
    for number in range(10):
        send(kafka_broker, topic, numbers(number, number + 1), number % 2, timestamp=1_000_000 + 1000 * number)

    def read(start: object) -> list[int]:
        frame, _ = drain(hf.source.kafka(kafka_broker.address, topic, ROW, start=start))  # type: ignore[arg-type]
        return sorted(values(frame))

    assert read("earliest") == list(range(10))
    assert read("latest") == []
    assert read(datetime.fromtimestamp(1003, UTC)) == list(range(3, 10))
    assert read("1970-01-01T00:16:47.5") == [8, 9]
    assert read("2100-01-01T00:00:00Z") == []
    assert read({0: 3, 1: 5}) == [6, 8]
    assert read({1: 5}) == [0, 2, 4, 6, 8]  # of the others, all
    with pytest.raises(InputError, match="names partition 7, but the topic"):
        read({7: 0})
    with pytest.raises(InputError, match="offset 6 of partition 1, which ends at 5"):
        read({1: 6})


def test_what_latest_means_is_settled_when_the_pipeline_first_looks(kafka_broker: KafkaServer) -> None:
    topic = make_topic(kafka_broker)
    send(kafka_broker, topic, numbers(0, 3))
    source = hf.source.kafka(kafka_broker.address, topic, ROW, start="latest")
    first = source.take(source.start(), 10, 1)
    assert [piece.rows for piece in first.slices] == [0]  # an epoch without rows keeps the position
    assert first.position["offsets"] == {"0": 3}
    send(kafka_broker, topic, numbers(3, 5))
    assert values(drain(source, position=first.position)[0]) == [3, 4]


def test_a_partition_that_appears_while_running_is_read_from_its_first_message(
    kafka_broker: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.connect.kafka.topic_watch._PARTITIONS_SECONDS", 0.0)
    topic = make_topic(kafka_broker)
    send(kafka_broker, topic, numbers(0, 3))
    source = hf.source.kafka(kafka_broker.address, topic, ROW, start="latest")
    position = source.take(source.start(), 10, 1).position
    admin = AdminClient({"bootstrap.servers": kafka_broker.address})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(20)
    until = time.monotonic() + 10
    while len(admin.list_topics(topic, timeout=10).topics[topic].partitions) < 2:
        assert time.monotonic() < until
    send(kafka_broker, topic, numbers(10, 14), 1)
    take = source.take(position, 100, 1)
    assert take.position["offsets"] == {"0": 3, "1": 4}
    assert [values(rows_of(source, piece)[0]) for piece in take.slices] == [[], [10, 11, 12, 13]]


def test_partitions_come_to_their_ends_together(kafka_broker: KafkaServer) -> None:
    topic = make_topic(kafka_broker, 3)
    send(kafka_broker, topic, numbers(0, 100), 0)
    send(kafka_broker, topic, numbers(0, 10), 1)
    source = hf.source.kafka(kafka_broker.address, topic, ROW)
    take = source.take(source.start(), 55, 2)
    assert take.position["offsets"] == {"0": 50, "1": 5, "2": 0}
    assert source.lag(take.position) == 55


def test_messages_that_expired_are_an_error_with_a_choice(kafka_broker: KafkaServer) -> None:
    topic = make_topic(kafka_broker)
    send(kafka_broker, topic, numbers(0, 10))
    source = hf.source.kafka(kafka_broker.address, topic, ROW)
    take = source.take(source.start(), 4, 1)
    admin = AdminClient({"bootstrap.servers": kafka_broker.address})
    for future in admin.delete_records([TopicPartition(topic, 0, 6)]).values():
        future.result(20)
    with pytest.raises(InputError, match="2 messages from offset 4 on expired") as caught:
        source.take(take.position, 4, 1)
    assert "expired='skip'" in caught.value.cure
    with pytest.raises(InputError, match="expired after they were planned"):
        list(source.read(take.slices[0]))
    lenient = hf.source.kafka(kafka_broker.address, topic, ROW, expired="skip")
    assert rows_of(lenient, take.slices[0])[0].height == 0
    frame, _ = drain(lenient, position=take.position)
    assert values(frame) == [6, 7, 8, 9]
    lenient.take(take.position, 4, 1)
    assert "offsets 4 to 6 had expired" in lenient.notices(take.position)[0]


def test_a_topic_that_is_not_there_or_was_made_anew_is_told(kafka_broker: KafkaServer) -> None:
    source = hf.source.kafka(kafka_broker.address, "nowhere", ROW)
    with pytest.raises(InputError, match="the topic 'nowhere' cannot be read"):
        source.take(source.start(), 1, 1)
    topic = make_topic(kafka_broker)
    send(kafka_broker, topic, numbers(0, 2))
    with pytest.raises(InputError, match="ends at offset 2, but was read up to 5"):
        hf.source.kafka(kafka_broker.address, topic, ROW).take({"base": 5, "offsets": {"0": 5}}, 1, 1)


def test_a_broker_that_never_answered_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.connect.kafka.topic_watch._ANSWER_SECONDS", 0.5)
    source = hf.source.kafka("127.0.0.1:1", "t", ROW)
    with pytest.raises(InputError, match="no broker answers at 127") as caught:
        source.take(source.start(), 1, 1)
    assert "tls=" in caught.value.cure


def test_a_column_that_nobody_reads_is_not_decoded(kafka_broker: KafkaServer) -> None:
    topic = make_topic(kafka_broker)
    send(kafka_broker, topic, [b'{"n": 1, "text": 5.5}'], key=b"\xff")
    source = hf.source.kafka(
        kafka_broker.address, topic, {"n": pl.Int64, "text": pl.Boolean, "who": pl.String}, key="who"
    )
    with pytest.raises(BadRowError, match="partition 0, offset 0"):
        drain(source)
    assert drain(source.narrowed(SourceNeed(("n",))))[0].rows() == [(1,)]


def test_all_partitions_are_asked_about_together(kafka_broker: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic of many partitions is looked at in each epoch."""
    topic = make_topic(kafka_broker, 12)
    send(kafka_broker, topic, numbers(0, 5), 3)
    expected = {partition: (0, 5 if partition == 3 else 0) for partition in range(12)}
    servers = hf.kafka.servers(kafka_broker.address)
    assert TopicWatch(servers, topic).look() == expected, "asks again as long as the topic is new to the broker"
    asked: list[int] = []
    real = AdminClient.list_offsets

    def counted(client: AdminClient, about: Any, **given: Any) -> Any:
        asked.append(len(about))
        return real(client, about, **given)

    monkeypatch.setattr(AdminClient, "list_offsets", counted)
    assert TopicWatch(servers, topic).look() == expected
    assert asked == [12, 12], "where they begin, and where they end"


def test_a_partition_that_is_gone_is_told(kafka_broker: KafkaServer) -> None:
    """The topic was made anew with fewer partitions: what was in the others must not be passed over in silence."""
    topic = make_topic(kafka_broker)
    source = hf.source.kafka(kafka_broker.address, topic, ROW)
    with pytest.raises(InputError, match=f"topic '{topic}' has no partition 1 any more, .* up to offset 7") as caught:
        source.take({"base": 7, "offsets": {"0": 0, "1": 7}}, 10, 1)
    assert "put the topic back" in caught.value.cure
