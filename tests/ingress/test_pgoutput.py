"""Messages of logical replication as bytes: those of the protocol are read, and others are an error, not a crash."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.ingress.pgoutput import (
    UNCHANGED,
    Change,
    Relation,
    TransactionBegin,
    TransactionEnd,
    Truncate,
    moment,
    parse_message,
)


def row(*values: bytes | object | None) -> bytes:
    made = struct.pack(">H", len(values))
    for value in values:
        if value is None:
            made += b"n"
        elif isinstance(value, bytes):
            made += b"t" + struct.pack(">I", len(value)) + value
        else:
            made += b"u"
    return made


MESSAGES = {
    b"B" + struct.pack(">QqI", 77, 5_000_000, 9): TransactionBegin(77, 5_000_000),
    b"C" + struct.pack(">BQQq", 0, 77, 99, 5): TransactionEnd(77, 99),
    b"R" + struct.pack(">I", 3) + b"shop\0items\0d" + struct.pack(">H", 2) + b"\1id\0" + bytes(8) + b"\0name\0"
    + bytes(8): Relation(3, "shop", "items", ("id", "name")),
    b"I" + struct.pack(">I", 3) + b"N" + row(b"1", None): Change("insert", 3, [b"1", None], None),
    b"U" + struct.pack(">I", 3) + b"K" + row(b"1", None) + b"N" + row(b"2", UNCHANGED): Change(
        "update", 3, [b"2", UNCHANGED], [b"1", None]
    ),
    b"U" + struct.pack(">I", 3) + b"N" + row(b"2", b""): Change("update", 3, [b"2", b""], None),
    b"D" + struct.pack(">I", 3) + b"O" + row(b"1", b"x"): Change("delete", 3, None, [b"1", b"x"]),
    b"T" + struct.pack(">IBII", 2, 0, 3, 4): Truncate((3, 4)),
    b"Y" + bytes(9): None,
}  # fmt: skip


@pytest.mark.parametrize(("data", "message"), MESSAGES.items())
def test_messages_of_the_protocol(data: bytes, message: object) -> None:
    assert parse_message(data) == message


def test_times_count_from_the_year_2000() -> None:
    assert moment(86_400_000_000).isoformat() == "2000-01-02T00:00:00+00:00"


@given(st.sampled_from(sorted(MESSAGES)), st.integers(0, 60), st.binary(max_size=4), st.booleans())
def test_other_bytes_are_an_error(data: bytes, at: int, put: bytes, cut: bool) -> None:
    changed = data[:at] if cut else data[:at] + put + data[at + len(put) :]
    with contextlib.suppress(ValueError):
        parse_message(changed)
