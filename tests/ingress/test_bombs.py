"""Small bodies that say they are large: refused by what they say, before anything is unpacked, with a status that does
not ask for them again."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from receiving import ARROW, NDJSON, Serve, arrow

ARROW_FILE = "application/vnd.apache.arrow.file"


def ipc(batches: list[pa.RecordBatch], *, file: bool = False, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with (pa.ipc.new_file if file else pa.ipc.new_stream)(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def nulls(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.nulls(rows), "name": pa.nulls(rows)})


def zeros(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(memoryview(bytes(8 * rows)).cast("q")), "name": pa.nulls(rows)})


def repeated(rows: int, size: int) -> pa.RecordBatch:
    """One long text, shown by every row."""
    names = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * size]))
    return pa.record_batch({"id": pa.array(range(rows)), "name": names})


def within(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same columns, the second in a list and a struct that nobody has declared as such."""
    lists = pa.ListArray.from_arrays(pa.array([0, batch.num_rows], pa.int32()), batch["name"])
    return pa.record_batch({"id": [1], "name": pa.StructArray.from_arrays([lists], ["deep"])})


def viewed(rows: int, size: int) -> bytes:
    names = pl.Series(["x" * size]).gather([0] * rows)
    return arrow(pl.DataFrame({"id": range(rows), "name": names}))


BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "rows without bytes": (ARROW, lambda: ipc([nulls(30_000_000)])),
    "rows without bytes in many batches": (ARROW, lambda: ipc([nulls(1_000_000)] * 30)),
    "rows without bytes in a file": (ARROW_FILE, lambda: ipc([nulls(30_000_000)], file=True)),
    "packed buffers": (ARROW, lambda: ipc([zeros(3_000_000)], compression="zstd")),
    "packed buffers of lz4": (ARROW, lambda: ipc([zeros(3_000_000)], compression="lz4")),
    "packed buffers in a file": (ARROW_FILE, lambda: ipc([zeros(3_000_000)], file=True, compression="zstd")),
    "one text in every row": (ARROW, lambda: ipc([repeated(20_000, 100_000)])),
    "one text seen from every row": (ARROW, lambda: viewed(20_000, 100_000)),
    "one text in every element": (ARROW, lambda: ipc([within(repeated(20_000, 100_000))])),
    "empty batches": (ARROW, lambda: ipc([nulls(0)] * 3_000)),
    "empty objects": (NDJSON, lambda: b"{}\n" * 300_000),
    "packed lines": (NDJSON, lambda: gzip.compress(b"\n" * 30_000_000)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_by_what_it_says(serve: Serve, name: str) -> None:
    receiving = serve(max_body="1 MB")
    kind, make = BOMBS[name]
    body = make()
    assert len(body) < 1_000_000
    before = pa.default_memory_pool().bytes_allocated()
    packed = {"content_encoding": "gzip"} if body[:2] == b"\x1f\x8b" else {}

    began = time.monotonic()
    answer = receiving.post(body, kind, **packed)

    assert answer.status_code == 413, answer.text
    assert "1,000,000" in answer.json()["problem"]
    assert receiving.rows() == []
    assert pa.default_memory_pool().bytes_allocated() - before < 1 << 20
    assert time.monotonic() - began < 20


def test_wide_rows_count_by_what_they_take(serve: Serve) -> None:
    receiving = serve({f"c{number}": pl.Int64 for number in range(1000)}, max_body="1 MB")

    assert receiving.post(b"{}\n" * 1000, NDJSON).status_code == 413
    assert receiving.post(b"{}\n" * 400, NDJSON).json()["rows"] == 400


def test_lists_count_by_their_elements(serve: Serve) -> None:
    inner = pl.Struct({f"c{number}": pl.Int64 for number in range(1000)})
    receiving = serve({"id": pl.List(inner)}, max_body="1 MB")

    assert receiving.post(json.dumps({"id": [{}] * 1000}).encode(), NDJSON).status_code == 413
    assert receiving.post(json.dumps({"id": [{}] * 10}).encode(), NDJSON).json()["rows"] == 1


@pytest.mark.parametrize("depth", [2_000, 200_000])
@pytest.mark.parametrize("value", ["id", "name", "more"])
def test_deep_json_is_a_bad_row_and_no_failure(serve: Serve, depth: int, value: str) -> None:
    receiving = serve(bad_rows="skip")
    deep = b'{"' + value.encode() + b'": ' + b"[" * depth + b"]" * depth + b"}\n"

    answer = receiving.post(b'{"id": 1}\n' + deep + b'{"id": 2}\n')

    assert answer.status_code == 200, answer.text
    assert answer.json()["skipped"] == 1
    assert [row[0] for row in receiving.rows()] == [1, 2]


def test_a_field_that_the_csv_reader_gives_up_on_is_a_bad_row(serve: Serve) -> None:
    receiving = serve(bad_rows="skip")

    answer = receiving.post(b"id,name\n1,a\nx," + b"y" * 200_000 + b"\n2,b\n", "text/csv")

    assert answer.json()["skipped"] == 1, answer.text
    assert [row[0] for row in receiving.rows()] == [1, 2]


def lying(change: Callable[[bytes, int], bytes]) -> bytes:
    """A stream whose first batch is changed at the number of its rows."""
    body = ipc([pa.record_batch({"id": pa.array(range(777)), "name": pa.array(["a"] * 777)})])
    return change(body, body.index((777).to_bytes(8, "little")))


@pytest.mark.parametrize("rows", [-1, 778, 2**20, 2**40, 2**62])
def test_lengths_that_the_bytes_do_not_bear_out_are_refused(serve: Serve, rows: int) -> None:
    receiving = serve()
    number = rows.to_bytes(8, "little", signed=True)
    changed = lying(lambda body, at: body.replace((777).to_bytes(8, "little"), number))

    answer = receiving.post(changed, ARROW)

    assert answer.status_code in (400, 413), answer.text
    assert receiving.rows() == []


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1], [2]], pa.list_view(pa.int64())),
        pa.RunEndEncodedArray.from_arrays(pa.array([10**6], pa.int32()), pa.array([1])),
        pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])]),
    ],
    ids=["list views", "runs", "union"],
)
def test_layouts_that_cannot_be_weighed_are_refused(serve: Serve, column: Any) -> None:
    receiving = serve()
    batch = pa.record_batch([column, pa.nulls(len(column))], ["id", "name"])

    answer = receiving.post(ipc([batch]), ARROW)

    assert answer.status_code == 422, answer.text
    assert "column 'id'" in answer.json()["place"]


def test_many_empty_members_of_gzip_are_refused_in_time(serve: Serve) -> None:
    receiving = serve()
    began = time.monotonic()

    answer = receiving.post(gzip.compress(b"") * 500_000, content_encoding="gzip")

    assert answer.status_code == 400, answer.text
    assert time.monotonic() - began < 10


def test_categories_count_by_their_codes(serve: Serve) -> None:
    receiving = serve({"id": pl.Int64, "kind": pl.Categorical()}, max_body="1 MB")
    frame = pl.DataFrame({"id": range(20_000), "kind": ["x" * 1000, "y" * 1000] * 10_000})
    frame = frame.cast({"kind": pl.Categorical})

    answer = receiving.post(arrow(frame), ARROW)

    assert answer.status_code == 200, answer.text
    assert receiving.rows()[-1] == (19_999, "y" * 1000)


def test_honest_bodies_of_the_largest_size_are_taken(serve: Serve) -> None:
    receiving = serve(max_body="1 MB")
    rows = 60_000
    frame = pl.DataFrame({"id": range(rows), "name": [f"{number % 100}" for number in range(rows)]})

    for body in (arrow(frame, compat_level=pl.CompatLevel.oldest()), arrow(frame), arrow(frame, compression="zstd")):
        assert len(body) <= 2_000_000
        answer = receiving.post(body, ARROW)
        assert (answer.status_code, len(body) > 1_000_000) in ((200, False), (413, True)), answer.text
    lines = b"".join(b'{"id": %d, "name": "%d"}\n' % (number, number % 100) for number in range(30_000))
    assert receiving.post(lines).status_code == 200
