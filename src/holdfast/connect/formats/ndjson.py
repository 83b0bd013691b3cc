"""Newline-delimited JSON: one object per line, fields by name.

A field that is missing is null, one that is not declared is ignored. A String column takes any JSON value
as its text. Every other type takes its own kind of value only: no number is cut, no text is read as a
number.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from holdfast.connect.formats.file_format import first_line
from holdfast.connect.formats.input_file import InputFile
from holdfast.connect.formats.lines import BOM, SAMPLE_BYTES, LineFormat, LineParser, MisfitError, head
from holdfast.errors import CorruptFileError, WrongTypeError
from holdfast.json_text import parse_json

__all__ = ["NdjsonFormat", "NdjsonParser"]

# Polars' JSON reader panics on these; they are read wide and cast, strictly.
_NARROW = (pl.Int8, pl.Int16, pl.UInt8, pl.UInt16)
_FIRST_ROWS = 1_000
_UNUSABLE = (pl.Time, pl.Duration, pl.Decimal, pl.Binary, pl.Array, pl.Object, pl.Int128)


@dataclass(frozen=True, slots=True)
class NdjsonFormat(LineFormat):
    """Has no settings."""

    def infer(self, path: InputFile) -> pl.Schema:
        try:
            return pl.read_ndjson(head(path, 1 << 20), infer_schema_length=None).schema
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise CorruptFileError(
                f"cannot infer a schema from {path}: {first_line(error)}", cure="give files() a schema"
            ) from error

    def check_schema(self, schema: pl.Schema) -> None:
        for name, dtype in schema.items():
            if isinstance(dtype, _UNUSABLE):
                raise WrongTypeError(
                    f"column '{name}': JSON cannot hold {dtype}",
                    cure=f"declare '{name}' as String and convert it in the pipeline",
                )

    def first_names(self, path: InputFile) -> tuple[set[str], int, bool]:
        """The names of fields in the first rows of a file, how many rows those are, and whether they are all."""
        lines = head(path).splitlines()
        names, rows = set[str](), 0
        for line in lines[:_FIRST_ROWS]:
            try:
                row = parse_json(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                names.update(row)
                rows += 1
        return names, rows, len(lines) <= _FIRST_ROWS and path.stat().st_size <= SAMPLE_BYTES

    def data_start(self, path: InputFile) -> int:
        with path.open("rb") as file:
            return len(BOM) if file.read(len(BOM)) == BOM else 0

    def parser(self, path: InputFile, schema: pl.Schema, columns: Sequence[str]) -> LineParser:
        return NdjsonParser(pl.Schema({name: schema[name] for name in columns}))


@dataclass(frozen=True, slots=True)
class NdjsonParser:
    """Parses lines into rows of `schema`."""

    schema: pl.Schema

    def parse(self, lines: bytes) -> pl.DataFrame:
        if not lines or lines.isspace():
            return pl.DataFrame(schema=self.schema)
        wide = {name: pl.Int64() if isinstance(t, _NARROW) else t for name, t in self.schema.items()}
        try:
            frame = pl.read_ndjson(lines, schema=wide)
            narrow = [pl.col(n).cast(t) for n, t in self.schema.items() if isinstance(t, _NARROW)]
            return frame.with_columns(narrow) if narrow else frame
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise MisfitError(first_line(error)) from error

    def is_blank(self, line: bytes) -> bool:
        return not line.strip()

    def suspects(self, lines: Sequence[bytes]) -> dict[int, str]:
        found: dict[int, str] = {}
        kinds = {name: kind for name, dtype in self.schema.items() if (kind := _kind(dtype)) is not None}
        for index, line in enumerate(lines):
            try:
                row = parse_json(line)
            except ValueError as error:
                found[index] = f"malformed JSON: {first_line(error)}"
                continue
            if not isinstance(row, dict):
                found[index] = f"a JSON {type(row).__name__} instead of an object"
                continue
            for name, kind in kinds.items():
                value = row.get(name)
                # bool is an int to Python, not to JSON
                if value is not None and (
                    not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)
                ):
                    found[index] = f"{json.dumps(value)} in column '{name}' is not {self.schema[name]}"
                    break
        return found


def _kind(dtype: pl.DataType) -> type | tuple[type, ...] | None:
    """The Python type of a JSON value that may fit, None where a look at the type says too little."""
    if dtype.is_integer():
        return int
    if dtype.is_float():
        return (int, float)
    if isinstance(dtype, pl.Boolean):
        return bool
    if dtype.is_temporal() or isinstance(dtype, (pl.Categorical, pl.Enum)):
        return str
    return None
