"""What the file source asks of a file format.

A file is a range of units: rows where the format counts them in its metadata (Parquet, Arrow), bytes where
rows are lines (CSV, NDJSON). Planning cuts ranges of units, reading turns a range into rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from holdfast.connect.base import Sifted
from holdfast.connect.formats.input_file import InputFile
from holdfast.connect.source_need import SourceNeed

__all__ = ["BadRow", "Extent", "FileFormat", "Rows", "first_line"]


@dataclass(frozen=True, slots=True)
class Extent:
    """The units of a file that hold rows, [start, stop), and how many units a row takes on average."""

    start: int
    stop: int
    per_row: float


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that does not fit: where in the file it begins, why it does not fit, and its text."""

    at: int
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a range in order, and those that did not fit. `sifted` is what they were if rows were left out."""

    frame: pl.DataFrame
    bad: tuple[BadRow, ...] = ()
    sifted: Sifted | None = None


class FileFormat(ABC):
    """One way to store rows in a file. Instances are values: settings only, hashable, pickled into tasks."""

    @abstractmethod
    def infer(self, path: InputFile) -> pl.Schema:
        """The schema a file has of itself."""

    @abstractmethod
    def check_schema(self, schema: pl.Schema) -> None:
        """Refuse types the format cannot hold, while declaring."""

    @abstractmethod
    def extent(self, path: InputFile) -> Extent:
        """Where the rows of a file are."""

    @abstractmethod
    def row_bytes(self, path: InputFile, columns: Sequence[str]) -> float | None:
        """About how many bytes of the file are read for a row of these columns; None where there is no row."""

    def is_whole(self, path: InputFile) -> bool | None:
        """Whether the file says of itself that nothing is missing; None where the format has no way to say so."""
        return None

    def trace(self, path: InputFile, at: int) -> str | None:
        """What tells that the file is still the same up to `at`; None where a changed file has nothing in common with
        what it was."""
        return None

    @abstractmethod
    def cut(self, path: InputFile, start: int, at: int, stop: int) -> int:
        """The place not before `at` where a range that begins at `start` may end; `stop` where there is none."""

    @abstractmethod
    def read(self, path: InputFile, start: int, stop: int, schema: pl.Schema, need: SourceNeed) -> Iterator[Rows]:
        """The rows of a range, in pieces of bounded size, with the columns of the schema that are needed. Whether the
        file has the others is checked, what is in them is not looked at."""


def first_line(error: BaseException) -> str:
    """The part of a library's message that is worth a place in ours."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
