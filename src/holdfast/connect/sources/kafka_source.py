"""A topic of Kafka: slices are ranges of offsets, read in the tasks.

The position is the next offset of every partition. Offsets are planned on the driver, up to what readers of committed
messages may see, and a range of them always gives the same messages: that is what exactly-once rests on. A partition
that appears while the pipeline runs is read from its first message on.

Partitions have no order among each other: no row of an epoch makes another one late, and the watermark moves with the
greatest time of all partitions. So a partition where nothing comes does not hold it up, and `lateness` must cover how
far partitions are apart. While there is much to catch up with, all partitions come to their ends together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import replace
from typing import Any, Literal, get_args

import polars as pl

from holdfast.connect.base import DEAD_LETTER_SCHEMA, BadRows, Chunk, Position, Slice, Source, Take, check_bad_rows
from holdfast.connect.kafka.kafka_servers import KafkaServers, as_servers, check_topic
from holdfast.connect.kafka.message_block import MessageBlock
from holdfast.connect.kafka.message_columns import MessageColumns
from holdfast.connect.kafka.message_format import BytesMessages, JsonMessages, MessageFormat
from holdfast.connect.kafka.partition_reader import ExpiredError, PartitionRange, messages_of
from holdfast.connect.kafka.start_position import Start, checked_start, first_offsets
from holdfast.connect.kafka.topic_watch import Extents, TopicWatch, UnreachableError
from holdfast.connect.schema import AnySchema, as_schema
from holdfast.connect.source_need import SourceNeed
from holdfast.connect.sources.offsets import cut_evenly
from holdfast.errors import BadRowError, DeclarationError, InputError, WrongTypeError
from holdfast.plurals import counted

__all__ = ["Expired", "KafkaSource", "MessageFormatName", "as_format", "kafka"]

Expired = Literal["fail", "skip"]
MessageFormatName = Literal["json", "bytes"]
_FORMATS: dict[str, MessageFormat] = {"json": JsonMessages(), "bytes": BytesMessages()}
_SHOWN = 200


class KafkaSource(Source):
    """See `kafka`."""

    keeps = True
    in_order = False

    def __init__(
        self,
        servers: KafkaServers,
        topic: str,
        schema: pl.Schema,
        *,
        format: MessageFormat,
        columns: MessageColumns,
        start: str | int | dict[int, int],
        expired: Expired,
        bad_rows: BadRows,
    ) -> None:
        self.servers = servers
        self.topic = topic
        self.schema = schema
        self.format = format
        self.columns = columns
        self.begin = start
        self.expired = expired
        self.bad_rows = bad_rows
        self._watch = TopicWatch(servers, topic)
        self._silent: str | None = None
        """What the library says while no broker answers."""
        self._lost: dict[int, tuple[int, int]] = {}
        """Offsets that had expired and were passed over."""
        self._pinned: dict[int, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_watch": TopicWatch(self.servers, self.topic)}  # no open handles

    def start(self) -> Position:
        return {"base": 0, "offsets": None}

    def narrowed(self, need: SourceNeed) -> KafkaSource:
        other = copy(self)
        other.schema = pl.Schema({name: self.schema[name] for name in need.columns})
        return other

    def take(self, position: Position, rows: int, pieces: int) -> Take:
        try:
            found = self._take(position, max(1, rows), pieces)
        except UnreachableError as why:
            if not self._watch.reached:
                raise self._watch.unreachable(why) from None
            self._silent = str(why)
            return Take((), position)
        self._silent = None
        return found

    def _take(self, position: Position, rows: int, pieces: int) -> Take:
        known, base = position["offsets"], int(position["base"])
        if known is None:
            # What "latest" means is settled once: rows that come before the first epoch are not passed over.
            self._pinned = first_offsets(self.begin, self._watch) if self._pinned is None else self._pinned
            at = dict(self._pinned)
        else:
            at = {int(partition): offset for partition, offset in known.items()}
        extents = self._watch.look()
        for partition in sorted(at.keys() - extents.keys()):
            raise InputError(
                f"topic '{self.topic}' has no partition {partition} any more, which was read up to offset"
                f" {at[partition]}: it was recreated with fewer partitions",
                cure="give the pipeline another name, so that it starts from the beginning, or put the topic back",
            )
        at = self._checked({partition: at.get(partition, low) for partition, (low, _) in extents.items()}, extents)
        stops = _stops(at, extents, rows)
        ranges = [(partition, at[partition], stop) for partition, stop in stops.items()]
        total = sum(stop - start for _, start, stop in ranges)
        if not total and (known is not None or self.begin == "earliest"):
            return Take((), position)
        slices = []
        for partition, start, stop in ranges:
            parts = max(1, round(pieces * (stop - start) / total)) if total and len(ranges) < pieces else 1
            # A partition without rows has its slice, too: so the others stay with the tasks that know them.
            for low, high in list(cut_evenly(start, stop, parts)) or [(start, stop)]:
                slices.append(Slice(base, high - low, {"partition": partition, "start": low, "stop": high}))
                base += high - low
        behind = {str(partition): stop for partition, stop in sorted(stops.items())}
        return Take(tuple(slices), {"base": base, "offsets": behind})

    def _checked(self, at: dict[int, int], extents: Extents) -> dict[int, int]:
        """The offsets to go on from, which the partitions must have."""
        for partition, offset in at.items():
            low, end = extents[partition]
            if offset > end:
                raise InputError(
                    f"topic '{self.topic}', partition {partition} ends at offset {end}, but was read up to {offset}: it"
                    " was recreated, or its last messages were lost",
                    cure="give the pipeline another name, so that it starts from the beginning, or put the topic back",
                )
            if offset < low:
                if self.expired == "fail":
                    raise InputError(
                        f"topic '{self.topic}', partition {partition}: {counted(low - offset, 'message')} from offset"
                        f" {offset} on expired before they were read; it begins at {low} now",
                        cure="to continue without them, declare kafka(..., expired='skip'); to lose none, let the topic"
                        " keep messages for longer (retention.ms)",
                    )
                self._lost[partition] = (offset, low)
                at[partition] = low
        return at

    def read(self, piece: Slice) -> Iterator[Chunk]:
        where = piece.where
        wanted = PartitionRange(self.topic, int(where["partition"]), int(where["start"]), int(where["stop"]))
        try:
            for messages in messages_of(self.servers, wanted):
                yield self._chunk(messages, wanted)
                wanted = replace(wanted, start=messages.offset(len(messages) - 1) + 1)
        except ExpiredError:
            if self.expired == "fail":
                raise InputError(
                    f"{wanted}: messages expired after they were planned and before they were read",
                    cure="plan the epoch again with expired='skip' (`holdfast replan`), which skips them,"
                    " and let the topic keep messages for longer (retention.ms)",
                ) from None
            yield from self._left(wanted)

    def _left(self, wanted: PartitionRange) -> Iterator[Chunk]:
        """What is still there of a range whose first messages have expired."""
        watch = TopicWatch(self.servers, self.topic)
        try:
            low = watch.look()[wanted.partition][0]
        except UnreachableError as why:
            raise watch.unreachable(why) from None
        left = PartitionRange(wanted.topic, wanted.partition, min(max(low, wanted.start), wanted.stop), wanted.stop)
        for messages in messages_of(self.servers, left):
            yield self._chunk(messages, left)

    def _chunk(self, messages: MessageBlock, wanted: PartitionRange) -> Chunk:
        more, bad = self.columns.read(messages, self.schema)
        names = {series.name for series in more}
        decoded = self.format.decode(
            messages.values(), pl.Schema({name: dtype for name, dtype in self.schema.items() if name not in names})
        )
        frame = decoded.frame
        if bad:  # those whose value is bad, too, are not in the frame
            rest = [index for index in range(len(messages)) if index not in decoded.bad]
            frame = frame.filter(pl.Series([index not in bad for index in rest], dtype=pl.Boolean))
        bad |= decoded.bad
        if more:
            metadata = pl.DataFrame(more)
            if bad:
                metadata = metadata.filter(pl.Series([index not in bad for index in range(len(messages))]))
            frame = frame.hstack(metadata) if frame.width else metadata
        place = f"topic '{self.topic}', partition {wanted.partition}"
        return Chunk(frame.select(self.schema.names()), bad=self._letters(place, messages, bad), place=place)

    def _letters(self, place: str, messages: MessageBlock, bad: Mapping[int, str]) -> pl.DataFrame | None:
        """The messages that do not fit, as dead letters; an error if there must be none."""
        if not bad:
            return None
        rows = []
        values = messages.values()
        for index, reason in sorted(bad.items()):
            text, offset = (values[index] or b"").decode(errors="replace"), messages.offset(index)
            if self.bad_rows == "fail":
                more = f" ({len(bad) - 1} more near it)" if len(bad) > 1 else ""
                raise BadRowError(
                    f"{place}, offset {offset}: {reason}{more}; the value is: {text[:_SHOWN]}",
                    cure="correct the schema or the format, or declare kafka(..., bad_rows='skip') to drop such"
                    " messages or bad_rows='dead_letter' to divert them",
                )
            rows.append((self.describe(), f"{place}, offset {offset}", reason, text))
        return pl.DataFrame(rows, schema=DEAD_LETTER_SCHEMA, orient="row")

    def lag(self, position: Position) -> int | None:
        known = position["offsets"]
        return None if known is None else self._watch.lag({int(number): at for number, at in known.items()})

    def awaits(self, position: Position) -> bool:
        return self._silent is not None

    def notices(self, position: Position) -> tuple[str, ...]:
        notices = [
            f"topic '{self.topic}', partition {partition}: offsets {first} to {low} had expired and were skipped"
            for partition, (first, low) in self._lost.items()
        ]
        if self._silent is not None:
            notices.append(f"no broker answers at {self.servers} about topic '{self.topic}': {self._silent}")
        return tuple(notices)

    def describe(self) -> str:
        return f"{self.format.name} messages of the Kafka topic {self.topic} at {self.servers}"


def _stops(at: Mapping[int, int], extents: Extents, rows: int) -> dict[int, int]:
    """Where each partition is read up to: of so many rows, each has a share by how much it has left, so that all
    of them come to their ends together."""
    waiting = {partition: extents[partition][1] - offset for partition, offset in at.items()}
    total = sum(waiting.values())
    if total <= rows:
        return {partition: offset + waiting[partition] for partition, offset in at.items()}
    stops, passed, given = {}, 0, 0
    for partition, offset in at.items():
        passed += waiting[partition]
        share = rows * passed // total - given
        given += share
        stops[partition] = offset + share
    return stops


def as_format(by: str, given: MessageFormatName | MessageFormat) -> MessageFormat:
    """A format by its name, or as it was made."""
    if isinstance(given, MessageFormat):
        return given
    if given not in _FORMATS:
        raise DeclarationError(
            f"{by}: unknown format={given!r}", cure="use 'json', 'bytes', hf.kafka.avro(...) or hf.kafka.protobuf(...)"
        )
    return _FORMATS[given]


def kafka(
    servers: str | KafkaServers,
    topic: str,
    schema: AnySchema,
    *,
    format: MessageFormatName | MessageFormat = "json",
    start: Start = "earliest",
    key: str | None = None,
    timestamp: str | None = None,
    headers: str | None = None,
    partition: str | None = None,
    offset: str | None = None,
    expired: Expired = "fail",
    bad_rows: BadRows = "fail",
) -> KafkaSource:
    """Read a topic of Kafka, exactly once.

    `servers` are addresses of brokers, or what `hf.kafka.servers(...)` made. `format` says what the values of messages
    are: "json" objects, plain "bytes" in one column, `hf.kafka.avro(...)` or `hf.kafka.protobuf(...)`. A message
    without a value is a row of nulls.

    `start` is where a new pipeline begins: "earliest", "latest", a time (datetime or text, in UTC if it names no zone),
    or offsets by partition. `key`, `timestamp`, `headers`, `partition` and `offset` name columns for what a message
    has besides its value; the key is Binary unless the schema has it as String.

    Messages that expired before they were read end the run; `expired="skip"` goes on with the first that is there.
    `bad_rows` says what happens to a message that does not fit, and to a row whose event time is missing or not
    allowed: "fail", "skip" or "dead_letter". Partitions have no order among each other: the watermark goes by all of
    them together, and `lateness` must cover how far they are apart.
    """
    by = "hf.source.kafka()"
    brokers = as_servers(by, servers)
    wanted = as_schema(schema, by, empty=True)
    names = {"key": key, "timestamp": timestamp, "headers": headers, "partition": partition, "offset": offset}
    columns = MessageColumns.of(by, wanted, names)
    if expired not in get_args(Expired):
        raise DeclarationError(f"{by}: unknown expired={expired!r}", cure=f"use one of {', '.join(get_args(Expired))}")
    whole = pl.Schema({**wanted, **columns.schema})
    if not whole:
        raise WrongTypeError(f"{by}: the schema has no column", cure="declare the columns that messages have")
    chosen = as_format(by, format)
    chosen.check_schema(by, pl.Schema({name: dtype for name, dtype in whole.items() if name not in columns.schema}))
    return KafkaSource(
        brokers,
        check_topic(by, topic),
        whole,
        format=chosen,
        columns=columns,
        start=checked_start(by, start),
        expired=expired,
        bad_rows=check_bad_rows(by, bad_rows),
    )
