"""Columns to encode, as awkward as columns are, the encodings to try on them, and equality to the last bit."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from hypothesis import strategies as st

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
    Narrow,
    Pco,
    Plain,
    RunLength,
    TextBytes,
    VarByte,
    Xor,
    Zigzag,
)

NUMBER_ENCODINGS: list[Encoding] = [
    Plain(),
    Constant(),
    Narrow(),
    Narrow(ByteCodec("snappy")),
    BaseDelta(),
    BaseDelta(BitPack()),
    BaseDelta(VarByte()),
    BaseDelta(ByteCodec("lz4")),
    BaseDelta(ByteCodec("zstd")),
    Zigzag(),
    Zigzag(BitPack()),
    Delta(),
    Delta(BaseDelta(BitPack())),
    Delta(Zigzag(VarByte())),
    Delta(RunLength()),
    Delta(Delta()),
    Delta(Delta(Zigzag(BitPack()))),
    RunLength(),
    RunLength(Plain(), BitPack()),
    RunLength(Delta(BaseDelta(BitPack())), BitPack()),
    Dictionary(),
    Dictionary(BitPack()),
    Dictionary(RunLength()),
    BitPack(),
    VarByte(),
    Xor(Plain()),
    Xor(BitPack()),
    Xor(ByteSplit(ByteCodec("lz4"))),
    ByteSplit(),
    ByteSplit(ByteCodec("zstd")),
    ByteSplit(RunLength()),
    Decimal(),
    Decimal(BaseDelta(BitPack())),
    Decimal(Delta(Zigzag(BitPack())), digits=2),
    Decimal(Dictionary()),
    ByteCodec("lz4"),
    ByteCodec("zstd"),
    ByteCodec("snappy"),
    Pco(0),
    Pco(4),
]
TEXT_ENCODINGS: list[Encoding] = [
    Plain(),
    Dictionary(),
    Dictionary(BitPack()),
    Dictionary(RunLength()),
    Dictionary(Constant()),
    TextBytes(),
    TextBytes(Plain(), BitPack()),
    TextBytes(ByteCodec("zstd"), RunLength()),
    TextBytes(ByteCodec("snappy"), Delta()),
]

NUMBER_TYPES = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"]
FLOAT_TYPES = ["f4", "f8"]
_STRANGE_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF4_0000_DEAD_BEEF))[0]


@st.composite
def numbers(draw: st.DrawFn, code: str) -> np.ndarray:
    """At least one value; short lists are stretched, so that runs and several blocks of bit packing occur."""
    dtype = np.dtype(code)
    if dtype.kind == "f":
        width = 8 * dtype.itemsize
        special = st.sampled_from([0.0, -0.0, 1.0, float("inf"), float("-inf"), float("nan"), _STRANGE_NAN])
        decimals = st.integers(-9999, 9999).map(lambda n: n / 100)
        one = draw(st.sampled_from([decimals, decimals | decimals | special, special | st.floats(width=width)]))
    else:
        info = np.iinfo(dtype)
        extremes = st.sampled_from([info.min, info.min + 1, info.max - 1, info.max, 0, 1])
        small = st.integers(max(info.min, -50), min(info.max, 50))
        one = draw(st.sampled_from([small, small | extremes, st.integers(info.min, info.max)]))
    with np.errstate(over="ignore"):
        values = np.array(draw(st.lists(one, min_size=1, max_size=25)), dtype)
    shape = draw(st.sampled_from(["short", "short", "tiled", "repeated", "climbing"]))
    if shape == "tiled":
        values = np.tile(values, draw(st.sampled_from([3, 50, 129])))
    elif shape == "repeated":
        values = np.repeat(values, draw(st.sampled_from([3, 50, 129])))
    elif shape == "climbing" and dtype.kind != "f":
        with np.errstate(over="ignore"):
            values = np.cumsum(np.tile(values, 60), dtype=dtype)
    return values


COLUMN_TYPES: list[tuple[pl.DataType, st.SearchStrategy[Any]]] = [
    (pl.Int8(), st.integers(-128, 127)),
    (pl.Int64(), st.integers(-5, 5) | st.sampled_from([-(2**63), 2**63 - 1])),
    (pl.UInt64(), st.integers(0, 3) | st.just(2**64 - 1)),
    (pl.Float32(), st.floats(width=32)),
    (pl.Float64(), st.floats() | st.sampled_from([0.5, -0.0, _STRANGE_NAN])),
    (pl.Boolean(), st.booleans()),
    (pl.String(), st.text(max_size=5) | st.sampled_from(["", "a", "ß", "日本語", "a\x00", "🙂"])),
    (pl.Binary(), st.binary(max_size=5)),
    (pl.Date(), st.dates()),
    (pl.Time(), st.times()),
    (pl.Datetime("us"), st.datetimes()),
    (pl.Datetime("ms", "UTC"), st.datetimes().map(lambda t: t.replace(microsecond=0))),
    (pl.Datetime("ns", "Europe/Berlin"), st.integers(-(2**62), 2**62)),
    (pl.Duration("ms"), st.integers(-(2**63), 2**63 - 1)),
]


@st.composite
def columns(draw: st.DrawFn, text: bool | None = None) -> pl.Series:
    """A column of any encodable type with nulls anywhere: empty, of nulls only, in several chunks."""
    types = [one for one in COLUMN_TYPES if text is None or (one[0] in (pl.String(), pl.Binary())) == text]
    dtype, values = draw(st.sampled_from(types))
    if draw(st.booleans()):
        values = st.none() | values
    found = draw(st.lists(values, max_size=12)) * draw(st.sampled_from([1, 1, 2, 100]))
    physical = any(isinstance(value, int) for value in found) and dtype.is_temporal()
    series = pl.Series("c", found, pl.Int64).cast(dtype) if physical else _series(found, dtype)
    if draw(st.booleans()) and len(series) > 1:
        cut = draw(st.integers(1, len(series) - 1))
        series = series.head(cut).append(series.tail(len(series) - cut))
    return series


def _series(values: list[Any], dtype: pl.DataType) -> pl.Series:
    if isinstance(dtype, pl.Datetime) and dtype.time_zone:
        return pl.Series("c", values, pl.Datetime(dtype.time_unit)).dt.replace_time_zone(dtype.time_zone)
    return pl.Series("c", values, dtype, strict=False)


def assert_same_bits(found: pl.Series, given: pl.Series) -> None:
    """Equal in name, type, nulls and in every bit of the values."""
    assert found.name == given.name
    assert found.dtype == given.dtype
    assert len(found) == len(given)
    assert found.is_null().to_list() == given.is_null().to_list()
    left, right = found.drop_nulls().to_physical(), given.drop_nulls().to_physical()
    if given.dtype.is_float():
        assert left.rechunk().to_numpy().tobytes() == right.rechunk().to_numpy().tobytes()
    else:
        assert left.to_list() == right.to_list()


def through_a_file(table: pa.Table) -> pa.Table:
    """The table as it comes back from Arrow IPC bytes."""
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return pa.ipc.open_file(pa.BufferReader(sink.getvalue())).read_all()
