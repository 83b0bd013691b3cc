"""The container needs nothing but itself: versions, golden bytes, types that pass through, projection."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal as Exact
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from codec_columns import assert_same_bits, through_a_file

from holdfast.errors import UnknownVersionError
from holdfast.pstream.codecs import (
    BaseDelta,
    BitPack,
    ByteCodec,
    ByteSplit,
    Constant,
    Decimal,
    Delta,
    Dictionary,
    Encoding,
    Lossy,
    Pco,
    RunLength,
    Scaled,
    TextBytes,
    VarByte,
    Xor,
    Zigzag,
    decode_frame,
    encode_frame,
    is_encoded,
)
from holdfast.pstream.codecs.encoding import _known

GOLDEN = Path(__file__).with_name("container_v1.arrow")
KEY = b"holdfast.codecs"
ROWS = 1_100

GOLDEN_PLAN: dict[str, Encoding] = {
    "constant": Constant(),
    "base": BaseDelta(),
    "packed": BaseDelta(BitPack()),
    "patched": BitPack(),
    "varied": BaseDelta(VarByte()),
    "time": Delta(Delta(Zigzag(BitPack()))),
    "day": RunLength(Delta(), BitPack()),
    "name": Dictionary(BitPack()),
    "note": TextBytes(ByteCodec("zstd")),
    "price": Decimal(BaseDelta(BitPack())),
    "walk": Xor(ByteSplit(ByteCodec("lz4"))),
    "snappy": ByteCodec("snappy"),
    "pco": Pco(0),
    "rough": Scaled(0.05),
}
GOLDEN_LOSSY = [Lossy("rough", 0.05)]


def golden_frame() -> pl.DataFrame:
    """Computed from whole numbers, so that it is the same everywhere."""
    start = datetime(2024, 2, 29, 12, tzinfo=UTC)
    rows = range(ROWS)
    prices = [-0.0 if i == 7 else float("inf") if i == 8 else (i * 37 % 1000) / 100 for i in rows]
    return pl.DataFrame(
        {
            "constant": pl.Series([42] * ROWS, dtype=pl.Int32),
            "base": [10**12 + i * i % 250 for i in rows],
            "packed": [None if i % 11 == 0 else i * 7 % 1000 - 500 for i in rows],
            "patched": [2**60 + i if i % 100 == 0 else i % 8 for i in rows],
            "varied": pl.Series([i * i for i in rows], dtype=pl.UInt64),
            "time": [start + timedelta(milliseconds=10 * i + i % 3) for i in rows],
            "day": [date(2024, 1, 1) + timedelta(days=i // 40) for i in rows],
            "name": [None if i % 13 == 0 else ["", "ä", "日本", "x" * 30][i % 4] for i in rows],
            "note": [f"note {i // 3} 🙂" for i in rows],
            "price": prices,
            "walk": [100 + i / 1024 for i in rows],
            "snappy": pl.Series([i // 9 for i in rows], dtype=pl.Int16),
            "pco": [i * 1_000_003 for i in rows],
            "rough": [i / 7 for i in rows],
            "flag": [i % 5 == 0 for i in rows],
            "list": [[i, None] for i in rows],
        },
    )


def test_bytes_written_by_version_1_are_read_for_ever() -> None:
    table = pa.ipc.open_file(pa.memory_map(str(GOLDEN))).read_all()
    found, expected = decode_frame(table), golden_frame()
    assert found.columns == expected.columns
    for name in set(expected.columns) - {"rough"}:
        assert_same_bits(found[name], expected[name])
    assert found["rough"].to_list() == [round(i / 7 * 10) / 10 for i in range(ROWS)]


def test_the_golden_bytes_use_every_encoding() -> None:
    text = pa.ipc.open_file(GOLDEN.read_bytes()).schema.metadata[KEY].decode()
    assert {tag for tag in _known if f'"e":"{tag}"' not in text} == set()


def test_an_unknown_version_is_refused() -> None:
    table = encode_frame(pl.DataFrame({"a": [1, 2, 3]})).table
    described = json.loads(table.schema.metadata[KEY])
    newer = table.replace_schema_metadata({KEY: json.dumps({**described, "version": 2}).encode()})
    assert is_encoded(newer)
    with pytest.raises(UnknownVersionError, match="version 2"):
        decode_frame(newer)


def test_an_unknown_encoding_is_refused() -> None:
    table = encode_frame(pl.DataFrame({"a": [1, 2, 3]})).table
    text = table.schema.metadata[KEY].replace(b'"e":"base-delta"', b'"e":"quantum"')
    with pytest.raises(UnknownVersionError, match="quantum"):
        decode_frame(table.replace_schema_metadata({KEY: text}))


def test_a_table_that_is_no_container_is_refused() -> None:
    table = pl.DataFrame({"a": [1]}).to_arrow()
    assert not is_encoded(table)
    with pytest.raises(UnknownVersionError):
        decode_frame(table)


def test_types_without_an_encoding_pass_through_untouched() -> None:
    frame = pl.DataFrame(
        {
            "list": [[1, 2], [], None],
            "struct": [{"a": 1, "b": "x"}, {"a": None, "b": "y"}, None],
            "array": pl.Series([[1, 2], [3, 4], None], dtype=pl.Array(pl.Int8, 2)),
            "decimal": pl.Series([Exact("1.50"), None, Exact("-2.25")]),
            "enum": pl.Series(["a", None, "b"], dtype=pl.Enum(["b", "a"])),
            "category": pl.Series(["x", "x", None], dtype=pl.Categorical),
            "null": pl.Series([None] * 3),
        }
    )
    plan = dict.fromkeys(frame.columns, BaseDelta(BitPack()))
    encoded = encode_frame(frame, plan)
    found = decode_frame(through_a_file(encoded.table))
    assert found.schema == frame.schema
    assert found.equals(frame, null_equal=True)


@pytest.mark.parametrize(
    "frame", [pl.DataFrame(), pl.DataFrame({"a": [1, 2]}).drop("a"), golden_frame().clear()], ids=str
)
def test_frames_without_rows_or_columns(frame: pl.DataFrame) -> None:
    found = decode_frame(through_a_file(encode_frame(frame, GOLDEN_PLAN, GOLDEN_LOSSY).table))
    assert found.schema == frame.schema
    assert found.height == frame.height


def test_all_values_null() -> None:
    frame = pl.DataFrame({name: pl.Series([None] * 5, dtype=dtype) for name, dtype in golden_frame().schema.items()})
    found = decode_frame(through_a_file(encode_frame(frame, GOLDEN_PLAN, GOLDEN_LOSSY).table))
    assert found.schema == frame.schema
    assert found.equals(frame, null_equal=True)


def test_only_the_columns_asked_for_are_decoded() -> None:
    encoded = encode_frame(golden_frame(), GOLDEN_PLAN)
    assert decode_frame(encoded, ["price", "base"]).columns == ["base", "price"]


def test_names_of_columns_may_be_anything() -> None:
    frame = pl.DataFrame({"": [1, 2], "0": [3, 4], 'ä"\n': [5, 6]})
    assert decode_frame(through_a_file(encode_frame(frame).table)).equals(frame)


def test_arrays_are_read_where_they_lie_in_the_mapped_file() -> None:
    before = pa.total_allocated_bytes()
    table = pa.ipc.open_file(pa.memory_map(str(GOLDEN))).read_all()
    assert pa.total_allocated_bytes() - before < 4_096
    assert table.num_rows == 1


def test_encoding_and_decoding_do_not_import_pandas() -> None:
    """It takes over a second, in every worker."""
    program = (
        "import sys, polars as pl\n"
        "from holdfast.pstream.codecs import *\n"
        "frame = pl.DataFrame({'a': [1, 2, None] * 9, 's': ['x', '', None] * 9, 'b': [True, False, None] * 9})\n"
        "plan = {'a': Dictionary(BitPack()), 's': Dictionary(), 'b': BitPack()}\n"
        "assert decode_frame(encode_frame(frame, plan)).equals(frame)\n"
        "Chooser(1e9).observe(frame)\n"
        "sys.exit('pandas' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def write_golden() -> None:
    """How the golden bytes were made. Never again for this version: a reader must go on reading the old ones."""
    encoded = encode_frame(golden_frame(), GOLDEN_PLAN, GOLDEN_LOSSY)
    assert encoded.fallbacks == {}, encoded.fallbacks
    with pa.OSFile(str(GOLDEN), "wb") as sink, pa.ipc.new_file(sink, encoded.table.schema) as writer:
        writer.write_table(encoded.table)
