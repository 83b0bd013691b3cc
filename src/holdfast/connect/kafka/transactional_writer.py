"""Writing the rows of an epoch to Kafka in one transaction, together with a token that says which epoch it was.

Tokens are in a topic of their own beside the output, `<topic>-holdfast`, which is compacted: the last one of each
writer stays for ever. A transaction has the rows and the token, so a token that readers see tells that the rows are
there.

A writer has a transactional id. Whoever opens it last ends the transaction of those before and fences them: they cannot
write any more. It reads the token after that, and so knows all that was ever written under the id.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.connect.base import Position
from holdfast.connect.kafka.kafka_library import client_library, passes, said
from holdfast.connect.kafka.kafka_servers import ClientSetting, KafkaServers
from holdfast.errors import OutputConflictError, OutputUnwritableError

__all__ = ["EpochToken", "FencedError", "KafkaRow", "TokenTopic", "TransactionalWriter", "token_topic"]

_BY = "hf.sink.kafka()"
_ANSWER_SECONDS = 20.0
_PATIENCE_SECONDS = 100.0
_PAUSE_SECONDS = 0.05
_FIRST_LOOK = 1_000
"""How many of the last tokens are looked at first; then ten times as many, and so on."""
_TOKENS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),
    "segment.ms": str(24 * 3600 * 1000),
    "min.cleanable.dirty.ratio": "0.1",
}
_SENDING: dict[str, ClientSetting] = {
    "linger_ms": 5,
    "queue_buffering_max_messages": 500_000,
    "queue_buffering_max_kbytes": 256 << 10,
    "transaction_timeout_ms": 120_000,  # longer than a writer is patient: what ends it is said by its own error
    "message_timeout_ms": 60_000,
    "partitioner": "murmur2_random",  # a key has the partition that Kafka's own producers would give it
    "reconnect_backoff_max_ms": 1_000,
}


class EpochToken(msgspec.Struct, frozen=True):
    """What was written last by a writer: the epoch, the store it is of, and the source positions it depends on."""

    store: str
    epoch: int
    vector: dict[str, Position]


class FencedError(Exception):
    """Another process writes under the transactional id."""


@dataclass(frozen=True, slots=True)
class KafkaRow:
    """A message to send. Without a partition, its key decides."""

    value: bytes | None
    key: bytes | None = None
    partition: int = -1
    timestamp: int | None = None
    headers: list[tuple[str, bytes | None]] | None = None


def token_topic(topic: str) -> str:
    """Where the tokens of those who write to a topic are."""
    return f"{topic}-holdfast"


def _extent(consumer: Any, place: Any) -> tuple[int, int]:
    """The first offset of a partition and the one behind its last. That of a topic which has just been made may not be
    known everywhere yet."""
    until = time.monotonic() + _ANSWER_SECONDS
    while True:
        try:
            low, end = consumer.get_watermark_offsets(place, timeout=_ANSWER_SECONDS)
            return int(low), int(end)
        except client_library(_BY).KafkaException as error:
            if not passes(_BY, error) or time.monotonic() > until:
                raise
        time.sleep(_PAUSE_SECONDS)


@dataclass(frozen=True, slots=True)
class TokenTopic:
    """The tokens of all who write to a topic."""

    servers: KafkaServers
    topic: str

    def prepare(self) -> None:
        """See that both topics are there. That of the tokens is made, the other one must be."""
        library = client_library(_BY)
        from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined] # noqa: PLC0415 - an extra

        settings: Any = self.servers.configuration(_BY)  # the library's own types know no logger
        admin = AdminClient(settings)
        try:
            found = admin.list_topics(timeout=_ANSWER_SECONDS).topics
            if self.topic not in found:
                raise OutputUnwritableError(
                    f"the topic '{self.topic}' does not exist at {self.servers}, or this user may not see it",
                    cure=f"create it, with as many partitions as its readers need: kafka-topics.sh --create --topic"
                    f" {self.topic} --partitions N",
                )
            tokens = token_topic(self.topic)
            if tokens not in found:
                first = found[self.topic].partitions.get(0)  # of a topic that has just been made, it may not be known
                copies = len(first.replicas) if first is not None else -1  # tokens are as safe as the rows
                made = admin.create_topics([NewTopic(tokens, 1, replication_factor=copies, config=_TOKENS)])
                try:
                    made[tokens].result(_ANSWER_SECONDS)
                except library.KafkaException as error:
                    if error.args[0].code() != library.KafkaError.TOPIC_ALREADY_EXISTS:
                        raise OutputUnwritableError(
                            f"the topic '{tokens}', which says what was written, cannot be created: {said(error)}",
                            cure="let this user create topics, or create it: one partition, cleanup.policy=compact",
                        ) from error
        except library.KafkaException as error:
            raise unreachable(self.servers, self.topic, said(error)) from error

    def last(self, writer: str) -> EpochToken | None:
        """The last token of a writer, of a transaction that was committed."""
        library = client_library(_BY)
        settings = self.servers.configuration(
            _BY, group_id="holdfast", enable_auto_commit=False, enable_partition_eof=True,
            auto_offset_reset="earliest", isolation_level="read_committed", fetch_wait_max_ms=50,
        )  # fmt: skip
        consumer = library.Consumer(settings)
        place = library.TopicPartition(token_topic(self.topic), 0)
        try:
            low, end = _extent(consumer, place)
            look, first = _FIRST_LOOK, end
            while first > low:
                first = max(low, end - look)
                if (found := self._newest(consumer, place.topic, first, end, writer)) is not None:
                    return found
                look *= 10
        except library.KafkaException as error:
            raise unreachable(self.servers, self.topic, said(error)) from error
        finally:
            consumer.close()
        return None

    def _newest(self, consumer: Any, topic: str, first: int, end: int, writer: str) -> EpochToken | None:
        library = client_library(_BY)
        consumer.assign([library.TopicPartition(topic, 0, first)])
        found, name, at, until = None, writer.encode(), first, time.monotonic() + _PATIENCE_SECONDS
        while at < end:
            for message in consumer.consume(1_000, 0.05):
                error = message.error()
                if error is None and message.key() == name:
                    found = message.value()
                if error is None or error.code() == library.KafkaError._PARTITION_EOF:
                    at = max(at, message.offset() + (error is None))
            if time.monotonic() > until:
                raise unreachable(self.servers, self.topic, f"its tokens do not come from offset {at} on")
        return None if found is None else _token(topic, found)


@dataclass(slots=True)
class TransactionalWriter:
    """Opened by its first call; fenced when another one is opened with the same id."""

    servers: KafkaServers
    topic: str
    writer: str
    transactional_id: str
    _producer: Any = None
    _known: EpochToken | None = None

    def known(self) -> EpochToken | None:
        """The last token. From now on nobody who was before can add another one."""
        if self._producer is None:
            library = client_library(_BY)
            producer = library.Producer(
                self.servers.configuration(_BY, transactional_id=self.transactional_id, **_SENDING)
            )
            self._patiently(producer.init_transactions, time.monotonic() + _PATIENCE_SECONDS)
            self._known = TokenTopic(self.servers, self.topic).last(self.writer)
            self._producer = producer
        return self._known

    def write(self, rows: Iterable[KafkaRow], token: EpochToken) -> None:
        """All rows and the token, or nothing. Tried again as a whole where brokers were away for a while."""
        self.known()
        library = client_library(_BY)
        sent, until = list(rows), time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                self._transaction(sent, token, until)
                self._known = token
                return
            except library.KafkaException as error:
                inner = error.args[0]
                if _is_fenced(library, inner):
                    raise FencedError(said(inner)) from error
                if not inner.txn_requires_abort() or time.monotonic() > until:
                    raise self._failed(inner) from error
                self._patiently(self._producer.abort_transaction, until)

    def _transaction(self, rows: list[KafkaRow], token: EpochToken, until: float) -> None:
        producer = self._producer
        producer.begin_transaction()
        for row in rows:
            self._send(self.topic, row)
        self._send(token_topic(self.topic), KafkaRow(msgspec.json.encode(token), self.writer.encode(), 0))
        self._patiently(producer.commit_transaction, until)

    def _send(self, topic: str, row: KafkaRow) -> None:
        more: dict[str, Any] = {}
        if row.timestamp is not None:
            more["timestamp"] = row.timestamp
        if row.headers is not None:
            more["headers"] = row.headers
        while True:
            try:
                self._producer.produce(topic, row.value, row.key, row.partition, **more)
                return
            except BufferError:  # the queue is full: messages go out meanwhile
                self._producer.poll(0.1)

    def _patiently(self, call: Any, until: float) -> None:
        """Call what says whether it may be called again. Errors that only an abort ends are raised as they are."""
        library = client_library(_BY)
        while True:
            try:
                call(_ANSWER_SECONDS)
                return
            except library.KafkaException as error:
                inner = error.args[0]
                if _is_fenced(library, inner):
                    raise FencedError(said(inner)) from error
                if inner.txn_requires_abort():
                    raise
                if not inner.retriable() or time.monotonic() > until:
                    raise self._failed(inner) from error

    def _failed(self, error: Any) -> OutputUnwritableError:
        return unreachable(self.servers, self.topic, said(error))


def unreachable(servers: KafkaServers, topic: str, why: str) -> OutputUnwritableError:
    return OutputUnwritableError(
        f"cannot write to topic '{topic}' at {servers}: {why}",
        cure="check that brokers run and that this user may write to the topic and to its tokens"
        f" ('{token_topic(topic)}') in transactions; the epoch was not committed and runs again at the next start",
    )


def _is_fenced(library: Any, error: Any) -> bool:
    codes = library.KafkaError
    return error.code() in (codes._FENCED, codes.PRODUCER_FENCED, codes.INVALID_PRODUCER_EPOCH)


def _token(topic: str, text: bytes) -> EpochToken:
    try:
        return msgspec.json.decode(text, type=EpochToken)
    except msgspec.DecodeError as error:
        raise OutputConflictError(
            f"the topic '{topic}' has something that is not a token: {error}",
            cure="another program writes there: write to another topic, or remove what does not belong there",
        ) from error
