"""Kafka's record batches, decoded column by column.

A fetched block is looked at as one array of bytes. Only the starts of records are found one by one, since each lies
behind the one before; all their fields are then decoded for all records at once. What a JSON parser needs is the block
itself, with line breaks in the place of everything that is not a value: no message becomes an object.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from holdfast.connect.kafka.message_block import HEADERS

__all__ = ["DAMAGE", "Fetched", "RecordBlock", "RecordValues", "UnknownBatchError", "decode_batches"]

Numbers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_HEAD = struct.Struct(">qiibIhiqqqhii")
"""Base offset, length, leader epoch, magic, checksum, attributes, last offset delta, first and greatest timestamp,
producer id and epoch, base sequence, count."""
_LENGTH = struct.Struct(">qi")
_MARKER = struct.Struct(">hh")
_COMPRESSION, _TRANSACTIONAL, _CONTROL = 7, 16, 32
_APPENDED = 8
"""Timestamps are those of the broker."""
_XERIAL = b"\x82SNAPPY\x00"
_NEWLINE, _OPENS, _CLOSES = 10, 123, 125


DAMAGE = (struct.error, zlib.error, IndexError, ValueError, OverflowError, OSError)
"""What decoders raise on bytes that are no batches."""


class UnknownBatchError(Exception):
    """Something that is not decoded here."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a fetch gave: messages, and the offset behind all that it covers."""

    block: RecordBlock | None
    behind: int


@dataclass(frozen=True)
class RecordBlock:
    """Messages of one partition in the order of offsets. Places are indexes into `data`; a missing key or value begins
    at -1."""

    partition: int
    data: Bytes
    offsets: Numbers
    times: Numbers
    key_start: Numbers
    key_end: Numbers
    value_start: Numbers
    value_end: Numbers

    def __len__(self) -> int:
        return len(self.offsets)

    def split(self, offset: int) -> tuple[RecordBlock, RecordBlock]:
        """Those before an offset, and the others."""
        at = int(np.searchsorted(self.offsets, offset))
        return self._part(0, at), self._part(at, len(self))

    def _part(self, start: int, stop: int) -> RecordBlock:
        cut = {
            name: getattr(self, name)[start:stop]
            for name in ("offsets", "times", "key_start", "key_end", "value_start", "value_end")
        }
        return replace(self, **cut)

    def values(self) -> RecordValues:
        return RecordValues(self)

    def offset(self, index: int) -> int:
        return int(self.offsets[index])

    def column(self, what: str) -> pl.Series:
        """What a message has besides its value."""
        if what == "key":
            return pl.Series("the key", list(self._texts(self.key_start, self.key_end)), dtype=pl.Binary)
        if what == "timestamp":
            found = pl.Series(self.times).cast(pl.Datetime("ms"))
            return found if (self.times >= 0).all() else found.set(pl.Series(self.times < 0), None)
        if what == "headers":
            headers = [
                [{"name": name, "value": value} for name, value in self._headers(index)] for index in range(len(self))
            ]
            return pl.Series(headers, dtype=HEADERS)
        if what == "partition":
            return pl.Series(np.full(len(self), self.partition, dtype=np.int32))
        return pl.Series(self.offsets)

    @cached_property
    def memory(self) -> memoryview:
        return memoryview(self.data)  # type: ignore[arg-type]

    def _texts(self, starts: Numbers, ends: Numbers) -> Iterator[bytes | None]:
        memory = self.memory
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            yield None if start < 0 else bytes(memory[start:end])

    def _headers(self, index: int) -> Iterator[tuple[str, bytes | None]]:
        data, at = self.memory, int(self.value_end[index])
        count, at = _varint(data, at)
        for _ in range(count):
            size, at = _varint(data, at)
            name = bytes(data[at : at + size]).decode(errors="replace")
            at += size
            size, at = _varint(data, at)
            yield name, None if size < 0 else bytes(data[at : at + size])
            at += max(0, size)


class RecordValues(Sequence[bytes | None]):
    """The values of a block, each as bytes when it is asked for."""

    def __init__(self, block: RecordBlock) -> None:
        self._block = block

    def __len__(self) -> int:
        return len(self._block)

    @overload
    def __getitem__(self, index: int) -> bytes | None: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes | None]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return list(self)[index]
        start = int(self._block.value_start[index])
        return None if start < 0 else bytes(self._block.memory[start : int(self._block.value_end[index])])

    def __iter__(self) -> Iterator[bytes | None]:
        return self._block._texts(self._block.value_start, self._block.value_end)

    def objects(self) -> bytes | None:
        """All values with line breaks between them; None unless each looks like a JSON object on one line."""
        block = self._block
        starts, ends = block.value_start, block.value_end
        if not len(starts) or (ends - starts < 2).any() or (starts < 0).any():
            return None
        first, last = int(starts[0]), int(ends[-1])
        text = block.data[first:last].copy()
        if (text[starts - first] != _OPENS).any() or (text[ends - first - 1] != _CLOSES).any():
            return None
        gaps = starts[1:] - ends[:-1]
        before = np.cumsum(gaps) - gaps
        between = np.repeat(ends[:-1] - first - before, gaps) + np.arange(int(gaps.sum()))
        text[between] = _NEWLINE
        if np.count_nonzero(text == _NEWLINE) != len(between):
            return None
        return text.tobytes()


def decode_batches(partition: int, data: bytes, at: int, aborted: Sequence[tuple[int, int]]) -> Fetched:
    """The messages at `at` or behind it. `aborted` are producers and where their aborted transactions begin."""
    found: list[tuple[int, int, int, int, int]] = []
    parts: list[bytes] = []
    waiting = sorted(aborted, key=lambda one: one[1])
    gone: set[int] = set()
    place, behind, moved = 0, at, 0
    packed = _has_packed(data)
    while len(data) - place >= _LENGTH.size:
        base, length = _LENGTH.unpack_from(data, place)
        if length < _HEAD.size - _LENGTH.size:
            raise UnknownBatchError(f"a batch of {length} bytes")
        end = place + _LENGTH.size + length
        if end > len(data):
            break  # a fetch may end within a batch
        head = _HEAD.unpack_from(data, place)
        if head[3] != 2:
            raise UnknownBatchError(f"a batch of version {head[3]}")
        attributes, producer = head[5], head[9]
        while waiting and waiting[0][1] <= base:
            gone.add(waiting.pop(0)[0])
        body = place + _HEAD.size
        if attributes & _CONTROL:
            if head[12] and _is_abort(data, body):
                gone.discard(producer)
        elif head[12] and not (attributes & _TRANSACTIONAL and producer in gone):
            first = head[8] if attributes & _APPENDED else head[7]
            fixed = 1 if attributes & _APPENDED else 0
            if packed:
                parts.append(_unpacked(attributes & _COMPRESSION, data[body:end]))
                found.append((moved, head[12], base, first, fixed))
                moved += len(parts[-1])
            else:
                found.append((body, head[12], base, first, fixed))
        behind = max(behind, base + head[6] + 1)
        place = end
    if not found:
        return Fetched(None, behind)
    block = _block(partition, b"".join(parts) if packed else data, found)
    return Fetched(block.split(at)[1] if block.offset(0) < at else block, behind)


def _block(partition: int, data: bytes, batches: Sequence[tuple[int, int, int, int, int]]) -> RecordBlock:
    starts: list[int] = []
    for place, count, *_ in batches:
        _find_starts(data, place, count, starts)
    array = np.frombuffer(data, dtype=np.uint8)
    counts = [count for _, count, *_ in batches]
    at = np.array(starts, dtype=np.int64)
    _, at = _varints(array, at)
    delta, at = _varints(array, at + 1)  # behind the attributes
    times = np.repeat(np.array([first for *_, first, _ in batches], dtype=np.int64), counts)
    fixed = np.repeat(np.array([one for *_, one in batches], dtype=np.bool_), counts)
    times = np.where(fixed, times, times + delta)
    delta, at = _varints(array, at)
    offsets = np.repeat(np.array([base for _, _, base, *_ in batches], dtype=np.int64), counts) + delta
    key_start, key_end = _field(array, at)
    value_start, value_end = _field(array, key_end)
    return RecordBlock(
        partition, array, offsets, times, np.where(key_start < 0, -1, key_start), key_end,
        np.where(value_start < 0, -1, value_start), value_end,
    )  # fmt: skip


def _find_starts(data: bytes, at: int, count: int, starts: list[int]) -> None:
    """Where each record of a batch begins: its length is a varint of its own."""
    add = starts.append
    for _ in range(count):
        add(at)
        low = data[at]
        if low < 128:
            at += 1 + (low >> 1)
        elif (high := data[at + 1]) < 128:
            at += 2 + ((low & 127 | high << 7) >> 1)
        else:
            size, at = _varint(data, at)
            at += size


def _field(array: Bytes, at: Numbers) -> tuple[Numbers, Numbers]:
    """Where a key or a value begins, below zero if there is none, and the place behind it."""
    size, at = _varints(array, at)
    return np.where(size < 0, -1, at), at + np.maximum(size, 0)


def _varints(array: Bytes, at: Numbers) -> tuple[Numbers, Numbers]:
    """The signed numbers at these places, and the places behind them."""
    byte = array[at].astype(np.int64)
    found = byte & 127
    behind = at + 1
    more = np.flatnonzero(byte > 127)
    shift = 7
    while len(more):
        byte = array[behind[more]].astype(np.int64)
        found[more] |= (byte & 127) << shift
        behind[more] += 1
        more = more[byte > 127]
        shift += 7
    return (found >> 1) ^ -(found & 1), behind


def _varint(data: Any, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return (number >> 1) ^ -(number & 1), at


def _is_abort(data: bytes, at: int) -> bool:
    """Whether a control record ends its transaction for nothing."""
    _, at = _varint(data, at)
    _, at = _varint(data, at + 1)
    _, at = _varint(data, at)
    _, at = _varint(data, at)
    return bool(_MARKER.unpack_from(data, at)[1] == 0)


def _has_packed(data: bytes) -> bool:
    place = 0
    while len(data) - place >= _HEAD.size:
        head = _HEAD.unpack_from(data, place)
        if head[5] & _COMPRESSION and not head[5] & _CONTROL:
            return True
        place += _LENGTH.size + max(0, head[1])
    return False


def _unpacked(kind: int, body: bytes) -> bytes:
    if kind == 0:
        return body
    if kind == 1:
        return zlib.decompress(body, 31)
    if kind == 2:
        return _snappy(body)
    name = {3: "lz4", 4: "zstd"}.get(kind)
    if name is None:
        raise UnknownBatchError(f"compression {kind}")
    with pa.CompressedInputStream(pa.BufferReader(body), name) as stream:
        return bytes(stream.read())


def _snappy(body: bytes) -> bytes:
    if not body.startswith(_XERIAL):
        return _snappy_block(body)
    at, parts = len(_XERIAL) + 8, []
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        parts.append(_snappy_block(body[at + 4 : at + 4 + size]))
        at += 4 + size
    return b"".join(parts)


def _snappy_block(body: bytes) -> bytes:
    size = shift = at = 0
    while True:
        size |= (body[at] & 127) << shift
        shift += 7
        at += 1
        if body[at - 1] < 128:
            break
    return bytes(pa.decompress(body, decompressed_size=size, codec="snappy", asbytes=True))
