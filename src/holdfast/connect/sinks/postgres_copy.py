"""Rows for PostgreSQL's COPY: whole columns at a time, in its binary format where the types allow it, as CSV otherwise.

In the binary format a field is its length, four bytes, and its value; a null has the length -1. Numbers and times have
a fixed length, so neighbours without nulls become one array of records. Texts and columns with nulls become arrays of
fields. Arrow joins these row by row, which gives the bytes to send. Nothing is done by row in Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["binary_rows", "csv_rows", "fits_binary"]

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
_AT_ONCE = 100_000
_EPOCH_DAYS, _EPOCH_MICROS = 10_957, 946_684_800_000_000
"""PostgreSQL counts from the year 2000."""
_NULL = pa.scalar(b"\xff\xff\xff\xff", pa.large_binary())
_NOTHING = pa.scalar(b"", pa.large_binary())
_NULL_TEXT = "\\N"
_Fields = list[tuple[str, np.ndarray[Any, Any]]]

_FIXED = {"int2": ">i2", "int4": ">i4", "int8": ">i8", "float4": ">f4", "float8": ">f8", "bool": "u1", "date": ">i4",
          "timestamp": ">i8", "timestamptz": ">i8", "time": ">i8"}  # fmt: skip
_BYTES = ("text", "varchar", "bytea")
_TAKES: dict[str, tuple[type[pl.DataType], ...]] = {
    "int2": (pl.Int8, pl.Int16, pl.UInt8),
    "int4": (pl.Int8, pl.Int16, pl.Int32, pl.UInt8, pl.UInt16),
    "int8": (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32),
    "float4": (pl.Float32,),
    "float8": (pl.Float32, pl.Float64),
    "bool": (pl.Boolean,),
    "date": (pl.Date,),
    "time": (pl.Time,),
    "text": (pl.String,),
    "varchar": (pl.String,),
    "bytea": (pl.Binary,),
}


def fits_binary(schema: pl.Schema, types: Mapping[str, str]) -> bool:
    """Whether rows can go in the binary format into columns of these types, which are PostgreSQL's names. The server
    casts nothing then: a value must be what the column holds."""
    return all(_fits(dtype, types[name]) for name, dtype in schema.items())


def _fits(dtype: pl.DataType, kind: str) -> bool:
    if isinstance(dtype, pl.Datetime):
        return kind == ("timestamp" if dtype.time_zone is None else "timestamptz")
    return isinstance(dtype, _TAKES.get(kind, ()))


def csv_rows(rows: pl.DataFrame) -> Iterator[bytes]:
    """The rows for COPY ... (FORMAT csv, NULL '\\N')."""
    shown = rows.with_columns(
        *((pl.lit("\\x") + pl.col(name).bin.encode("hex")).alias(name) for name in _names(rows, pl.Binary)),
        *(
            pl.col(name).dt.to_string("%Y-%m-%d %H:%M:%S%.6f" + ("" if _naive(rows, name) else "%z"))
            for name in _names(rows, pl.Datetime)
        ),
    )
    for some in shown.iter_slices(_AT_ONCE):
        # Texts are quoted, so that an empty one, or one that looks like a null, is what it is.
        text = some.write_csv(include_header=False, null_value=_NULL_TEXT, quote_style="non_numeric")
        yield text.encode()


def _names(rows: pl.DataFrame, kind: type[pl.DataType]) -> list[str]:
    return [name for name, dtype in rows.schema.items() if isinstance(dtype, kind)]


def _naive(rows: pl.DataFrame, name: str) -> bool:
    dtype = rows.schema[name]
    return isinstance(dtype, pl.Datetime) and dtype.time_zone is None


def binary_rows(rows: pl.DataFrame, types: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """The rows for COPY ... (FORMAT binary)."""
    yield _HEADER
    for some in rows.iter_slices(_AT_ONCE):
        yield _joined(some, [types[name] for name in some.columns])
    yield _TRAILER


def _joined(rows: pl.DataFrame, kinds: Sequence[str]) -> memoryview:
    parts: list[pa.Array] = []
    records: _Fields = [(">i2", np.full(rows.height, rows.width))]
    for column, kind in zip(rows.iter_columns(), kinds, strict=True):
        nulls = column.is_null()
        if kind in _FIXED and not column.null_count():
            records += _field(column, kind)
        elif kind in _FIXED:
            if records:
                parts.append(_records(records))
            parts.append(pc.if_else(nulls.to_arrow(), _NULL, _records(_field(column, kind))))
            records = []
        else:
            data = column.cast(pl.Binary).fill_null(b"")
            lengths = np.where(nulls.to_numpy(), -1, data.bin.size().to_numpy().astype(np.int64))
            parts.append(_records([*records, (">i4", lengths)]))
            parts.append(data.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(pa.large_binary()))
            records = []
    if records:
        parts.append(_records(records))
    return _content(parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, _NOTHING))


def _field(column: pl.Series, kind: str) -> _Fields:
    """Length and value of a type that has a fixed length; any value stands for a null."""
    if isinstance(column.dtype, pl.Datetime):
        column = column.dt.cast_time_unit("us")
    values = column.to_physical().fill_null(strategy="zero").to_numpy()
    if kind == "date":
        values = values - _EPOCH_DAYS
    elif kind in ("timestamp", "timestamptz"):
        values = values - _EPOCH_MICROS
    elif kind == "time":
        values = values // 1_000
    return [(">i4", np.full(len(values), np.dtype(_FIXED[kind]).itemsize)), (_FIXED[kind], values)]


def _records(fields: _Fields) -> pa.Array:
    """One binary value per row: the fields one after the other."""
    rows = len(fields[0][1])
    made = np.empty(rows, dtype=[(f"f{number}", kind) for number, (kind, _) in enumerate(fields)])
    for number, (_, values) in enumerate(fields):
        made[f"f{number}"] = values
    offsets = np.arange(rows + 1, dtype=np.int64) * made.dtype.itemsize
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), rows, [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(made.tobytes())]
    )


def _content(array: pa.Array) -> memoryview:
    """The bytes of all values, one after the other."""
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)[array.offset : array.offset + len(array) + 1]
    return memoryview(data)[int(ends[0]) : int(ends[-1])]
