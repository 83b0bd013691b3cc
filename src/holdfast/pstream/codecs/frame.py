"""The container: a frame as one row of Arrow lists, with a description that is all a reader needs.

The encoded arrays have different lengths, so each is the single element of a list column; the columns are numbered.
Read from a mapped Arrow file, the arrays lie in the file. The description is JSON in the schema's metadata and has a
version; an unknown version or encoding is refused.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from polars.exceptions import PanicException, PolarsError

from holdfast.errors import CorruptPUnitError, UnknownVersionError
from holdfast.pstream.codecs.column import (
    EncodedColumn,
    decode_column,
    encode_column,
    is_encodable,
    is_text,
    keep_column,
)
from holdfast.pstream.codecs.encoding import Encoding, EncodingMisfitError, as_arrow
from holdfast.pstream.codecs.floats import Scaled
from holdfast.pstream.codecs.narrow import BaseDelta, Plain

__all__ = ["CONTAINER_VERSION", "Encoded", "Lossy", "decode_frame", "encode_frame", "is_encoded", "safe_encoding"]

CONTAINER_VERSION = 1
_KEY = b"holdfast.codecs"
_WRONG = (
    pa.ArrowException, PolarsError, PanicException, ValueError, TypeError, LookupError, ArithmeticError,
    AssertionError, AttributeError, StopIteration, RuntimeError, MemoryError,
)  # fmt: skip
"""What the decoders stumble over when what they read is not what the encoders wrote."""


@dataclass(frozen=True, slots=True)
class Lossy:
    """The user's word that a float column may be rounded, each value by no more than `max_error`."""

    column: str
    max_error: float


@dataclass(frozen=True, slots=True)
class Encoded:
    """An encoded frame: the table to be written, and what came of the plan, by column."""

    table: pa.Table
    rows: int
    sizes: Mapping[str, int]
    used: Mapping[str, Encoding]
    seconds: Mapping[str, float]
    fallbacks: Mapping[str, str]
    """Why a column could not be encoded as planned."""

    @property
    def nbytes(self) -> int:
        return sum(self.sizes.values())


def safe_encoding(dtype: pl.DataType) -> Encoding:
    """What is used without statistics: it suits any values of the type and costs next to nothing."""
    narrows = is_encodable(dtype) and not is_text(dtype) and not dtype.is_float() and dtype != pl.Boolean
    return BaseDelta() if narrows else Plain()


def encode_frame(
    frame: pl.DataFrame,
    plan: Mapping[str, Encoding] | None = None,
    lossy: Iterable[Lossy] = (),
    clock: Callable[[], float] = time.thread_time,
) -> Encoded:
    """Encode each column as planned, or safely where there is no plan or the batch breaks what the plan assumes.

    An encoding that loses precision is used only for columns named in `lossy`, within the error stated there.
    """
    plan = plan or {}
    bounds = {setting.column: setting.max_error for setting in lossy}
    columns: list[EncodedColumn] = []
    sizes: dict[str, int] = {}
    used: dict[str, Encoding] = {}
    seconds: dict[str, float] = {}
    fallbacks: dict[str, str] = {}
    for series in frame.get_columns():
        started = clock()
        name = series.name
        safe = safe_encoding(series.dtype)
        planned = plan.get(name)
        if planned is None:
            planned = Scaled(bounds[name]) if name in bounds else safe
        column, used[name], problem = _encode(series, planned, safe, bounds.get(name))
        if problem is not None and planned != safe:
            fallbacks[name] = problem
        columns.append(column)
        sizes[name] = column.nbytes
        seconds[name] = clock() - started
    return Encoded(_table(frame.height, columns), frame.height, sizes, used, seconds, fallbacks)


def _encode(
    series: pl.Series, planned: Encoding, safe: Encoding, bound: float | None
) -> tuple[EncodedColumn, Encoding, str | None]:
    problem = None
    for encoding in (planned, safe):
        try:
            _check_lossy(encoding, bound)
            return encode_column(series, encoding), encoding, problem
        except EncodingMisfitError as misfit:
            problem = problem or str(misfit)
    return keep_column(series), Plain(), problem


def _check_lossy(encoding: Encoding, bound: float | None) -> None:
    if not encoding.is_lossy():
        return
    if bound is None:
        raise EncodingMisfitError("the column was not declared lossy")
    if not isinstance(encoding, Scaled) or not 0 < encoding.max_error <= bound:
        raise EncodingMisfitError(f"the planned error is not within {bound}")


def _table(rows: int, columns: Sequence[EncodedColumn]) -> pa.Table:
    lists: list[pa.Array] = []
    fields: list[pa.Field] = []
    described: list[dict[str, Any]] = []
    for column in columns:
        described.append({**column.meta, "parts": [len(lists), len(column.fields)]})
        for array, item in zip(column.parts.arrays, column.fields, strict=True):
            kind = pa.large_list(item)
            fields.append(pa.field(str(len(lists)), kind, nullable=False))
            ends = as_arrow(np.array([0, len(array)], np.int64))
            lists.append(pa.LargeListArray.from_arrays(ends, array, type=kind))
    text = json.dumps({"version": CONTAINER_VERSION, "rows": rows, "columns": described}, separators=(",", ":"))
    return pa.Table.from_arrays(lists, schema=pa.schema(fields, metadata={_KEY: text.encode()}))


def is_encoded(table: pa.Table) -> bool:
    """Whether the table is such a container, of any version."""
    return _KEY in (table.schema.metadata or {})


def decode_frame(encoded: Encoded | pa.Table, columns: Sequence[str] | None = None) -> pl.DataFrame:
    """The rows, bit for bit. With `columns`, only those are decoded, in the order of the frame."""
    try:
        return _decoded(encoded, columns)
    except _WRONG as error:
        raise CorruptPUnitError(
            f"encoded rows cannot be read: {type(error).__name__}: {str(error).partition(chr(10))[0][:200]}",
            cure="restore the p-unit from a copy of the store; the run stopped before using it",
        ) from error


def _decoded(encoded: Encoded | pa.Table, columns: Sequence[str] | None) -> pl.DataFrame:
    table = encoded.table if isinstance(encoded, Encoded) else encoded
    described = _description(table)
    wanted = None if columns is None else set(columns)
    chosen = [column for column in described["columns"] if wanted is None or column["name"] in wanted]
    if not chosen:
        return pl.DataFrame(height=described["rows"])
    # By name: a list of series would give a name to a column that has none.
    return pl.DataFrame({column["name"]: _decode(table, column) for column in chosen})


def _description(table: pa.Table) -> dict[str, Any]:
    text = (table.schema.metadata or {}).get(_KEY)
    described: dict[str, Any] = json.loads(text) if text is not None else {}
    version = described.get("version", "none")
    if version != CONTAINER_VERSION:
        raise UnknownVersionError(
            f"the rows are encoded in version {version}; this program knows version {CONTAINER_VERSION}",
            cure="run the version of Holdfast that wrote the store, or a newer one that can read it",
        )
    return described


def _decode(table: pa.Table, column: dict[str, Any]) -> pl.Series:
    first, count = column["parts"]
    arrays = [_element(table.column(index)) for index in range(first, first + count)]
    fields = [table.schema.field(index).type.value_field for index in range(first, first + count)]
    return decode_column(column, arrays, fields)


def _element(lists: pa.ChunkedArray) -> pa.Array:
    chunk = next(chunk for chunk in lists.chunks if len(chunk))
    start, end = chunk.offsets[0].as_py(), chunk.offsets[1].as_py()
    return chunk.values.slice(start, end - start)
