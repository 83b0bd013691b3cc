"""From the bytes of a body to rows of the declared schema: NDJSON, CSV, Arrow IPC, and lines of text.

Lines are judged by the same parsers as those of files, so a row that fits in a file fits here. A body is decoded as a
whole before a row of it is taken. Where rows that do not fit are an error, the first of them is named by its line and
byte; where they are skipped, they are counted and the first few are named. Arrow columns are taken as they are, or cast
where no value can be lost; offsets and text encodings are verified, since they come from outside. What the rows will
take in memory is known before they are made (`weight`, `arrow_messages`), and set aside by the caller's `hold`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import polars as pl
import pyarrow as pa

from holdfast.connect.formats.columnar import fit
from holdfast.connect.formats.csv import CsvFormat, CsvParser, split_fields
from holdfast.connect.formats.file_format import BadRow, Rows, first_line
from holdfast.connect.formats.lines import BOM, LineParser, MisfitError, sort_out
from holdfast.connect.formats.ndjson import NdjsonFormat, NdjsonParser
from holdfast.connect.sources.push import LineFormatName
from holdfast.connect.sources.received import ReceivedSource
from holdfast.errors import (
    BadRowError,
    MalformedBodyError,
    SchemaMismatchError,
    UnsupportedBodyError,
    WrongTypeError,
)
from holdfast.ingress.admission import NEVER_SKIPPED, admit_frame, admit_lines
from holdfast.ingress.arrow_messages import Scale, messages_of
from holdfast.ingress.weight import Hold, check_weight, shown_bytes, text_bytes
from holdfast.json_text import parse_json

__all__ = [
    "BodyKind",
    "Decoded",
    "Skipped",
    "TextParser",
    "decode",
    "fit_batch",
    "line_parser",
    "sorted_blocks",
    "split_bad",
]

BodyKind = Literal["ndjson", "csv", "csv-no-header", "arrow-stream", "arrow-file"]

_BLOCK_BYTES = 4 << 20
_SLOW_BYTES = 128 << 10
"""Lines that do not all fit are looked at one by one, as objects of Python: so many bytes at a time."""
_FILE_MAGIC = b"ARROW1"
_MOST_NAMED = 10


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
    first_skipped: tuple[Skipped, ...] = ()


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


def decode(kind: BodyKind, body: bytes | bytearray, source: ReceivedSource, hold: Hold) -> Decoded:
    """The rows of a body, all of them or an error."""
    if kind in ("arrow-stream", "arrow-file"):
        frame, outside = admit_frame(_arrow(kind, memoryview(body), source, hold), source)
        if outside is None:
            return Decoded(frame)
        first_skipped = [
            Skipped(at + 1, reason) for at, reason in zip(outside.at, outside.reasons(_MOST_NAMED), strict=False)
        ]
        return Decoded(frame, len(outside.at), tuple(first_skipped))
    if kind == "ndjson":
        _check_holds(NdjsonFormat(), source.schema)
        start = len(BOM) if body.startswith(BOM) else 0
        return _lines(body, start, 1, NdjsonParser(source.schema), source, hold)
    _check_holds(CsvFormat(), source.schema)
    if kind == "csv-no-header":
        return _lines(body, 0, 1, line_parser("csv", source.schema), source, hold)
    end = body.find(b"\n") + 1 or len(body)
    parser = CsvParser(CsvFormat(), _csv_columns(bytes(body[:end]), source.schema), source.schema)
    return _lines(body, end, 2, parser, source, hold)


def _check_holds(format: NdjsonFormat | CsvFormat, schema: pl.Schema) -> None:
    try:
        format.check_schema(schema)
    except WrongTypeError as error:
        raise UnsupportedBodyError(error.problem, cure="send Arrow, which holds every type") from error


# lines


def _lines(
    body: bytes | bytearray, start: int, line: int, parser: LineParser, source: ReceivedSource, hold: Hold
) -> Decoded:
    """Block by block, so that a body full of rows that do not fit costs little before it is refused."""
    frames: list[pl.DataFrame] = []
    skipped, first_skipped = 0, list[Skipped]()
    size = 0
    for at, block in _blocks(body, start, _BLOCK_BYTES):
        weight = text_bytes(block, source.schema)
        size = check_weight(size + weight, source.max_body, "the rows of the body", f"line {line} (byte {at})")
        hold(weight)
        for within, part, sorted_rows in sorted_blocks(block, parser):
            rows = admit_lines(sorted_rows, part, parser, source)
            if rows.bad and source.bad_rows == "fail":
                bad = rows.bad[0]
                raise split_bad(bad, line + part.count(b"\n", 0, bad.at), at + within + bad.at, parser)
            skipped += len(rows.bad)
            first_skipped += [
                Skipped(line + part.count(b"\n", 0, bad.at), bad.reason)
                for bad in rows.bad[: _MOST_NAMED - len(first_skipped)]
            ]
            frames.append(rows.frame)
            line += part.count(b"\n")
    frame = pl.concat(frames) if frames else pl.DataFrame(schema=source.schema)
    return Decoded(frame, skipped, tuple(first_skipped))


def sorted_blocks(block: bytes, parser: LineParser) -> Iterator[tuple[int, bytes, Rows]]:
    """The rows of a block: at once where all fit, otherwise in parts, each with its place in the block."""
    try:
        yield 0, block, Rows(parser.parse(block))
        return
    except MisfitError:
        pass
    for at, part in _blocks(block, 0, _SLOW_BYTES):
        yield at, part, sort_out(part, parser)


def _blocks(body: bytes | bytearray, start: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Whole lines, about `size` bytes at a time, each with its place in the body."""
    while start < len(body):
        stop = len(body)
        if stop - start > size:
            newline = body.find(b"\n", start + size)
            stop = newline + 1 if newline >= 0 else stop
        yield start, bytes(body[start:stop])
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
            return not isinstance(parse_json(text), dict)
        except ValueError:
            return True
    if isinstance(parser, CsvParser):
        return text.count('"') % 2 == 1 or len(split_fields(text)) != len(parser.columns)
    return True


def _csv_columns(header: bytes, schema: pl.Schema) -> tuple[str, ...]:
    text = header.removeprefix(BOM).decode(errors="replace").rstrip("\r\n")
    columns = split_fields(text)
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


def _arrow(kind: BodyKind, body: memoryview, source: ReceivedSource, hold: Hold) -> pl.DataFrame:
    stream = _stream_of_file(body) if kind == "arrow-file" else body
    hold(_weigh(stream, source))
    frames: list[pl.DataFrame] = []
    try:
        for number, batch in enumerate(pa.ipc.open_stream(pa.py_buffer(stream))):
            frames.append(fit_batch(batch, source, number, hold))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _not_arrow(first_line(error), len(frames)) from error
    return pl.concat(frames) if frames else pl.DataFrame(schema=source.schema)


def _stream_of_file(body: memoryview) -> memoryview:
    """A file is a stream between two marks; its footer, which repeats where the batches lie, is not needed."""
    if len(body) < 8 or not bytes(body[:8]).startswith(_FILE_MAGIC) or not bytes(body[-8:]).endswith(_FILE_MAGIC):
        raise _not_arrow("it does not begin and end as a file does", 0)
    return body[8:]


def _weigh(stream: memoryview, source: ReceivedSource) -> int:
    """What the whole stream takes in memory, from what its messages say."""
    scale = Scale(source.schema)
    size, batches = 0, 0
    try:
        for message in messages_of(stream):
            place = f"record batch {batches}"
            size = check_weight(size + scale.weigh(message), source.max_body, "the body, unpacked,", place)
            batches += message.kind == "batch"
    except (MalformedBodyError, SchemaMismatchError) as error:
        error.place = error.place or f"record batch {batches}"
        raise
    return size


def _not_arrow(why: str, number: int) -> MalformedBodyError:
    place = f"record batch {number}"
    return MalformedBodyError(
        f"{place}: not readable Arrow IPC: {why}",
        cure="send a whole stream with its end, as pyarrow.ipc.new_stream() or polars' write_ipc_stream() make it;"
        " the file format has the type application/vnd.apache.arrow.file",
        place=place,
    )


def fit_batch(batch: pa.RecordBatch, source: ReceivedSource, number: int, hold: Hold) -> pl.DataFrame:
    """The declared columns of a record batch."""
    schema, place = source.schema, f"record batch {number}"
    names = batch.schema.names
    wanted = [index for index, name in enumerate(names) if name in schema]
    try:
        batch = batch.select(wanted) if len(wanted) < len(names) else batch
        batch.validate(full=True)
        repeated = sum(
            _repeated_bytes(column)
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
            if not isinstance(schema[name], (pl.Categorical, pl.Enum))
        )
        hold(check_weight(repeated, source.max_body, f"the texts of {place}", place))
        frame = pl.from_arrow(batch)
        assert isinstance(frame, pl.DataFrame)
        if frame.schema != schema:
            frame = frame.select(_columns(pl.Schema(frame.schema), schema, names))
    except (pa.ArrowException, pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError) as error:
        raise MalformedBodyError(f"{place}: {first_line(error)}", cure="send valid Arrow data", place=place) from error
    # Texts of several rows may be the same bytes of the message.
    shown = sum(shown_bytes(column) for column in frame.iter_columns())
    if shown > batch.nbytes:
        hold(check_weight(shown, source.max_body, f"the texts of {place}", place))
    return frame


def _repeated_bytes(column: pa.Array) -> int:
    """The bytes of texts that stand once in a dictionary and come to stand in every row."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        texts, codes = pl.from_arrow(column.dictionary), pl.from_arrow(column.indices)
        assert isinstance(texts, pl.Series)
        assert isinstance(codes, pl.Series)
        return int(texts.str.len_bytes().gather(codes).sum()) if isinstance(texts.dtype, pl.String) else 0
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _repeated_bytes(column.flatten())
    if pa.types.is_struct(kind):
        return sum(_repeated_bytes(field) for field in column.flatten())
    if pa.types.is_map(kind):
        return _repeated_bytes(column.keys) + _repeated_bytes(column.items)
    return 0


def _columns(found: pl.Schema, wanted: pl.Schema, sent: Sequence[str]) -> list[pl.Expr]:
    columns: list[pl.Expr] = []
    for name, dtype in wanted.items():
        if name not in found:
            raise SchemaMismatchError(
                f"there is no column '{name}' ({dtype}); found: {', '.join(sent) or 'none'}",
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
