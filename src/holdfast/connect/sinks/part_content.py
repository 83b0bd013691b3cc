"""The content of output files: rows as Parquet, NDJSON or Arrow IPC, and back."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import Literal, cast, get_args

import polars as pl

from holdfast.errors import DeclarationError

__all__ = ["EPOCH_KEY", "SinkFormat", "check_columns", "encoded_part", "rows_of_parts"]

SinkFormat = Literal["parquet", "ndjson", "arrow"]

EPOCH_KEY = "epoch"
"""What the directories of an output are called by: "epoch=000000000012"."""


def _write_parquet(rows: pl.DataFrame, to: io.BytesIO) -> None:
    rows.write_parquet(to)


def _write_ndjson(rows: pl.DataFrame, to: io.BytesIO) -> None:
    rows.write_ndjson(to)


def _write_arrow(rows: pl.DataFrame, to: io.BytesIO) -> None:
    # The oldest layout: Spark and older Arrow readers do not know string views.
    rows.write_ipc(to, compression="uncompressed", compat_level=pl.CompatLevel.oldest())


_WRITERS: dict[SinkFormat, Callable[[pl.DataFrame, io.BytesIO], None]] = {
    "parquet": _write_parquet,
    "ndjson": _write_ndjson,
    "arrow": _write_arrow,
}


def check_columns(schema: pl.Schema) -> None:
    """Refuse a column that readers of the output would not get."""
    for column in schema:
        if column.casefold() == EPOCH_KEY:
            raise DeclarationError(
                f"column '{column}' would be lost: readers of the directories '{EPOCH_KEY}=…' of the output get their"
                " number in its place",
                cure=f"give it another name before the sink, e.g. .select(pl.exclude('{column}'),"
                f" pl.col('{column}').alias('{column}_'))",
            )


def encoded_part(rows: pl.DataFrame, format: SinkFormat) -> memoryview:
    """Rows as the content of a file."""
    buffer = io.BytesIO()
    _WRITERS[format](rows, buffer)
    return buffer.getbuffer()


def rows_of_parts(
    parts: Iterable[tuple[str, Callable[[], bytes]]], format: SinkFormat | None, schema: pl.Schema | None
) -> pl.DataFrame:
    """The rows of files in their order, given by name; of those in a format, or of all in any. A column that some do
    not have is null there."""
    formats = get_args(SinkFormat) if format is None else (format,)
    frames = [
        _decoded(read(), cast("SinkFormat", suffix), schema)
        for name, read in parts
        if (suffix := name.rpartition(".")[2]) in formats
    ]
    return pl.concat(frames, how="diagonal") if frames else pl.DataFrame(schema=schema)


def _decoded(content: bytes, format: SinkFormat, schema: pl.Schema | None) -> pl.DataFrame:
    """The rows of a file; `schema` types those of NDJSON."""
    if format == "parquet":
        return pl.read_parquet(content)
    if format == "arrow":
        return pl.read_ipc(content)
    return pl.read_ndjson(content, schema=schema, infer_schema_length=None)
