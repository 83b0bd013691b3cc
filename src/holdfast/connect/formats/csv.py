"""CSV: columns by header or by place, one row per line.

Not supported: a line break inside quotes. Such a row is two lines, and both are bad rows that say so.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from holdfast.connect.formats.file_format import first_line
from holdfast.connect.formats.input_file import InputFile
from holdfast.connect.formats.lines import BOM, LineFormat, LineParser, MisfitError, head
from holdfast.errors import BadRowError, CorruptFileError, DeclarationError, WrongTypeError

__all__ = ["CsvFormat", "CsvParser", "split_fields"]

_BLANK = re.compile(rb"(?m)^\r?\n")
_CACHED = 1 << 18
"""Bytes that are looked at together, so that what is computed about them stays in the cache."""
_UNUSABLE = (pl.Duration, pl.Binary, pl.List, pl.Array, pl.Struct, pl.Object)


@dataclass(frozen=True, slots=True)
class CsvFormat(LineFormat):
    """The dialect: header or not, separator, and the texts that mean null."""

    has_header: bool = True
    separator: str = ","
    null_values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.separator.encode()) != 1 or self.separator in '"\r\n':
            raise DeclarationError(
                f"{self.separator!r} cannot separate CSV fields",
                cure="give one ASCII character, such as ',' or '\\t'",
            )

    def infer(self, path: InputFile) -> pl.Schema:
        try:
            sample = pl.read_csv(
                head(path, 1 << 20),
                has_header=self.has_header,
                separator=self.separator,
                null_values=list(self.null_values) or None,
                infer_schema_length=None,
                try_parse_dates=True,
            )
        except pl.exceptions.PolarsError as error:
            raise CorruptFileError(
                f"cannot infer a schema from {path}: {first_line(error)}", cure="give files() a schema"
            ) from error
        return sample.schema

    def check_schema(self, schema: pl.Schema) -> None:
        for name, dtype in schema.items():
            if isinstance(dtype, _UNUSABLE):
                raise WrongTypeError(
                    f"column '{name}': CSV cannot hold {dtype}",
                    cure=f"declare '{name}' as String and convert it in the pipeline",
                )

    def data_start(self, path: InputFile) -> int:
        with path.open("rb") as file:
            if self.has_header:
                return len(file.readline())
            return len(BOM) if file.read(len(BOM)) == BOM else 0

    def parser(self, path: InputFile, schema: pl.Schema, columns: Sequence[str]) -> LineParser:
        found = self._header(path) if self.has_header else schema.names()
        for name in schema.names():
            if name not in found:
                raise BadRowError(
                    f"the header of {path} has no column '{name}'; it has {', '.join(found)}",
                    cure=f"leave '{name}' out of the schema given to files(), or set has_header=False"
                    " if the first line is a row",
                )
        if len(set(found)) != len(found):
            raise BadRowError(
                f"the header of {path} names a column twice: {', '.join(found)}",
                cure="rename the columns in the file, or skip the header and declare a schema for all columns",
            )
        return CsvParser(self, tuple(found), pl.Schema({name: schema[name] for name in columns}))

    def _header(self, path: InputFile) -> list[str]:
        line = head(path).partition(b"\n")[0].decode(errors="replace").rstrip("\r")
        return split_fields(line, self.separator)


@dataclass(frozen=True, slots=True)
class CsvParser:
    """Parses lines of one file. `columns` are those of the file, `schema` those that are wanted."""

    dialect: CsvFormat
    columns: tuple[str, ...]
    schema: pl.Schema

    def parse(self, lines: bytes) -> pl.DataFrame:
        # The last column is read in any case. Polars fills up a line that is too short with nulls, and refuses one that
        # is too long if it has to read that far: where the last column has no nulls, every line has all its fields.
        names = list(dict.fromkeys([*self.schema, self.columns[-1]]))
        frame = self._read(lines, names)
        if frame[self.columns[-1]].null_count():
            if len(self.columns) > 1 and _has_blank(lines):
                lines = _BLANK.sub(b"", lines)
                frame = self._read(lines, names)
            separators, expected = _count_separators(lines, self.dialect.separator), len(self.columns) - 1
            if separators != _count_lines(lines) * expected:
                raise MisfitError(f"expected {expected + 1} fields, found {separators + 1}")
        elif b'"' not in lines:
            return frame.select(self.schema.names())
        if frame.height != _count_lines(lines):
            raise MisfitError("a quote is not closed, or is in the middle of a field")
        return frame.select(self.schema.names())

    def is_blank(self, line: bytes) -> bool:
        # With one column an empty line is a null.
        return len(self.columns) > 1 and not line.strip(b"\r\n")

    def suspects(self, lines: Sequence[bytes]) -> dict[int, str]:
        found: dict[int, str] = {}
        wanted = len(self.columns)
        for index, line in enumerate(lines):
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                found[index] = f"not UTF-8: {error.reason} at byte {error.start} of the line"
                continue
            if line.count(b'"') % 2:
                found[index] = "a quote is not closed; a row must be one line"
                continue
            fields = split_fields(text.rstrip("\r\n"), self.dialect.separator) or [""]
            if len(fields) != wanted:
                found[index] = f"expected {wanted} fields, found {len(fields)}"
        found.update(self._wrong_values(lines, [i for i in range(len(lines)) if i not in found]))
        return found

    def _wrong_values(self, lines: Sequence[bytes], rows: Sequence[int]) -> dict[int, str]:
        """Values that become null when errors are ignored, though their text is not null."""
        block = b"".join(lines[i] for i in rows)
        if block and not block.endswith(b"\n"):
            block += b"\n"
        try:
            texts = self._read(block, self.schema.names(), as_text=True)
            typed = self._read(block, self.schema.names(), ignore_errors=True)
        except MisfitError:
            return {}
        found: dict[int, str] = {}
        if texts.height != len(rows) or typed.height != len(rows):
            return found
        for name in self.schema.names():
            lost = texts[name].is_not_null() & (texts[name] != "") & typed[name].is_null()
            for i in lost.arg_true().to_list():
                reason = f"'{texts[name][i]}' in column '{name}' is not {self.schema[name]}"
                found.setdefault(rows[i], reason)
        return found

    def _read(
        self, lines: bytes, names: Sequence[str], *, as_text: bool = False, ignore_errors: bool = False
    ) -> pl.DataFrame:
        """These columns. Those that nobody wants are text."""
        types = {name: pl.String() if as_text else self.schema.get(name, pl.String()) for name in self.columns}
        if not lines:
            return pl.DataFrame(schema={name: types[name] for name in names})
        # Without a header Polars wants columns to be chosen by the names that it gives them itself.
        own = {name: f"column_{number}" for number, name in enumerate(self.columns, start=1)}
        try:
            frame = pl.read_csv(
                lines,
                has_header=False,
                schema={own[name]: dtype for name, dtype in types.items()},
                columns=[own[name] for name in names],
                separator=self.dialect.separator,
                quote_char='"' if b'"' in lines else None,  # it is faster without
                null_values=list(self.dialect.null_values) or None,
                ignore_errors=ignore_errors,
            )
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise MisfitError(first_line(error)) from error
        return frame.select(pl.col(own[name]).alias(name) for name in names)


def split_fields(line: str, separator: str = ",") -> list[str]:
    """The fields of a line. What Python's reader gives up on, such as a field of more than 128 KiB, has no quotes to
    it that could be trusted."""
    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:
        return line.split(separator)


def _has_blank(lines: bytes) -> bool:
    return lines.startswith((b"\n", b"\r\n")) or b"\n\n" in lines or b"\n\r\n" in lines


def _count_lines(lines: bytes) -> int:
    """Lines, also where the last one does not end."""
    text = np.frombuffer(lines, dtype=np.uint8)
    ends = sum(int(np.count_nonzero(text[at : at + _CACHED] == ord("\n"))) for at in range(0, len(text), _CACHED))
    return ends + (len(lines) > 0 and not lines.endswith(b"\n"))


def _count_separators(lines: bytes, separator: str) -> int:
    """Separators outside quotes. MisfitError where a line ends inside quotes."""
    mark = separator.encode()
    if b'"' not in lines:
        return lines.count(mark)
    text = np.frombuffer(lines, dtype=np.uint8)
    # The sum may wrap: 256 is even, so the parity is right all the same.
    quoted = (np.cumsum(text == ord('"'), dtype=np.uint8) & 1).astype(bool)
    if quoted[-1] or quoted[text == ord("\n")].any():
        raise MisfitError("a quote is not closed; a row must be one line")
    return int(np.count_nonzero((text == mark[0]) & ~quoted))
