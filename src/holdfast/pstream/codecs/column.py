"""A column and its physical values: what of a Polars series an encoding sees, and how the series is put together again.

Numbers, booleans and times are encoded by their physical integers or floats, strings and binary as text. Nulls are
taken out first and kept as a bitmap. Every other type (nested, decimal, categorical, ...) is kept as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from holdfast.pstream.codecs.encoding import (
    Encoding,
    EncodingMisfitError,
    Meta,
    Numbers,
    Parts,
    decode_numbers,
    decode_text,
    encode_numbers,
    exactly,
)

__all__ = ["EncodedColumn", "decode_column", "encode_column", "is_encodable", "is_text", "keep_column", "physical"]

_PHYSICAL: dict[type[pl.DataType], str] = {
    pl.Int8: "<i1",
    pl.Int16: "<i2",
    pl.Int32: "<i4",
    pl.Int64: "<i8",
    pl.UInt8: "<u1",
    pl.UInt16: "<u2",
    pl.UInt32: "<u4",
    pl.UInt64: "<u8",
    pl.Float32: "<f4",
    pl.Float64: "<f8",
    pl.Boolean: "<u1",
    pl.Date: "<i4",
    pl.Datetime: "<i8",
    pl.Duration: "<i8",
    pl.Time: "<i8",
}
_WHOLE: dict[str, type[pl.DataType]] = {"<u1": pl.UInt8, "<i4": pl.Int32, "<i8": pl.Int64}
_TEXT: tuple[type[pl.DataType], ...] = (pl.String, pl.Binary)


@dataclass(frozen=True, slots=True)
class EncodedColumn:
    """The description of a column and its arrays; `fields` are the Arrow fields of the arrays."""

    meta: Meta
    parts: Parts
    fields: list[pa.Field]

    @property
    def nbytes(self) -> int:
        return self.parts.nbytes


def is_text(dtype: pl.DataType) -> bool:
    return isinstance(dtype, _TEXT)


def is_encodable(dtype: pl.DataType) -> bool:
    """Whether there is a choice; other types are kept as they are."""
    return is_text(dtype) or type(dtype) in _PHYSICAL


def physical(series: pl.Series) -> Numbers:
    """The numbers behind a series without nulls, not copied where that can be."""
    if not series.dtype.is_numeric():
        series = series.cast(_WHOLE[_PHYSICAL[type(series.dtype)]])
    found: Numbers = series.rechunk().to_numpy()
    return found


def keep_column(series: pl.Series) -> EncodedColumn:
    """The column as its own Arrow array, nulls and all; read back without a copy where the type allows it."""
    table = series.rechunk().to_frame().to_arrow()
    field = table.schema.field(0)
    chunks = table.column(0).chunks
    array = chunks[0] if chunks else pa.array([], field.type)
    kept = pa.field("item", field.type, metadata=field.metadata)
    return EncodedColumn({"name": series.name, "kept": True}, Parts([array]), [kept])


def encode_column(series: pl.Series, encoding: Encoding) -> EncodedColumn:
    """Raises `MisfitError` when the encoding does not suit the values, or makes them no smaller."""
    if encoding.tag == "plain" or not is_encodable(series.dtype):
        return keep_column(series)
    parts = Parts()
    meta: Meta = {"name": series.name, "type": _type_json(series.dtype), "rows": len(series)}
    valid = series
    if series.null_count():
        valid = series.drop_nulls()
        meta["valid"] = parts.add(series.is_not_null().rechunk().to_arrow()) if len(valid) else None
    if len(valid) and is_text(series.dtype):
        meta["data"] = {"e": encoding.tag, **encoding.encode_text(valid.rechunk(), parts)}
    elif len(valid):
        meta["data"] = encode_numbers(encoding, physical(valid), parts)
    if parts.nbytes > _plain_bytes(series):
        raise EncodingMisfitError(f"{encoding} makes the column larger")
    return EncodedColumn(meta, parts, [pa.field("item", array.type, nullable=False) for array in parts.arrays])


def _plain_bytes(series: pl.Series) -> int:
    bitmap = -(-len(series) // 8)
    nulls = bitmap if series.null_count() else 0
    if is_text(series.dtype):
        binary = series if series.dtype == pl.Binary else series.cast(pl.Binary)
        return int(binary.bin.size().sum()) + 8 * (len(series) + 1) + nulls
    if series.dtype == pl.Boolean:
        return bitmap + nulls
    return len(series) * np.dtype(_PHYSICAL[type(series.dtype)]).itemsize + nulls


def decode_column(meta: Meta, arrays: list[pa.Array], fields: list[pa.Field]) -> pl.Series:
    name = meta["name"]
    if "kept" in meta:
        schema = pa.schema([pa.field("kept", fields[0].type, metadata=fields[0].metadata)])
        frame = pl.from_arrow(pa.Table.from_arrays([arrays[0]], schema=schema))
        assert isinstance(frame, pl.DataFrame)
        return frame.to_series().alias(name)
    dtype = _type_from_json(meta["type"])
    parts = Parts(arrays)
    if "data" not in meta:
        return pl.Series(name, [], dtype=dtype).extend_constant(None, meta["rows"])
    valid = arrays[meta["valid"]] if "valid" in meta else None
    if is_text(dtype):
        return _text_with_nulls(decode_text(meta["data"], parts), valid).alias(name)
    numbers = exactly(decode_numbers(meta["data"], parts), np.dtype(_PHYSICAL[type(dtype)]))
    return _numbers_with_nulls(numbers, valid, dtype).alias(name)


def _text_with_nulls(text: pl.Series, valid: pa.Array | None) -> pl.Series:
    if valid is None:
        return text
    places = np.cumsum(_mask(valid)) - 1
    return text.gather(pl.Series(pa.Array.from_buffers(pa.int64(), len(valid), [_bitmap(valid), pa.py_buffer(places)])))


def _bitmap(valid: pa.Array) -> pa.Buffer:
    return valid.buffers()[1] if valid.offset == 0 else _packed(_mask(valid))


def _mask(valid: pa.Array) -> Numbers:
    bits = np.unpackbits(np.frombuffer(valid.buffers()[1], np.uint8), bitorder="little")
    return bits[valid.offset : valid.offset + len(valid)].view(np.bool_)


def _packed(mask: Numbers) -> pa.Buffer:
    return pa.py_buffer(np.packbits(mask, bitorder="little"))


def _numbers_with_nulls(numbers: Numbers, valid: pa.Array | None, dtype: pl.DataType) -> pl.Series:
    bitmap = None
    if valid is not None:
        spread = np.zeros(len(valid), numbers.dtype)
        spread[_mask(valid)] = numbers
        numbers = spread
        bitmap = _bitmap(valid)
    arrow = pl.Series([], dtype=dtype).to_arrow().type
    data = _packed(numbers) if dtype == pl.Boolean else pa.py_buffer(np.ascontiguousarray(numbers))
    return pl.Series(pa.Array.from_buffers(arrow, numbers.size, [bitmap, data]), dtype=dtype)


def _type_json(dtype: pl.DataType) -> list[Any]:
    if isinstance(dtype, pl.Datetime):
        return ["Datetime", dtype.time_unit, dtype.time_zone]
    if isinstance(dtype, pl.Duration):
        return ["Duration", dtype.time_unit]
    return [type(dtype).__name__]


def _type_from_json(value: list[Any]) -> pl.DataType:
    name, *arguments = value
    kinds: dict[str, type[pl.DataType]] = {kind.__name__: kind for kind in [*_PHYSICAL, *_TEXT]}
    return kinds[name](*arguments)
