"""What an encoding is: a pair of encode and decode between values and plain Arrow arrays.

Encodings form cascades: each turns its input into smaller streams and hands every stream to a child. What a decoder
needs is in a JSON-able description; the bulk is in `Parts`, a list of Arrow arrays.

Numbers travel as NumPy arrays. A decoder may give back any integer type that holds the same values, and for floats
either the floats or their bits; `exactly` turns that into the type of the column. Text (strings and binary) travels as
a Polars series without nulls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from holdfast.errors import UnknownVersionError

__all__ = [
    "Encoding",
    "EncodingMisfitError",
    "Meta",
    "Numbers",
    "Parts",
    "as_arrow",
    "as_bits",
    "as_numpy",
    "decode_numbers",
    "decode_text",
    "encode_numbers",
    "exactly",
    "register",
    "smallest_type",
]

Numbers = npt.NDArray[Any]
Meta = dict[str, Any]


class EncodingMisfitError(Exception):
    """The values break what the encoding assumes. Never leaves this package: the encoder takes another encoding."""


class Parts:
    """The Arrow arrays of an encoded column, in the order in which they were added."""

    def __init__(self, arrays: list[pa.Array] | None = None) -> None:
        self.arrays: list[pa.Array] = [] if arrays is None else arrays

    def add(self, array: pa.Array | Numbers) -> int:
        self.arrays.append(as_arrow(array) if isinstance(array, np.ndarray) else array)
        return len(self.arrays) - 1

    def numbers(self, index: int) -> Numbers:
        """The part as it lies in the file, not copied."""
        return as_numpy(self.arrays[index])

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)


class Encoding:
    """One node of a cascade. Subclasses are frozen dataclasses whose fields are parameters and child encodings.

    `encode` raises `MisfitError` when the values do not suit; it may then have added parts, which the caller drops.
    """

    tag: ClassVar[str]
    lossy: ClassVar[bool] = False

    def encode(self, values: Numbers, out: Parts) -> Meta:
        """Put the streams into `out` and describe them. The values are never empty."""
        raise EncodingMisfitError(f"{self.tag} is for text")

    @classmethod
    def decode(cls, meta: Meta, parts: Parts) -> Numbers:
        raise AssertionError(f"{cls.tag} never holds numbers")

    def encode_text(self, values: pl.Series, out: Parts) -> Meta:
        raise EncodingMisfitError(f"{self.tag} is for numbers")

    @classmethod
    def decode_text(cls, meta: Meta, parts: Parts) -> pl.Series:
        raise AssertionError(f"{cls.tag} never holds text")

    def children(self) -> list[Encoding]:
        found = (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]
        return [value for value in found if isinstance(value, Encoding)]

    def is_lossy(self) -> bool:
        return self.lossy or any(child.is_lossy() for child in self.children())

    def __str__(self) -> str:
        inner = []
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value is not None and not (isinstance(value, Encoding) and value.tag == "plain"):
                inner.append(str(value))
        return f"{self.tag}({', '.join(inner)})" if inner else self.tag


_known: dict[str, type[Encoding]] = {}
_Kind = TypeVar("_Kind", bound=type[Encoding])


def register(tag: str) -> Callable[[_Kind], _Kind]:
    """Make the class the decoder of all descriptions with this tag."""

    def keep(kind: _Kind) -> _Kind:
        kind.tag = tag
        _known[tag] = kind
        return kind

    return keep


def _decoder(meta: Meta) -> type[Encoding]:
    kind = _known.get(meta["e"])
    if kind is None:
        raise UnknownVersionError(
            f"a column is encoded as '{meta['e']}', which this program does not know",
            cure="run the version of Holdfast that wrote the store, or a newer one that can read it",
        )
    return kind


def encode_numbers(encoding: Encoding, values: Numbers, out: Parts) -> Meta:
    if values.size == 0:
        return {"e": "empty", "t": values.dtype.str}
    return {"e": encoding.tag, **encoding.encode(values, out)}


def decode_numbers(meta: Meta, parts: Parts) -> Numbers:
    if meta["e"] == "empty":
        return np.empty(0, meta["t"])
    return _decoder(meta).decode(meta, parts)


def decode_text(meta: Meta, parts: Parts) -> pl.Series:
    return _decoder(meta).decode_text(meta, parts)


def as_arrow(values: Numbers) -> pa.Array:
    """The same memory as an Arrow array. (PyArrow's own conversions import pandas, which takes over a second.)"""
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), values.size, [None, data])


def as_numpy(array: pa.Array) -> Numbers:
    """The memory of an Arrow array of numbers without nulls."""
    dtype = np.dtype({"float": "<f4", "double": "<f8"}.get(str(array.type), str(array.type)))
    data = array.buffers()[1]
    if len(array) == 0:
        return np.empty(0, dtype)
    return np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize)


def as_bits(values: Numbers) -> Numbers:
    """The same memory as unsigned integers."""
    return values.view(f"<u{values.dtype.itemsize}")


def exactly(values: Numbers, dtype: np.dtype[Any]) -> Numbers:
    """What a decoder gave back, in the type the values had: integers widened, bits of floats made floats."""
    if values.dtype == dtype:
        return values
    if dtype.kind == "f" and values.dtype.kind in "iu":
        return values.astype(f"<u{dtype.itemsize}").view(dtype)
    return values.astype(dtype)


def smallest_type(low: int, high: int) -> np.dtype[Any]:
    """The smallest integer type that holds both; unsigned where both kinds do."""
    if low >= 0:
        return np.dtype(f"<u{next(size for size in (1, 2, 4, 8) if high < 1 << (8 * size))}")
    size = next(size for size in (1, 2, 4, 8) if -(1 << (8 * size - 1)) <= low and high < 1 << (8 * size - 1))
    return np.dtype(f"<i{size}")
