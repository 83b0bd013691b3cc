"""Record batches as brokers store them: decoded as they were written, and damage is told, whatever it is."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from holdfast.connect.kafka.record_batches import DAMAGE, RecordBlock, UnknownBatchError, decode_batches

Record = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def varint(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def sized(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def batch(base: int, records: Sequence[Record], *, attributes: int = 0, producer: int = -1) -> bytes:
    body = b""
    for number, (key, value, headers) in enumerate(records):
        told = b"".join(sized(name.encode()) + sized(text) for name, text in headers)
        record = b"\0" + varint(10 * number) + varint(number) + sized(key) + sized(value) + varint(len(headers)) + told
        body += varint(len(record)) + record
    count = len(records)
    return struct.pack(
        ">qiibIhiqqqhii", base, 49 + len(body), 0, 2, 0, attributes, count - 1, 1_000, 2_000, producer, 0, 0, count
    ) + body  # fmt: skip


def marker(base: int, producer: int, *, commits: bool) -> bytes:
    return batch(base, [(struct.pack(">hh", 0, commits), b"\0" * 6, [])], attributes=48, producer=producer)


def told(block: RecordBlock | None) -> list[Record]:
    if block is None:
        return []
    headers = [[(one["name"], one["value"]) for one in some] for some in block.column("headers").to_list()]
    return list(zip(block.column("key").to_list(), block.values(), headers, strict=True))


texts = st.none() | st.binary(max_size=300)
records = st.lists(
    st.tuples(texts, texts, st.lists(st.tuples(st.text(max_size=5), texts), max_size=2)), min_size=1, max_size=6
)


@given(st.lists(records, min_size=1, max_size=4), st.integers(0, 30))
def test_batches_are_decoded_as_they_were_written(written: list[list[Record]], at: int) -> None:
    data, base, wanted, offsets = b"", 0, [], []
    for some in written:
        data += batch(base, some)
        wanted += some
        offsets += range(base, base + len(some))
        base += len(some) + 2  # as where a compaction has removed some
    found = decode_batches(3, data, at, [])
    kept = [index for index, offset in enumerate(offsets) if offset >= at]
    assert told(found.block) == [wanted[index] for index in kept]
    assert found.behind == max(at, base - 2)
    if found.block is not None and kept:
        assert found.block.column("offset").to_list() == [offsets[index] for index in kept]
        assert set(found.block.column("partition")) == {3}


def test_aborted_transactions_are_left_out_and_others_are_not() -> None:
    row: Record = (None, b"x", [])
    parts = [
        batch(0, [row], attributes=16, producer=1),
        batch(1, [row], attributes=16, producer=2),
        marker(2, 1, commits=False),
        batch(3, [row], attributes=16, producer=1),  # its next transaction
        marker(4, 2, commits=True),
        batch(5, [row]),
        marker(6, 1, commits=True),
    ]
    found = decode_batches(0, b"".join(parts), 0, [(1, 0)])
    assert found.block is not None
    assert found.block.column("offset").to_list() == [1, 3, 5]
    assert found.behind == 7
    assert decode_batches(0, parts[0], 0, [(1, 0)]).block is None


def test_a_fetch_may_end_within_a_batch() -> None:
    whole = batch(0, [(None, b"a", [])])
    found = decode_batches(0, whole + batch(1, [(None, b"b", [])])[:-3], 0, [])
    assert told(found.block) == [(None, b"a", [])]
    assert found.behind == 1


@given(records, st.data())
def test_damaged_bytes_are_told_as_such(some: list[Record], data: st.DataObject) -> None:
    text = bytearray(batch(0, some))
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode_batches(0, bytes(text), 0, [])
        if found.block is not None:
            list(found.block.values())
            found.block.values().objects()
    except (UnknownBatchError, *DAMAGE):
        pass
