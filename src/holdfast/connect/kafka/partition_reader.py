"""Reading a range of offsets of one partition, in a task.

Slices of one partition mostly follow one another in one process. So a reader that has come to the end of its range is
kept, with what the library has fetched beyond it, and goes on there if the next range begins there.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.connect.kafka.fetch_connection import FetchConnection, UnusualError, can_fetch
from holdfast.connect.kafka.kafka_library import KAFKA_LOG, client_library, said
from holdfast.connect.kafka.kafka_servers import ClientSetting, KafkaServers
from holdfast.connect.kafka.message_block import ClientBlock, MessageBlock
from holdfast.connect.kafka.record_batches import RecordBlock
from holdfast.errors import InputError

__all__ = ["ExpiredError", "PartitionRange", "messages_of"]

_MOST_MESSAGES = 100_000
"""At a time: what a chunk has at the most."""
_MOST_READERS = 16
_WAIT_SECONDS = 0.05
_PATIENCE_SECONDS = 120.0
"""Without a message that must be there: a broker may be starting again."""
_BY = "hf.source.kafka()"
_FETCHING: dict[str, ClientSetting] = {
    "group_id": "holdfast",  # asked for by the library; nobody joins it
    "enable_auto_commit": False,
    "enable_partition_eof": True,
    "auto_offset_reset": "error",
    "isolation_level": "read_committed",
    "fetch_message_max_bytes": 4 << 20,
    "fetch_wait_max_ms": 100,
    "fetch_queue_backoff_ms": 5,
    "queued_min_messages": 400_000,
    "queued_max_messages_kbytes": 64 << 10,
    "reconnect_backoff_max_ms": 1_000,
}


class ExpiredError(Exception):
    """The partition does not have the first offsets of the range any more."""


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """Offsets from `start` up to `stop`, which is not among them."""

    topic: str
    partition: int
    start: int
    stop: int

    def __str__(self) -> str:
        return f"topic '{self.topic}', partition {self.partition}, offsets {self.start} to {self.stop}"


@dataclass(slots=True)
class _PartitionReader:
    consumer: Any
    at: int | None = None
    """Where it goes on; None if it was never anywhere."""
    beyond: list[Any] = field(default_factory=list)
    """Messages that were given out beyond the range."""
    end: int = -1
    """Up to where the partition is known to have given all that it has: that is told once."""

    def close(self) -> None:
        self.consumer.close()

    def read(self, wanted: PartitionRange) -> Iterator[MessageBlock]:
        return (ClientBlock(messages) for messages in _range(self, wanted))


@dataclass(slots=True)
class _BlockReader:
    """Fetches blocks as they are stored. The next one is on its way while one is worked on."""

    connection: FetchConnection
    at: int | None = None
    behind: int = 0
    beyond: RecordBlock | None = None

    def close(self) -> None:
        self.connection.close()

    def read(self, wanted: PartitionRange) -> Iterator[MessageBlock]:
        if self.at != wanted.start:
            self.beyond, self.behind = None, wanted.start
        self.at = None
        heard = time.monotonic()
        while True:
            if self.beyond is not None:
                inside, rest = self.beyond.split(wanted.stop)
                self.beyond = rest if len(rest) else None
                if len(inside):
                    yield inside
                    heard = time.monotonic()
            if self.behind >= wanted.stop:
                break
            if time.monotonic() - heard > _PATIENCE_SECONDS:
                raise _nothing_comes(wanted, self.behind, "")
            self.connection.ask(self.behind)
            found = self.connection.answer()
            self.behind, self.beyond = found.behind, found.block
            self.connection.ask(self.behind)
        self.at = wanted.stop


_Reader = _PartitionReader | _BlockReader
_Key = tuple[int, KafkaServers, str, int, bool]
_READERS: OrderedDict[_Key, _Reader] = OrderedDict()
_LOCK = threading.Lock()


def messages_of(servers: KafkaServers, wanted: PartitionRange) -> Iterator[MessageBlock]:
    """The messages of a range, in order, in blocks. Transactions that were aborted are left out."""
    # Tried twice, since a connection that was kept may have been closed meanwhile.
    for fetches in (True, True, False) if can_fetch(servers) else (False,):
        try:
            for block in _messages(servers, wanted, fetches=fetches):
                yield block
                wanted = replace(wanted, start=block.offset(len(block) - 1) + 1)
            return
        except UnusualError as unusual:
            KAFKA_LOG.info("%s: fetching failed: %s", wanted, unusual)


def _messages(servers: KafkaServers, wanted: PartitionRange, *, fetches: bool) -> Iterator[MessageBlock]:
    if wanted.start >= wanted.stop:
        return
    key = (os.getpid(), servers, wanted.topic, wanted.partition, fetches)
    reader = _lent(key, servers)
    whole = False
    try:
        yield from reader.read(wanted)
        whole = True
    finally:
        if whole:
            _give_back(key, reader)
        else:
            reader.close()


def _range(reader: _PartitionReader, wanted: PartitionRange) -> Iterator[list[Any]]:
    library = client_library(_BY)
    end, out_of_range = library.KafkaError._PARTITION_EOF, library.KafkaError._AUTO_OFFSET_RESET
    if reader.at != wanted.start:
        reader.beyond, reader.end = [], -1
        reader.consumer.assign([library.TopicPartition(wanted.topic, wanted.partition, wanted.start)])
    reader.at = None
    at, heard, trouble = wanted.start, time.monotonic(), ""
    while at < wanted.stop:
        coming, reader.beyond = reader.beyond, []
        if not coming and reader.end >= wanted.stop:
            break
        coming = coming or reader.consumer.consume(min(_MOST_MESSAGES, wanted.stop - at), _WAIT_SECONDS)
        failed = [message for message in coming if message.error() is not None]
        # After a new assignment messages come again.
        found = [message for message in coming if message.error() is None and message.offset() >= at]
        if failed:
            for error in (message.error() for message in failed):
                if error.code() == out_of_range:
                    _check_there(reader, wanted)
                    reader.consumer.assign([library.TopicPartition(wanted.topic, wanted.partition, at)])
                if error.code() != end:
                    trouble = said(error)
            reader.end = max([reader.end, *(message.offset() for message in coming if _is(message, end))])
        if found:
            if found[-1].offset() >= wanted.stop:
                inside = next(i for i, message in enumerate(found) if message.offset() >= wanted.stop)
                found, reader.beyond = found[:inside], found[inside:]
                at = wanted.stop
            else:
                at = max(at, found[-1].offset() + 1)
            if found:
                yield found
            heard = time.monotonic()
        elif reader.end < wanted.stop and time.monotonic() - heard > _PATIENCE_SECONDS:
            raise _nothing_comes(wanted, at, trouble)
    reader.at = wanted.stop


def _check_there(reader: _PartitionReader, wanted: PartitionRange) -> None:
    """Whether a partition still has a range. The library says that it has not for other reasons, too."""
    library = client_library(_BY)
    place = library.TopicPartition(wanted.topic, wanted.partition)
    try:
        low, _ = reader.consumer.get_watermark_offsets(place, timeout=_WAIT_SECONDS * 100)
    except library.KafkaException:
        return
    if low > wanted.start:
        raise ExpiredError(str(wanted))


def _nothing_comes(wanted: PartitionRange, at: int, trouble: str) -> InputError:
    return InputError(
        f"{wanted}: nothing has arrived from offset {at} on for {_PATIENCE_SECONDS:.0f} s"
        f"{f'; the client says: {trouble}' if trouble else ''}",
        cure="check that the brokers run and can be reached from the machines that run tasks; then start again",
    )


def _is(message: Any, code: int) -> bool:
    return message.error() is not None and message.error().code() == code


def _lent(key: _Key, servers: KafkaServers) -> _Reader:
    with _LOCK:
        if (known := _READERS.pop(key, None)) is not None:
            return known
    if key[4]:
        return _BlockReader(FetchConnection(servers, key[2], key[3]))
    return _PartitionReader(client_library(_BY).Consumer(servers.configuration(_BY, **_FETCHING)))


def _give_back(key: _Key, reader: _Reader) -> None:
    with _LOCK:
        before = _READERS.pop(key, None)
        _READERS[key] = reader
        left = [before] if before is not None else []
        while len(_READERS) > _MOST_READERS:
            left.append(_READERS.popitem(last=False)[1])
    for one in left:
        one.close()


@atexit.register
def _close_all() -> None:
    with _LOCK:
        mine = [reader for key, reader in _READERS.items() if key[0] == os.getpid()]
        _READERS.clear()
    for reader in mine:
        reader.close()
