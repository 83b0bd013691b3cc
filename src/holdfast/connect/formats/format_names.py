"""The file formats by their names, and by the extensions of files."""

from __future__ import annotations

import os
from typing import Literal, get_args

from holdfast.connect.formats.columnar import ArrowFormat, ParquetFormat
from holdfast.connect.formats.csv import CsvFormat
from holdfast.connect.formats.file_format import FileFormat
from holdfast.connect.formats.ndjson import NdjsonFormat
from holdfast.errors import DeclarationError

__all__ = ["FormatName", "file_format", "guessed_format", "has_extension"]

FormatName = Literal["parquet", "csv", "ndjson", "arrow"]

_EXTENSIONS: dict[str, FormatName] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".json": "ndjson",
    ".arrow": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
}


def file_format(name: FormatName, csv: CsvFormat) -> FileFormat:
    """The format of this name; CSV has settings."""
    formats: dict[FormatName, FileFormat] = {
        "parquet": ParquetFormat(),
        "arrow": ArrowFormat(),
        "csv": csv,
        "ndjson": NdjsonFormat(),
    }
    if name not in formats:
        raise DeclarationError(
            f"files(): unknown format={name!r}", cure=f"use one of {', '.join(get_args(FormatName))}"
        )
    return formats[name]


def has_extension(file: str) -> bool:
    """Whether the name of a file tells its format."""
    return os.path.splitext(file)[1].lower() in _EXTENSIONS


def guessed_format(file: str, where: str) -> FormatName:
    """The format that a file has by its name. `where` is where it was found."""
    extension = os.path.splitext(file)[1].lower()
    if extension not in _EXTENSIONS:
        raise DeclarationError(
            f"files(): cannot tell the format of {where}",
            cure=f"give files() a format: one of {', '.join(get_args(FormatName))}",
        )
    return _EXTENSIONS[extension]
