"""A transactional sink: rows become messages of a Kafka topic, exactly once for readers of committed messages.

The rows of an epoch and its token are one transaction of Kafka (`kafka/transactional_writer.py`), made before the
commit of the epoch. If the process dies between the two, the epoch comes again, with the same rows, and the token tells
that they are there. Rows come through the driver, since a transaction belongs to one producer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from holdfast.connect.base import DriverSink, Owner, Position
from holdfast.connect.kafka.kafka_servers import KafkaServers, as_servers, check_topic
from holdfast.connect.kafka.message_block import HEADERS
from holdfast.connect.kafka.message_format import BytesMessages, MessageFormat
from holdfast.connect.kafka.transactional_writer import (
    EpochToken,
    FencedError,
    KafkaRow,
    TokenTopic,
    TransactionalWriter,
    token_topic,
)
from holdfast.connect.sources.kafka_source import MessageFormatName, as_format
from holdfast.errors import DeclarationError, LeaseLostError, OutputConflictError, UnknownColumnError, WrongTypeError

__all__ = ["KafkaSink", "kafka"]

_BY = "hf.sink.kafka()"
_OTHER_SECONDS = 10.0
"""How long who was fenced waits for the one who did it to write the same epoch."""
_CURE = "give another writer=..., or write to another topic"


@dataclass(slots=True)
class KafkaSink(DriverSink):
    """See `kafka`."""

    servers: KafkaServers
    topic: str
    format: MessageFormat
    columns: Mapping[str, str]
    """The columns for what a message has besides its value, by what they hold."""
    writer: str | None
    guarantee: str = field(
        default="exactly once for readers of committed messages: an epoch's rows and its token are one transaction",
        init=False,
    )
    _owner: Owner | None = field(default=None, init=False, repr=False)
    _open: TransactionalWriter | None = field(default=None, init=False, repr=False)

    @property
    def place(self) -> str | None:
        """By default a writer has the name of its sink, which no other sink has."""
        return None if self.writer is None else f"writer '{self.writer}' of topic {self.topic} at {self.servers}"

    def accept(self, schema: pl.Schema) -> None:
        for what, column in self.columns.items():
            if column not in schema:
                raise UnknownColumnError(
                    f"{_BY}: {what}='{column}' is not a column; the columns are {', '.join(schema)}",
                    cure="name one of these, or add it before the sink",
                )
            if not _FITS[what](schema[column]):
                raise WrongTypeError(
                    f"{_BY}: {what}='{column}' is {schema[column]}", cure=f"cast it before the sink to {_CASTS[what]}"
                )
        self.format.check_schema(_BY, pl.Schema({name: schema[name] for name in self._of_value(schema.names())}))

    def _of_value(self, names: list[str]) -> list[str]:
        """The columns that are in the value. Plain bytes are one column, which is no other."""
        alone = isinstance(self.format, BytesMessages)
        apart = {column for what, column in self.columns.items() if alone or what in ("headers", "partition")}
        return [name for name in names if name not in apart]

    def attach(self, owner: Owner) -> None:
        self._owner, self._open = owner, None

    def check(self, committed: int) -> None:
        """Refuse a topic that is ahead: it holds results of another history of the pipeline."""
        TokenTopic(self.servers, self.topic).prepare()
        known = self._seen()
        if known is not None and known.epoch > committed + 1:
            raise OutputConflictError(
                f"topic '{self.topic}' has results up to epoch {known.epoch} by '{self._writer}'; this store has"
                f" committed {committed}",
                cure=_CURE,
            )

    def delivered(self) -> int | None:
        known = self._seen()
        return None if known is None else known.epoch

    def deliver(self, epoch: int, rows: pl.DataFrame, vector: Mapping[str, Position]) -> None:
        """Write an epoch, unless it is there."""
        assert self._owner is not None
        token = EpochToken(self._owner.store, epoch, json.loads(json.dumps(vector)))
        if self._open is None:
            name = f"holdfast.{self._owner.store}.{self._writer}"
            self._open = TransactionalWriter(self.servers, self.topic, self._writer, name)
        try:
            if not self._has(self._checked(self._open.known()), token):
                self._open.write(self._messages(rows), token)
        except FencedError as error:
            self._await_other(token, error)

    def _await_other(self, token: EpochToken, error: FencedError) -> None:
        """Another host has opened the writer. If it writes the same epoch, all is well; if not, this one does not run
        the pipeline any more. Nothing is written here again: what another one does then cannot be known."""
        until = time.monotonic() + _OTHER_SECONDS
        while not self._has(self._seen(), token):
            if time.monotonic() > until:
                raise LeaseLostError(
                    f"another process writes to topic '{self.topic}' as '{self._writer}': {error}",
                    cure="nothing to do if another host has taken over; otherwise give another writer=...",
                ) from error
            time.sleep(0.2)

    def _has(self, known: EpochToken | None, token: EpochToken) -> bool:
        """Whether the topic has the epoch of a token. If it is the last one, it depends on the same rows."""
        if known is None or known.epoch < token.epoch:
            return False
        if known.epoch == token.epoch and known.vector != token.vector:
            raise OutputConflictError(
                f"topic '{self.topic}' has epoch {known.epoch} of '{self._writer}', which depends on {known.vector};"
                f" epoch {token.epoch} depends on {token.vector}",
                cure=f"another program writes under this name: {_CURE}",
            )
        return True

    def _seen(self) -> EpochToken | None:
        """The last token, without fencing anybody."""
        return self._checked(TokenTopic(self.servers, self.topic).last(self._writer))

    def _checked(self, known: EpochToken | None) -> EpochToken | None:
        assert self._owner is not None
        if known is not None and known.store != self._owner.store:
            raise OutputConflictError(
                f"'{self._writer}' writes to topic '{self.topic}' from store {known.store}; this is store"
                f" {self._owner.store}",
                cure=_CURE,
            )
        return known

    @property
    def _writer(self) -> str:
        assert self._owner is not None
        return self.writer or f"{self._owner.pipeline}.{self._owner.sink}"

    def _messages(self, rows: pl.DataFrame) -> Iterator[KafkaRow]:
        values = self.format.encode(rows.select(self._of_value(rows.columns)), self.topic)
        parts = {what: _PARTS[what](rows[column]) for what, column in self.columns.items()}
        names = list(parts)
        if not names:
            return map(KafkaRow, values)
        found = zip(values, *parts.values(), strict=True)
        return (KafkaRow(value, **dict(zip(names, more, strict=True))) for value, *more in found)

    def describe(self) -> str:
        return f"{self.format.name} messages to the Kafka topic {self.topic} at {self.servers}"


def kafka(
    servers: str | KafkaServers,
    topic: str,
    *,
    format: MessageFormatName | MessageFormat = "json",
    key: str | None = None,
    timestamp: str | None = None,
    headers: str | None = None,
    partition: str | None = None,
    writer: str | None = None,
) -> KafkaSink:
    """Write rows to a topic of Kafka, exactly once for readers of committed messages (`read_committed`).

    `servers` are addresses of brokers, or what `hf.kafka.servers(...)` made. `format` is "json", "bytes" (one column),
    `hf.kafka.avro(...)` or `hf.kafka.protobuf(...)`. `key`, `timestamp`, `headers` and `partition` name columns that
    the message gets; key and timestamp stay in the value, too, unless it is plain bytes.

    The rows of an epoch are one transaction, with a token in the topic `<topic>-holdfast`, which is made if it is not
    there. `writer` tells apart those who write to the same topic; by default it is the name of pipeline and sink. A
    process that was replaced by another one cannot write any more.
    """
    named = {"key": key, "timestamp": timestamp, "headers": headers, "partition": partition}
    if writer is not None and not writer:
        raise DeclarationError(f"{_BY}: the writer has no name", cure="name it, or leave writer= out")
    check_topic(_BY, token_topic(check_topic(_BY, topic)))
    columns = {what: column for what, column in named.items() if column is not None}
    return KafkaSink(as_servers(_BY, servers), topic, as_format(_BY, format), columns, writer)


def _bytes(column: pl.Series) -> list[Any]:
    return column.cast(pl.Binary).to_list()


def _milliseconds(column: pl.Series) -> list[Any]:
    return (column.dt.epoch("ms") if column.dtype == pl.Datetime else column).to_list()


def _pairs(column: pl.Series) -> list[Any]:
    return [[(one["name"], one["value"]) for one in headers or ()] for headers in column.to_list()]


def _partitions(column: pl.Series) -> list[Any]:
    """Of a row that names none, its key decides, as of a `KafkaRow` that says nothing."""
    return column.cast(pl.Int64).fill_null(-1).to_list()


_PARTS = {"key": _bytes, "timestamp": _milliseconds, "headers": _pairs, "partition": _partitions}
_FITS: dict[str, Any] = {
    "key": lambda dtype: isinstance(dtype, pl.String | pl.Binary),
    "timestamp": lambda dtype: isinstance(dtype, pl.Datetime | pl.Int64),
    "headers": lambda dtype: dtype == HEADERS,
    "partition": lambda dtype: dtype.is_integer(),
}
_CASTS = {
    "key": "String or Binary",
    "timestamp": "Datetime, or milliseconds as Int64",
    "headers": str(HEADERS),
    "partition": "an integer",
}
