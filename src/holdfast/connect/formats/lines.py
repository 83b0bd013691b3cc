"""Files whose rows are lines: where they may be cut, and which of their rows do not fit.

A row is one line, for every format here; so a file can be cut at any newline that a seek lands on, and
whether a row fits does not depend on how the file was cut. Lines that are blank are no rows.

Reading has a fast path and a slow one. The fast path parses a whole block at once, strictly. Only when that
fails are the lines of the block looked at one by one: a quick check of each line names suspects, a suspect
that does not parse by itself is bad, and what is left is parsed together, by halves where it still does not
fit. The strict parser alone judges; the check only saves it work.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import BinaryIO, Protocol

import polars as pl

from holdfast.connect.formats.columnar import CHUNK_ROWS
from holdfast.connect.formats.file_format import BadRow, Extent, FileFormat, Rows
from holdfast.connect.formats.input_file import InputFile
from holdfast.connect.source_need import SourceNeed
from holdfast.errors import CorruptFileError

__all__ = ["LineFormat", "LineParser", "MisfitError", "head", "line_number", "sort_out"]

BLOCK_BYTES = 8 << 20
"""Below what the allocator gives back to the system at once, and little enough for a part of it to stay in caches."""
_GATHERED_BYTES = 32 << 20
"""Of rows that go on together. What follows costs milliseconds however few rows there are."""
SAMPLE_BYTES = 1 << 16
BOM = b"\xef\xbb\xbf"


class MisfitError(Exception):
    """A block of lines is not, line for line, rows of the schema. The message is the reason."""


class LineParser(Protocol):
    """Turns lines into rows of one schema."""

    def parse(self, lines: bytes) -> pl.DataFrame:
        """All lines as rows, one for one (blank lines aside), or MisfitError."""

    def is_blank(self, line: bytes) -> bool:
        """Whether a line is no row."""

    def suspects(self, lines: Sequence[bytes]) -> dict[int, str]:
        """Indexes of lines that probably do not fit, with the reason. May miss some and may be wrong."""


class LineFormat(FileFormat):
    """The half of a text format that knows lines only."""

    @abstractmethod
    def parser(self, path: InputFile, schema: pl.Schema, columns: Sequence[str]) -> LineParser:
        """The parser of these columns for one file; it may look at the file's header."""

    @abstractmethod
    def data_start(self, path: InputFile) -> int:
        """The byte at which the first row begins."""

    def extent(self, path: InputFile) -> Extent:
        start, stop = self.data_start(path), path.stat().st_size
        with path.open("rb") as file:
            file.seek(start)
            sample = file.read(SAMPLE_BYTES)
        return Extent(start, max(start, stop), max(1.0, len(sample) / max(1, sample.count(b"\n"))))

    def row_bytes(self, path: InputFile, columns: Sequence[str]) -> float | None:
        extent = self.extent(path)
        return extent.per_row if extent.start < extent.stop else None

    def trace(self, path: InputFile, at: int) -> str | None:
        """A checksum of the first and the last bytes before `at`, however large the file is."""
        with path.open("rb") as file:
            first = file.read(min(at, SAMPLE_BYTES))
            file.seek(max(0, at - SAMPLE_BYTES))
            last = file.read(min(at, SAMPLE_BYTES))
        return blake2b(first + last, digest_size=16).hexdigest() if len(last) == min(at, SAMPLE_BYTES) else None

    def cut(self, path: InputFile, start: int, at: int, stop: int) -> int:
        with path.open("rb") as file:
            return _line_start(file, at, stop)

    def read(self, path: InputFile, start: int, stop: int, schema: pl.Schema, need: SourceNeed) -> Iterator[Rows]:
        parser = self.parser(path, schema, need.columns)
        gathered, size = list[Rows](), 0.0
        for at, block in _blocks(path, start, stop):
            rows = sort_out(block, parser)
            bad = tuple(BadRow(at + row.at, row.reason, row.text) for row in rows.bad)
            gathered.append(Rows(rows.frame, bad))
            size += rows.frame.estimated_size()
            if bad or size >= _GATHERED_BYTES or sum(rows.frame.height for rows in gathered) >= CHUNK_ROWS:
                yield from _together(gathered)
                gathered, size = [], 0.0
        yield from _together(gathered)


def _together(gathered: Sequence[Rows]) -> Iterator[Rows]:
    """The rows of several blocks, of which the last one alone may have bad ones, in chunks."""
    if not gathered:
        return
    frame, bad = pl.concat([rows.frame for rows in gathered]), gathered[-1].bad
    for number, part in enumerate(frame.iter_slices(CHUNK_ROWS)):
        yield Rows(part, bad if number == 0 else ())
    if frame.height == 0 and bad:
        yield Rows(frame, bad)


def sort_out(block: bytes, parser: LineParser) -> Rows:
    """The rows of a block, and those that do not fit, with their offsets in the block."""
    try:
        return Rows(parser.parse(block))
    except MisfitError:
        pass
    lines = _split(block)
    starts = [0, *accumulate(len(line) for line in lines)]
    rows = [i for i, line in enumerate(lines) if not parser.is_blank(line)]
    bad: dict[int, str] = {}
    for index, reason in parser.suspects([lines[i] for i in rows]).items():
        if not _fits(lines[rows[index]], parser):
            bad[rows[index]] = reason
    frames = list(_by_halves(lines, [i for i in rows if i not in bad], parser, bad))
    frame = pl.concat(frames) if frames else parser.parse(b"")
    found = tuple(BadRow(starts[i], bad[i], lines[i].rstrip(b"\r\n").decode(errors="replace")) for i in sorted(bad))
    return Rows(frame, found)


def _split(block: bytes) -> list[bytes]:
    # Not splitlines(): it would also end a line at a lone carriage return.
    lines = [line + b"\n" for line in block.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _fits(line: bytes, parser: LineParser) -> bool:
    try:
        return parser.parse(line).height == 1
    except MisfitError:
        return False


def _by_halves(
    lines: Sequence[bytes], rows: Sequence[int], parser: LineParser, bad: dict[int, str]
) -> Iterator[pl.DataFrame]:
    """Parse the given lines in the largest runs that fit, in order; lines that fit in none are added to
    `bad`."""
    if not rows:
        return
    try:
        yield parser.parse(b"".join(lines[i] for i in rows))
    except MisfitError as misfit:
        if len(rows) == 1:
            bad[rows[0]] = str(misfit)
            return
        middle = len(rows) // 2
        yield from _by_halves(lines, rows[:middle], parser, bad)
        yield from _by_halves(lines, rows[middle:], parser, bad)


def _blocks(path: InputFile, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """The bytes of a range in blocks that end with a newline, each with its place in the file."""
    with path.open("rb") as file:
        at = start
        while at < stop:
            end = _line_start(file, min(at + BLOCK_BYTES, stop), stop)
            file.seek(at)
            block = file.read(end - at)
            if len(block) < end - at:
                raise CorruptFileError(
                    f"the file {path} ends at byte {at + len(block)}, but it was planned up to byte {stop}",
                    cure="the file was cut short: put it back as it was",
                )
            yield at, block
            at = end


def _line_start(file: BinaryIO, at: int, stop: int) -> int:
    """The first place not before `at` where a line begins; `stop` where there is none before it."""
    if at >= stop:
        return stop
    # A newline just before `at` makes `at` itself a good place.
    place = max(0, at - 1)
    file.seek(place)
    while place < stop:
        block = file.read(SAMPLE_BYTES)
        if not block:
            break
        found = block.find(b"\n")
        if found >= 0:
            return min(stop, place + found + 1)
        place += len(block)
    return stop


def head(path: InputFile, limit: int = SAMPLE_BYTES) -> bytes:
    """The first whole lines of a file, at least one, without a byte order mark."""
    with path.open("rb") as file:
        text = file.read(limit)
        if b"\n" not in text:
            text += file.readline()
        elif len(text) == limit:
            text = text[: text.rfind(b"\n") + 1]
    return text.removeprefix(BOM)


def line_number(path: InputFile, at: int) -> int:
    """The number of the line that begins at byte `at`, from 1. Reads the file up to there, so only for
    errors."""
    lines = 1
    with path.open("rb") as file:
        while at > 0 and (block := file.read(min(BLOCK_BYTES, at))):
            lines += block.count(b"\n")
            at -= len(block)
    return lines
