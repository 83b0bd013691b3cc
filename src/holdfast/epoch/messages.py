"""What travels through Spark between stages: batches, not rows.

Every row of the exchange is one message: the partition it goes to, a small JSON head that says what it is, and a
blob, which for data is an Arrow IPC stream. Kinds of heads:
- `data`: rows or partials for an edge; with the source, task and sequence number that order them.
- `times`: the greatest event time a task saw of a source; goes to every partition of the next stage.
- `commit`: what a task has done: state, receipts, counters. Passed on from stage to stage to the driver.
- `rows`: rows for a sink on the driver.
- `error`: a typed error; it ends the epoch without making Spark try the task again.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

from holdfast.errors import HoldfastError

__all__ = [
    "Message",
    "decode_frame",
    "encode_frame",
    "error_message",
    "pack",
    "raise_errors",
    "unpack",
]

_SCHEMA = pa.schema([("part", pa.int32()), ("head", pa.binary()), ("blob", pa.binary())])

MOST_BLOB_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class Message:
    part: int
    head: dict[str, Any]
    blob: bytes = b""

    @property
    def kind(self) -> str:
        return str(self.head["kind"])


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
    heads = [json.dumps(message.head).encode() for message in messages]
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
            yield Message(part, json.loads(head.as_py()), blob.as_py())


def error_message(error: HoldfastError) -> Message:
    return Message(0, {"kind": "error"}, pickle.dumps(error))


def raise_errors(messages: Iterable[Message]) -> None:
    """Raise the first error that a task sent."""
    for message in messages:
        if message.kind == "error":
            error = pickle.loads(message.blob)
            assert isinstance(error, HoldfastError)
            raise error
