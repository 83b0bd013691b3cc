"""Arrow IPC messages from outside, weighed before anything of them is unpacked.

A message says in its metadata how many rows it has and how long its buffers are, and a compressed buffer begins with
its length when unpacked. So what a message will take in memory is known from the message itself, whatever it unpacks
to. Columns of nulls have rows and no bytes: rows count by what they take in the declared columns. The metadata is a
flatbuffer; the few fields that are needed are read here, every offset checked against the bytes that are there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import polars as pl
import pyarrow as pa

from holdfast.errors import MalformedBodyError, SchemaMismatchError
from holdfast.ingress.weight import element_bytes, value_bytes

__all__ = ["ArrowMessage", "Scale", "encapsulated", "messages_of", "read_message"]

MOST_METADATA = 1 << 20
"""The longest metadata of a message, in bytes: a schema of thousands of columns has less."""
_CONTINUES = b"\xff\xff\xff\xff"
_KINDS: dict[int, Literal["schema", "dictionary", "batch"]] = {1: "schema", 2: "dictionary", 3: "batch"}
_MESSAGE_BYTES = 4096
"""What a message takes beside its buffers: objects of Arrow and Polars."""
_NODE_BYTES = 512
_REMEMBERED, _REMEMBERED_BYTES = 64, 16 << 10
"""So many schemas of so many bytes at most are remembered: a client sends the same one with every batch."""
_CURE = "send Arrow IPC as pyarrow.ipc.new_stream() or polars' write_ipc_stream() make it"


@dataclass(frozen=True, slots=True)
class ArrowMessage:
    """What the metadata of a message says: the lengths of its columns, depth first, and where its buffers lie."""

    kind: Literal["schema", "dictionary", "batch"]
    metadata: memoryview
    body: memoryview
    rows: int = 0
    nodes: tuple[int, ...] = ()
    buffers: tuple[tuple[int, int], ...] = ()
    packed: bool = False
    dictionary: int = 0
    """Which dictionary it is, of those that the schema names, if it is one."""
    delta: bool = False
    """Whether it is added to the dictionary that came before, and does not take its place."""

    def unpacked(self) -> int:
        """How many bytes the buffers have when unpacked. Buffers may lie over each other, and count each."""
        total = 0
        for offset, length in self.buffers:
            if self.packed and length:
                if length < 8:
                    raise _malformed("a compressed buffer does not state its length")
                says = int.from_bytes(self.body[offset : offset + 8], "little", signed=True)
                if says < -1:
                    raise _malformed("a compressed buffer has a negative length")
                total += length - 8 if says == -1 else says
            else:
                total += length
        return total


def read_message(metadata: memoryview, body: memoryview) -> ArrowMessage:
    """The message with this metadata and this body."""
    try:
        return _read(metadata, body)
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise _malformed("the metadata of a message cannot be read") from error


def messages_of(stream: memoryview) -> Iterator[ArrowMessage]:
    """The messages of an IPC stream that is all there, up to its end."""
    at = 0
    while at < len(stream):
        continued = bytes(stream[at : at + 4]) == _CONTINUES
        at += 4 if continued else 0
        size = int.from_bytes(stream[at : at + 4], "little", signed=True)
        at += 4
        if at > len(stream) or not 0 <= size <= len(stream) - at:
            raise _malformed("the stream ends in the middle of a message")
        if not size:
            return
        metadata = stream[at : at + size]
        at += size
        length = _body_length(metadata)
        if not 0 <= length <= len(stream) - at:
            raise _malformed("the stream ends in the middle of a message")
        yield read_message(metadata, stream[at : at + length])
        at += length


def encapsulated(message: ArrowMessage) -> Iterator[memoryview]:
    """The message as it stands in an IPC stream."""
    padding = -len(message.metadata) % 8
    head = _CONTINUES + (len(message.metadata) + padding).to_bytes(4, "little")
    yield memoryview(head + bytes(message.metadata) + b"\0" * padding)
    if len(message.body):
        yield message.body


class Scale:
    """Weighs the messages of one stream, which begins with its schema."""

    def __init__(self, wanted: pl.Schema) -> None:
        self._wanted = wanted
        self._widths: tuple[int, ...] | None = None

    def weigh(self, message: ArrowMessage) -> int:
        """How many bytes of memory the message takes at most, once it is rows of the declared columns."""
        if message.kind == "schema":
            if self._widths is not None:
                raise _malformed("a second schema")
            self._widths = self._read_schema(message)
            return _MESSAGE_BYTES + _NODE_BYTES * len(self._widths)
        if self._widths is None:
            raise _malformed("a stream that does not begin with its schema")
        fixed = _MESSAGE_BYTES + _NODE_BYTES * len(message.nodes) + message.unpacked()
        if message.kind == "dictionary":
            return fixed + 16 * sum(message.nodes)
        if len(message.nodes) != len(self._widths):
            raise _malformed("a record batch that does not fit the schema")
        return fixed + sum(length * width for length, width in zip(message.nodes, self._widths, strict=True))

    def _read_schema(self, message: ArrowMessage) -> tuple[int, ...]:
        """The bytes of a value for each column and each column within it, in the order of a batch's lengths."""
        text = b"".join(encapsulated(message))
        read = _widths if len(text) <= _REMEMBERED_BYTES else _widths.__wrapped__
        return read(text, tuple(self._wanted.items()))


@lru_cache(_REMEMBERED)
def _widths(schema: bytes, wanted: tuple[tuple[str, pl.DataType], ...]) -> tuple[int, ...]:
    try:
        found = pa.ipc.read_schema(pa.py_buffer(schema))
        fields = [(field.name, field.type) for field in found]
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise _malformed("the schema cannot be read") from error
    declared = dict(wanted)
    widths: list[int] = []
    for name, kind in fields:
        dtype = declared.get(name)
        count = _count(kind, name)
        own, inner = (0, 0) if dtype is None else (value_bytes(dtype), element_bytes(dtype))
        widths += [own, *[inner] * (count - 1)]
    return tuple(widths)


def _count(dtype: pa.DataType, column: str) -> int:
    """How many columns a column is, with those within it."""
    if pa.types.is_dictionary(dtype) and (
        pa.types.is_string(dtype.value_type)
        or pa.types.is_large_string(dtype.value_type)
        or pa.types.is_string_view(dtype.value_type)
        or pa.types.is_primitive(dtype.value_type)
    ):
        return 1  # its values come in messages of their own
    if pa.types.is_map(dtype):
        return 2 + _count(dtype.key_type, column) + _count(dtype.item_type, column)
    if isinstance(dtype, pa.BaseExtensionType):
        return _count(dtype.storage_type, column)
    if (
        pa.types.is_dictionary(dtype)
        or pa.types.is_list_view(dtype)
        or pa.types.is_large_list_view(dtype)
        or pa.types.is_run_end_encoded(dtype)
        or pa.types.is_union(dtype)
    ):
        raise SchemaMismatchError(
            f"column '{column}' is {dtype}, an unsupported layout",
            cure="send plain lists and values",
            place=f"column '{column}'",
        )
    return 1 + sum(_count(dtype.field(number).type, column) for number in range(dtype.num_fields))


def _read(metadata: memoryview, body: memoryview) -> ArrowMessage:
    message = _Table.root(metadata)
    kind = _KINDS.get(message.unsigned_byte(1))
    if kind is None:
        raise _malformed("a message that is neither schema, dictionary nor record batch")
    if kind == "schema":
        return ArrowMessage(kind, metadata, body)
    header = message.table(2)
    batch = header.table(1) if kind == "dictionary" else header
    rows = batch.long(0)
    nodes = batch.pairs(1)[:, 0]
    buffers = batch.pairs(2)
    outside = (buffers < 0).any() or (buffers[:, 0] > len(body) - buffers[:, 1]).any()
    if rows < 0 or (nodes < 0).any() or outside:
        raise _malformed("an impossible length")
    where = tuple((int(offset), int(length)) for offset, length in buffers)
    dictionary, delta = (header.long(0), header.unsigned_byte(2) != 0) if kind == "dictionary" else (0, False)
    return ArrowMessage(kind, metadata, body, rows, tuple(map(int, nodes)), where, batch.has(3), dictionary, delta)


def _body_length(metadata: memoryview) -> int:
    try:
        return _Table.root(metadata).long(3)
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise _malformed("the metadata of a message cannot be read") from error


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of a flatbuffer. Reading outside the bytes raises struct.error or ValueError."""

    data: memoryview
    at: int

    @staticmethod
    def root(metadata: memoryview) -> _Table:
        if len(metadata) > MOST_METADATA:
            raise _malformed(f"metadata of {len(metadata):,} bytes, more than {MOST_METADATA:,}")
        (offset,) = struct.unpack_from("<I", metadata, 0)
        return _Table(metadata, offset)

    def _place(self, field: int) -> int | None:
        (back,) = struct.unpack_from("<i", self.data, self.at)
        vtable = self.at - back
        if vtable < 0:
            raise ValueError("a table outside the bytes")
        (size,) = struct.unpack_from("<H", self.data, vtable)
        slot = 4 + 2 * field
        if slot + 2 > size:
            return None
        (offset,) = struct.unpack_from("<H", self.data, vtable + slot)
        return self.at + offset if offset else None

    def has(self, field: int) -> bool:
        return self._place(field) is not None

    def unsigned_byte(self, field: int) -> int:
        place = self._place(field)
        return 0 if place is None else self.data[place]

    def long(self, field: int) -> int:
        place = self._place(field)
        return 0 if place is None else int(struct.unpack_from("<q", self.data, place)[0])

    def table(self, field: int) -> _Table:
        place = self._place(field)
        if place is None:
            raise ValueError("a part is missing")
        return _Table(self.data, place + struct.unpack_from("<I", self.data, place)[0])

    def pairs(self, field: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """A vector of structs of two 64-bit numbers."""
        place = self._place(field)
        if place is None:
            return np.empty((0, 2), np.int64)
        start = place + struct.unpack_from("<I", self.data, place)[0]
        (count,) = struct.unpack_from("<I", self.data, start)
        return np.frombuffer(self.data, "<i8", 2 * count, start + 4).reshape(-1, 2)


def _malformed(what: str) -> MalformedBodyError:
    return MalformedBodyError(f"not readable Arrow IPC: {what}", cure=_CURE)
