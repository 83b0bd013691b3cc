"""What travels through Spark between stages: batches, not rows.

Every row of the exchange is one message: the partition it goes to, a small head that says what it is, and a blob, which
for data is an Arrow IPC stream. Heads are typed, and sent as JSON. A task's commit (`TaskCommit`) is one of these
messages: stage after stage passes it on to the driver. Through Spark, messages travel as Arrow batches; between the
workers of a crew, as a list in MessagePack.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec
import polars as pl
import pyarrow as pa

from holdfast.epoch.sent_error import SentError
from holdfast.epoch.task_commit import TaskCommit
from holdfast.errors import HoldfastError
from holdfast.formats import MESSAGE_VERSION
from holdfast.stored_json import JsonForm
from holdfast.versioned_message import VersionedMessage

__all__ = [
    "DataHead",
    "Message",
    "RowsHead",
    "TimesHead",
    "commits_of",
    "decode_frame",
    "encode_frame",
    "error_message",
    "pack",
    "packed",
    "raise_errors",
    "rows_for",
    "unpack",
    "unpacked",
    "with_syncing",
]

_SCHEMA = pa.schema([("part", pa.int32()), ("head", pa.binary()), ("blob", pa.binary())])

_PACKER, _UNPACKER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(list[tuple[int, bytes, bytes]])

MOST_BLOB_ROWS = 1_000_000


class DataHead(VersionedMessage, frozen=True, tag="data", tag_field="kind"):
    """Rows or partials for an edge. `sender` (stage, source, task and sequence number) orders them."""

    stage: int
    edge: int
    sender: tuple[int, int, int, int]


class TimesHead(VersionedMessage, frozen=True, tag="times", tag_field="kind"):
    """The greatest event times that a task saw, by source. It goes to every partition of the next stage."""

    task: int
    greatest: Mapping[str, int]


class RowsHead(VersionedMessage, frozen=True, tag="rows", tag_field="kind"):
    """Rows for a sink on the driver. `sender` (stage, task and number) orders them."""

    sink: str
    sender: tuple[int, int, int]
    rows: int


Head = DataHead | TimesHead | RowsHead | SentError | TaskCommit
_HEADS = JsonForm[Head](Head, "a message between the stages of an epoch", MESSAGE_VERSION)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Message:
    part: int
    head: Head
    blob: bytes = b""


def encode_frame(frame: pl.DataFrame) -> bytes:
    sink = io.BytesIO()
    frame.write_ipc_stream(sink)
    return sink.getvalue()


def decode_frame(blob: bytes) -> pl.DataFrame:
    return pl.read_ipc_stream(io.BytesIO(blob))


def pack(messages: Iterable[Message]) -> Iterator[pa.RecordBatch]:
    """Messages as Arrow batches, a few at a time so that large blobs do not pile up."""
    pending: list[Message] = []
    size = 0
    for message in messages:
        pending.append(message)
        size += len(message.blob)
        if size > 16 << 20:
            yield _batch(pending)
            pending, size = [], 0
    yield _batch(pending)


def _batch(messages: list[Message]) -> pa.RecordBatch:
    heads = [_HEADS.encode(message.head).encode() for message in messages]
    columns = [
        pa.array([message.part for message in messages], pa.int32()),
        pa.array(heads, pa.binary()),
        pa.array([message.blob for message in messages], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[Message]:
    for batch in batches:
        parts = batch.column(0).to_pylist()
        for part, head, blob in zip(parts, batch.column(1), batch.column(2), strict=True):
            yield Message(part, _HEADS.decode(head.as_py()), blob.as_py())


def packed(messages: Iterable[Message]) -> bytes:
    """Messages as one sequence of bytes."""
    return _PACKER.encode([(message.part, _HEADS.encode(message.head).encode(), message.blob) for message in messages])


def unpacked(body: bytes) -> list[Message]:
    return [Message(part, _HEADS.decode(head), blob) for part, head, blob in _UNPACKER.decode(body)]


def commits_of(messages: Iterable[Message]) -> list[TaskCommit]:
    """What the tasks of an epoch have done."""
    return [message.head for message in messages if isinstance(message.head, TaskCommit)]


def with_syncing(messages: Iterable[Message], stage: int, task: int, seconds: float) -> list[Message]:
    """What a task has said, where the disk was waited for after its end."""
    said = []
    for message in messages:
        commit = message.head
        if isinstance(commit, TaskCommit) and (commit.stage, commit.task) == (stage, task):
            times = {"seconds": commit.seconds + seconds, "syncing": commit.syncing + seconds}
            message = Message(message.part, msgspec.structs.replace(commit, **times), message.blob)
        said.append(message)
    return said


def rows_for(messages: Iterable[Message], sink: str) -> list[pl.DataFrame]:
    """The rows for a sink on the driver, in their order."""
    mine = [
        (message.head.sender, message.blob)
        for message in messages
        if isinstance(message.head, RowsHead) and message.head.sink == sink
    ]
    return [decode_frame(blob) for _, blob in sorted(mine)]


def error_message(error: HoldfastError) -> Message:
    return Message(0, SentError.of(error))


def raise_errors(messages: Iterable[Message]) -> None:
    """Raise the first error that a task sent."""
    for message in messages:
        if isinstance(message.head, SentError):
            error = message.head.rebuilt()
            raise error from error.__cause__
