"""Column types and default values as texts, the way the shape of a pipeline is stored.

A type is stored as Polars writes it, e.g. `List(Struct({'a': Int64}))`, and read back without running anything. A
default value is stored as JSON; one of a date or a time as the integer behind it.
"""

from __future__ import annotations

import ast
import json
from typing import Any

import polars as pl

from holdfast.errors import DeclarationError, UnknownVersionError

__all__ = ["decode_default", "encode_default", "parse_dtype", "widens"]

_FIXED = {dtype.__name__: dtype for dtype in (
    pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.Int128, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64, pl.UInt128,
    pl.Float32, pl.Float64, pl.Boolean, pl.String, pl.Binary, pl.Date, pl.Time, pl.Datetime, pl.Duration, pl.Decimal,
    pl.Categorical, pl.Enum, pl.List, pl.Array, pl.Struct, pl.Null,
)}  # fmt: skip

_WIDER = {
    name: tuple(wider.split())
    for name, wider in {
        "Int8": "Int16 Int32 Int64",
        "Int16": "Int32 Int64",
        "Int32": "Int64",
        "UInt8": "UInt16 UInt32 UInt64 Int16 Int32 Int64",
        "UInt16": "UInt32 UInt64 Int32 Int64",
        "UInt32": "UInt64 Int64",
        "Float32": "Float64",
    }.items()
}


def widens(before: str, now: str) -> bool:
    """Whether every value of the one type is the same value of the other."""
    return now in _WIDER.get(before, ())


def parse_dtype(text: str) -> pl.DataType:
    """The type that Polars writes as `text`."""
    try:
        made = _value(ast.parse(text, mode="eval").body)
        if isinstance(made, type) and issubclass(made, pl.DataType):
            made = made()
    except (SyntaxError, TypeError, ValueError) as error:
        raise _unknown(text) from error
    if not isinstance(made, pl.DataType):
        raise _unknown(text)
    return made


def _unknown(text: str) -> UnknownVersionError:
    return UnknownVersionError(
        f"the store names a column type {text!r}, which this program does not know",
        cure="run the version of Holdfast and Polars that wrote the store, or a newer one",
    )


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        if node.id not in _FIXED:
            raise ValueError(node.id)
        return _FIXED[node.id]
    if isinstance(node, ast.Call):
        named = {keyword.arg: _value(keyword.value) for keyword in node.keywords if keyword.arg is not None}
        return _value(node.func)(*map(_value, node.args), **named)
    if isinstance(node, ast.Dict):
        return {_value(key): _value(value) for key, value in zip(node.keys, node.values, strict=True) if key}
    if isinstance(node, ast.List | ast.Tuple):
        return list(map(_value, node.elts)) if isinstance(node, ast.List) else tuple(map(_value, node.elts))
    return ast.literal_eval(node)


def encode_default(operator: str, column: str, value: Any, dtype: pl.DataType) -> Any:
    """A default as JSON, checked against the type of its column."""
    try:
        series = pl.Series(column, [value], dtype=dtype, strict=True)
        plain = series.to_physical().to_list()[0] if dtype.is_temporal() else value
        json.dumps(plain, allow_nan=False)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
        raise DeclarationError(
            f"the default {value!r} of state column '{column}' does not fit {dtype}: {str(error).splitlines()[0]}",
            cure="give a finite number, a text, a boolean, a date or time, None, or lists of them, of the column's"
            " own type",
            operator=operator,
        ) from error
    return plain


def decode_default(value: Any, dtype: pl.DataType) -> Any:
    """The default as a Python value."""
    if value is None or not dtype.is_temporal():
        return value
    return pl.Series([value]).cast(pl.Int32 if dtype == pl.Date else pl.Int64).cast(dtype).to_list()[0]
