"""The messages of PostgreSQL's logical replication (`pgoutput`, protocol 1): from bytes to values, nothing else."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

__all__ = [
    "UNCHANGED",
    "Change",
    "Message",
    "Relation",
    "TransactionBegin",
    "TransactionEnd",
    "Truncate",
    "moment",
    "parse_message",
]  # fmt: skip

UNCHANGED = object()
"""Stands for a large value that an update left as it was, and that is not sent."""

Values = list[bytes | object | None]
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_BEGIN = struct.Struct(">QqI")
_COMMIT = struct.Struct(">BQQq")
_SHORT, _LONG = struct.Struct(">H"), struct.Struct(">I")
_OPS = {0x49: "insert", 0x55: "update", 0x44: "delete"}
_OLD = (0x4B, 0x4F)


@dataclass(frozen=True, slots=True)
class TransactionBegin:
    """A transaction begins, whose commit stands at this place of the log."""

    lsn: int
    time: int


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """It has ended; the log goes on at `end`."""

    lsn: int
    end: int


@dataclass(frozen=True, slots=True)
class Relation:
    """What a table is called and which columns it has, from here on."""

    number: int
    schema: str
    table: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A row: as it is now, and as it was, or its key. Values are text."""

    op: str
    relation: int
    new: Values | None
    old: Values | None


@dataclass(frozen=True, slots=True)
class Truncate:
    relations: tuple[int, ...]


Message = TransactionBegin | TransactionEnd | Relation | Change | Truncate


def parse_message(data: bytes) -> Message | None:
    """A message, or None if it is of a kind that says nothing about rows. Raises ValueError where it is none."""
    try:
        return _parsed(data)
    except (struct.error, IndexError) as error:
        raise ValueError(f"not a message of pgoutput: {error}") from error


def _parsed(data: bytes) -> Message | None:
    kind = data[0]
    if kind in _OPS:
        return _change(data)
    if kind == 0x42:
        lsn, time, _ = _BEGIN.unpack_from(data, 1)
        return TransactionBegin(lsn, time)
    if kind == 0x43:
        _, lsn, end, _ = _COMMIT.unpack_from(data, 1)
        return TransactionEnd(lsn, end)
    if kind == 0x52:
        return _relation(data)
    if kind == 0x54:
        (count,) = _LONG.unpack_from(data, 1)
        return Truncate(struct.unpack_from(f">{count}I", data, 6))
    if kind in b"OYM":  # where a transaction came from, types, messages of programs
        return None
    raise ValueError(f"a message of kind {chr(kind)!r} is not one of protocol 1")


def _change(data: bytes) -> Change:
    (relation,) = _LONG.unpack_from(data, 1)
    at, old, new = 5, None, None
    if data[at] in _OLD:
        old, at = _tuple(data, at + 1)
    if at < len(data):
        if data[at] != 0x4E:
            raise ValueError("not a message of pgoutput: a row without its mark")
        new, at = _tuple(data, at + 1)
    return Change(_OPS[data[0]], relation, new, old)


def _tuple(data: bytes, at: int) -> tuple[Values, int]:
    (count,) = _SHORT.unpack_from(data, at)
    at += 2
    values: Values = []
    for _ in range(count):
        kind = data[at]
        at += 1
        if kind == 0x74:
            (size,) = _LONG.unpack_from(data, at)
            at += 4
            if at + size > len(data):
                raise ValueError("not a message of pgoutput: a value is cut off")
            values.append(data[at : at + size])
            at += size
        elif kind == 0x6E:
            values.append(None)
        elif kind == 0x75:
            values.append(UNCHANGED)
        else:
            raise ValueError(f"not a message of pgoutput: a value of kind {chr(kind)!r}")
    return values, at


def _relation(data: bytes) -> Relation:
    (number,) = _LONG.unpack_from(data, 1)
    schema, at = _text(data, 5)
    table, at = _text(data, at)
    (count,) = _SHORT.unpack_from(data, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        name, at = _text(data, at + 1)
        at += 8
        columns.append(name)
    return Relation(number, schema or "pg_catalog", table, tuple(columns))


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(b"\0", at)
    return data[at:end].decode(), end + 1


def moment(microseconds: int) -> datetime:
    """A time as PostgreSQL counts it."""
    return _EPOCH + timedelta(microseconds=microseconds)
