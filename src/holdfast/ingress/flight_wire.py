"""Arrow Flight on the wire: the one message of the protocol that rows come in, and the stream of Arrow in its messages.

A `FlightData` is a protobuf of four fields: descriptor, metadata of an Arrow message, metadata of the application, and
the body of the Arrow message. It is taken apart without copying. `ArrowFeed` puts the Arrow messages together again,
each weighed before it is unpacked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from holdfast.connect.formats.file_format import first_line
from holdfast.errors import MalformedBodyError
from holdfast.ingress.arrow_messages import ArrowMessage, Scale, encapsulated, read_message

__all__ = ["ArrowFeed", "FlightData", "put_result"]

_MOST_FIELDS = 64
_DESCRIPTOR, _HEADER, _APPLICATION, _BODY = 1, 2, 3, 1000
_BYTES_OF_WIRE_TYPE = {1: 8, 5: 4}


@dataclass(frozen=True, slots=True)
class FlightData:
    """One message of a call. Parts that are not there are empty."""

    descriptor: memoryview
    header: memoryview
    application: memoryview
    body: memoryview

    @staticmethod
    def parse(message: bytes) -> FlightData:
        parts = dict.fromkeys((_DESCRIPTOR, _HEADER, _APPLICATION, _BODY), memoryview(b""))
        for number, (field, value) in enumerate(_fields(memoryview(message))):
            if number >= _MOST_FIELDS:
                raise _malformed("it has too many fields")
            if field in parts:
                parts[field] = value
        return FlightData(*parts.values())


def put_result(metadata: bytes) -> bytes:
    """The answer to a record batch."""
    return b"\x0a" + _varint(len(metadata)) + metadata


class ArrowFeed:
    """The Arrow stream of one call, message by message."""

    def __init__(self, wanted: pl.Schema) -> None:
        self._scale = Scale(wanted)
        self._file = _MessageParts()
        self._dictionaries: dict[int, int] = {}
        self._reader: pa.ipc.RecordBatchStreamReader | None = None

    def add(self, data: FlightData) -> tuple[ArrowMessage, int]:
        """Take the next message in; returns it with what it takes in memory once it is unpacked."""
        message = read_message(data.header, data.body)
        weight = self._scale.weigh(message)
        self._file.parts.extend(encapsulated(message))
        if message.kind == "dictionary":
            before = self._dictionaries.get(message.dictionary, 0) if message.delta else 0
            self._dictionaries[message.dictionary] = before + weight
        return message, weight

    @property
    def kept(self) -> int:
        """What the dictionaries take, which stay in memory as long as the call goes on."""
        return sum(self._dictionaries.values())

    def unpack(self) -> pa.RecordBatch:
        """The record batch that was added last."""
        try:
            if self._reader is None:
                self._reader = pa.ipc.open_stream(pa.PythonFile(self._file, mode="r"))
            return self._reader.read_next_batch()
        except (pa.ArrowException, OSError, ValueError, StopIteration) as error:
            raise MalformedBodyError(
                f"not readable Arrow: {first_line(error)}", cure="send valid Arrow data"
            ) from error


class _MessageParts:
    """Reads what was put in, as a file does, without copying where a part is asked for whole."""

    closed = False

    def __init__(self) -> None:
        self.parts: deque[memoryview] = deque()

    def read(self, size: int) -> bytes | memoryview:
        if not self.parts or size <= 0:
            return b""
        first = self.parts.popleft()
        if len(first) > size:
            self.parts.appendleft(first[size:])
        return first[:size]

    def readable(self) -> bool:
        return True


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The fields of a protobuf that hold bytes."""
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        kind = tag & 7
        if kind == 0:
            _, at = _read_varint(message, at)
        elif kind == 2:
            size, at = _read_varint(message, at)
            if size > len(message) - at:
                raise _malformed("a field is longer than the message")
            yield tag >> 3, message[at : at + size]
            at += size
        elif kind in _BYTES_OF_WIRE_TYPE:
            yield 0, message[:0]
            at += _BYTES_OF_WIRE_TYPE[kind]
        else:
            raise _malformed("a field is of an unknown kind")


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _malformed("a number does not end")


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _malformed(what: str) -> MalformedBodyError:
    return MalformedBodyError(f"the message is not FlightData: {what}", cure="send what an Arrow Flight client sends")
