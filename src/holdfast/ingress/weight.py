"""How much memory rows will take, told before they are made, from the declared schema and the text they come as.

`{}` is a row of a hundred columns in three bytes, and an empty line one of a String. A body is refused by its weight,
and its weight is set aside while it is decoded, so that what clients send together stays within the memory of a source.
"""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from holdfast.errors import BodyTooLargeError

__all__ = [
    "MOST_TIMES_BODY",
    "Hold",
    "check_weight",
    "element_bytes",
    "row_bytes",
    "shown_bytes",
    "text_bytes",
    "value_bytes",
]

Hold = Callable[[int], None]
"""Sets memory aside for a body, or refuses it."""

MOST_TIMES_BODY = 4
"""Rows may take so many times `max_body` in memory."""
_VIEW_BYTES = 16
"""A text or binary value, whatever its length; its bytes come on top. Also the widest number."""


def check_weight(size: int, max_body: int, what: str, place: str | None = None) -> int:
    """Refuse what would take too much memory; returns the size."""
    most = MOST_TIMES_BODY * max_body
    if size > most:
        raise BodyTooLargeError(
            f"{what} would take {size:,} bytes of memory, more than {MOST_TIMES_BODY} times the limit of {max_body:,}",
            cure="cut it into several batches, each with its own batch id, or declare push(..., max_body=...)",
            place=place,
        )
    return size


def row_bytes(schema: pl.Schema) -> int:
    """What a row takes, its texts and lists empty."""
    return sum(value_bytes(dtype) for dtype in schema.values())


def value_bytes(dtype: pl.DataType) -> int:
    """What a value takes, its texts and lists empty."""
    if isinstance(dtype, pl.Struct):
        fields: list[int] = [value_bytes(field.dtype) for field in dtype.fields]  # type: ignore[arg-type]
        return 1 + sum(fields)
    if isinstance(dtype, pl.Array):
        return 1 + dtype.size * value_bytes(dtype.inner)  # type: ignore[arg-type]
    if dtype.is_integer() or dtype.is_float():
        return _number_bytes(dtype)
    return 1 if isinstance(dtype, (pl.Boolean, pl.Null)) else _VIEW_BYTES


def element_bytes(dtype: pl.DataType) -> int:
    """What the widest of the values within a value takes."""
    if isinstance(dtype, (pl.List, pl.Array)):
        return element_bytes(dtype.inner)  # type: ignore[arg-type]
    if isinstance(dtype, pl.Struct):
        return max((element_bytes(field.dtype) for field in dtype.fields), default=1)  # type: ignore[arg-type]
    return value_bytes(dtype)


def shown_bytes(column: pl.Series) -> int:
    """The bytes of all texts in a column. Many of them may show the same bytes in memory, and will not on disk."""
    if isinstance(column.dtype, pl.String):
        return int(column.str.len_bytes().sum())
    if isinstance(column.dtype, pl.Binary):
        return int(column.bin.size().sum())
    if isinstance(column.dtype, (pl.List, pl.Array)):
        return shown_bytes(column.explode()) if _has_text(column.dtype) else 0
    if isinstance(column.dtype, pl.Struct):
        return sum(shown_bytes(column.struct.field(field.name)) for field in column.dtype.fields)
    return 0


def _has_text(dtype: pl.DataType) -> bool:
    if isinstance(dtype, (pl.List, pl.Array)):
        return _has_text(dtype.inner)  # type: ignore[arg-type]
    if isinstance(dtype, pl.Struct):
        return any(_has_text(field.dtype) for field in dtype.fields)  # type: ignore[arg-type]
    return isinstance(dtype, (pl.String, pl.Binary))


def _number_bytes(dtype: pl.DataType) -> int:
    return next((int(bits) // 8 for bits in ("128", "16", "32", "64", "8") if str(dtype).endswith(bits)), _VIEW_BYTES)


def text_bytes(text: bytes, schema: pl.Schema) -> int:
    """What lines of text take as rows, at most: each line is one row, and what lists hold is counted by their marks."""
    rows = text.count(b"\n") + (not text.endswith(b"\n"))
    return len(text) + rows * row_bytes(schema) + sum(_elements(text, dtype) for dtype in schema.values())


def _elements(text: bytes, dtype: pl.DataType) -> int:
    if isinstance(dtype, pl.Struct):
        fields: list[int] = [_elements(text, field.dtype) for field in dtype.fields]  # type: ignore[arg-type]
        return sum(fields)
    if not isinstance(dtype, pl.List):
        return 0
    inner: pl.DataType = dtype.inner  # type: ignore[assignment]
    within = _elements(text, inner)
    if isinstance(inner, pl.Struct):
        return within + value_bytes(inner) * (text.count(b"{") + text.count(b"null"))
    return within + value_bytes(inner) * (text.count(b",") + text.count(b"["))
