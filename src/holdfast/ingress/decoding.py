"""From the bytes of a body to rows of the declared schema: NDJSON, CSV, Arrow IPC, and lines of text.

Lines are judged by the same parsers as those of files, so a row that fits in a file fits here. A body is decoded as a
whole before a row of it is taken. Where rows that do not fit are an error, the first of them is named by its line and
byte; where they are skipped, they are counted and the first few are told. Arrow columns are taken as they are, or cast
where no value can be lost; offsets and text encodings are verified, since they come from outside.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import polars as pl
import pyarrow as pa

from holdfast.connect._columnar import fit
from holdfast.connect._csv import CsvFormat, CsvParser
from holdfast.connect._format import BadRow, first_line
from holdfast.connect._lines import BOM, LineParser, MisfitError, sort_out
from holdfast.connect._ndjson import NdjsonFormat, NdjsonParser
from holdfast.connect.push import LineFormatName, PushSource
from holdfast.errors import BadRowError, MalformedBodyError, SchemaMismatchError, UnsupportedBodyError, WrongTypeError
from holdfast.ingress.admission import NEVER_SKIPPED, admit_frame, admit_lines

__all__ = ["BodyKind", "Decoded", "Skipped", "TextParser", "decode", "fit_batch", "line_parser", "split_bad"]

BodyKind = Literal["ndjson", "csv", "csv-no-header", "arrow-stream", "arrow-file"]

_BLOCK_BYTES = 4 << 20
_TOLD = 10


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that was not taken because it does not fit: its line, or its number among the rows of Arrow."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Decoded:
    """The rows of a body in their order; how many did not fit, and the first of those."""

    frame: pl.DataFrame
    skipped: int = 0
    told: tuple[Skipped, ...] = ()


@dataclass(frozen=True, slots=True)
class TextParser:
    """Lines as they are, in the one column of the schema. An empty line is a row like any other."""

    schema: pl.Schema

    def parse(self, lines: bytes) -> pl.DataFrame:
        try:
            rows = [line.removesuffix("\r") for line in lines.decode().removesuffix("\n").split("\n")] if lines else []
        except UnicodeDecodeError as error:
            raise MisfitError(f"not UTF-8: {error.reason}") from error
        return pl.DataFrame({self.schema.names()[0]: rows}, schema=self.schema)

    def is_blank(self, line: bytes) -> bool:
        return False

    def suspects(self, lines: Sequence[bytes]) -> dict[int, str]:
        return {}


def line_parser(lines: LineFormatName, schema: pl.Schema) -> LineParser:
    """The parser for lines that come without a header."""
    if lines == "ndjson":
        return NdjsonParser(schema)
    if lines == "csv":
        return CsvParser(CsvFormat(has_header=False), tuple(schema.names()), schema)
    return TextParser(schema)


def decode(kind: BodyKind, body: bytes, source: PushSource) -> Decoded:
    """The rows of a body, all of them or an error."""
    if kind in ("arrow-stream", "arrow-file"):
        frame, outside = admit_frame(_arrow(kind, body, source), source)
        if outside is None:
            return Decoded(frame)
        told = [Skipped(at + 1, reason) for at, reason in zip(outside.at, outside.reasons(_TOLD), strict=False)]
        return Decoded(frame, len(outside.at), tuple(told))
    if kind == "ndjson":
        _check_holds(NdjsonFormat(), source.schema)
        start = len(BOM) if body.startswith(BOM) else 0
        return _lines(body, start, 1, NdjsonParser(source.schema), source)
    _check_holds(CsvFormat(), source.schema)
    if kind == "csv-no-header":
        return _lines(body, 0, 1, line_parser("csv", source.schema), source)
    header, newline, _ = body.partition(b"\n")
    parser = CsvParser(CsvFormat(), _csv_columns(header, source.schema), source.schema)
    return _lines(body, len(header) + len(newline), 2, parser, source)


def _check_holds(format: NdjsonFormat | CsvFormat, schema: pl.Schema) -> None:
    try:
        format.check_schema(schema)
    except WrongTypeError as error:
        raise UnsupportedBodyError(error.problem, cure="send Arrow, which holds every type") from error


# lines


def _lines(body: bytes, start: int, line: int, parser: LineParser, source: PushSource) -> Decoded:
    """Block by block, so that a body full of rows that do not fit costs little before it is refused."""
    frames: list[pl.DataFrame] = []
    skipped, told = 0, list[Skipped]()
    for at, block in _blocks(body, start):
        rows = admit_lines(sort_out(block, parser), block, parser, source)
        if rows.bad and source.bad_rows == "fail":
            raise split_bad(rows.bad[0], line + block.count(b"\n", 0, rows.bad[0].at), at + rows.bad[0].at, parser)
        skipped += len(rows.bad)
        told += [Skipped(line + block.count(b"\n", 0, bad.at), bad.reason) for bad in rows.bad[: _TOLD - len(told)]]
        frames.append(rows.frame)
        line += block.count(b"\n")
    frame = pl.concat(frames) if frames else pl.DataFrame(schema=source.schema)
    return Decoded(frame, skipped, tuple(told))


def _blocks(body: bytes, start: int) -> Iterator[tuple[int, bytes]]:
    while start < len(body):
        stop = len(body)
        if stop - start > _BLOCK_BYTES:
            newline = body.find(b"\n", start + _BLOCK_BYTES)
            stop = newline + 1 if newline >= 0 else stop
        yield start, body[start:stop] if start or stop < len(body) else body
        start = stop


def split_bad(bad: BadRow, line: int, at: int | None, parser: LineParser) -> MalformedBodyError | SchemaMismatchError:
    """The error for a row: malformed where it is no row of the format at all, a mismatch where its values do not fit.

    `at` is the byte of the body at which the line begins, where there is a body.
    """
    kind = MalformedBodyError if _is_malformed(bad.text, parser) else SchemaMismatchError
    place = f"line {line}" if at is None else f"line {line} (byte {at})"
    return kind(f"{place}: {bad.reason}; the row is: {bad.text[:200]}", cure=NEVER_SKIPPED, place=place)


def _is_malformed(text: str, parser: LineParser) -> bool:
    if "\ufffd" in text:
        return True
    if isinstance(parser, NdjsonParser):
        try:
            return not isinstance(json.loads(text), dict)
        except ValueError:
            return True
    if isinstance(parser, CsvParser):
        return text.count('"') % 2 == 1 or len(next(csv.reader([text]), [""])) != len(parser.columns)
    return True


def _csv_columns(header: bytes, schema: pl.Schema) -> tuple[str, ...]:
    text = header.removeprefix(BOM).decode(errors="replace").rstrip("\r")
    columns = next(csv.reader([text]), [])
    for name in schema.names():
        if name not in columns:
            raise SchemaMismatchError(
                f"the header has no column '{name}'; it has {', '.join(columns) or 'nothing'}",
                cure="send all declared columns, or say 'text/csv; header=absent' if the first line is a row",
                place="line 1 (byte 0)",
            )
    if len(set(columns)) != len(columns):
        raise SchemaMismatchError(
            f"the header names a column twice: {', '.join(columns)}", cure="rename one", place="line 1 (byte 0)"
        )
    return tuple(columns)


# Arrow


def _arrow(kind: BodyKind, body: bytes, source: PushSource) -> pl.DataFrame:
    frames: list[pl.DataFrame] = []
    size = 0
    try:
        if kind == "arrow-file":
            file = pa.ipc.open_file(pa.py_buffer(body))
            batches = (file.get_batch(number) for number in range(file.num_record_batches))
        else:
            batches = iter(pa.ipc.open_stream(pa.py_buffer(body)))
        for number, batch in enumerate(batches):
            size += batch.nbytes
            if size > 16 * source.max_body:
                # Compressed buffers and repeated dictionaries may hold far more than the body shows.
                raise MalformedBodyError(
                    f"record batch {number} unpacks to more than 16 times the limit of a body",
                    cure="send smaller bodies",
                    place=f"record batch {number}",
                )
            frames.append(fit_batch(batch, source.schema, number))
    except (pa.ArrowException, OSError, ValueError) as error:
        place = f"record batch {len(frames)}"
        raise MalformedBodyError(
            f"{place}: not Arrow IPC that can be read: {first_line(error)}",
            cure="send a whole stream with its end, as pyarrow.ipc.new_stream() or polars' write_ipc_stream() make it;"
            " the file format has the type application/vnd.apache.arrow.file",
            place=place,
        ) from error
    return pl.concat(frames) if frames else pl.DataFrame(schema=source.schema)


def fit_batch(batch: pa.RecordBatch, schema: pl.Schema, number: int) -> pl.DataFrame:
    """The declared columns of a record batch."""
    for index, column in enumerate(batch.columns):
        if pa.types.is_primitive(column.type):
            continue
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            place = f"record batch {number}, column '{batch.schema.names[index]}'"
            raise MalformedBodyError(
                f"{place}: {first_line(error)}", cure="send valid Arrow data", place=place
            ) from error
    frame = pl.from_arrow(batch)
    assert isinstance(frame, pl.DataFrame)
    if frame.schema == schema:
        return frame
    return frame.select(_columns(frame.schema, schema))


def _columns(found: pl.Schema, wanted: pl.Schema) -> list[pl.Expr]:
    columns: list[pl.Expr] = []
    for name, dtype in wanted.items():
        if name not in found:
            raise SchemaMismatchError(
                f"there is no column '{name}' ({dtype}); found are {', '.join(found.names()) or 'none'}",
                cure="send all declared columns",
                place=f"column '{name}'",
            )
        try:
            columns += fit(pl.Schema({name: found[name]}), pl.Schema({name: dtype}), Path())
        except BadRowError as error:
            raise SchemaMismatchError(
                f"column '{name}': expected {dtype}, found {found[name]}",
                cure=f"send '{name}' as {dtype}",
                place=f"column '{name}', row 1",
            ) from error
    return columns
