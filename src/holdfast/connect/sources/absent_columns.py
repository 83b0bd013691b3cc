"""Declared columns that do not occur in a file of JSON objects: they are null in all of its rows, and perhaps misspelt.

A field that is missing is as good as one that is null, so this is no error. People are told, by what the first rows of
a file show.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches

import polars as pl

from holdfast.connect.formats.input_file import InputFile
from holdfast.connect.formats.ndjson import NdjsonFormat
from holdfast.connect.sources.file_set import FileId

__all__ = ["AbsentColumns"]


@dataclass(slots=True)
class AbsentColumns:
    """What was found in the files that were looked at. A column is told of until one of them has it, and not again."""

    _absent: dict[str, str] = field(default_factory=dict)
    _present: set[str] = field(default_factory=set)
    _looked_at: FileId | None = None

    def look(self, file: FileId, path: InputFile, format: NdjsonFormat, schema: pl.Schema) -> None:
        """Look at the first rows of a file, unless it is the one that was looked at last."""
        if file == self._looked_at or self._present.issuperset(schema):
            return
        self._looked_at = file
        names, rows, all_rows = format.first_names(path)
        if not rows:
            return
        self._present |= names
        undeclared = sorted(names - set(schema))
        for column in schema:
            if column in self._present:
                self._absent.pop(column, None)
            elif column not in self._absent:
                where = "no row" if all_rows else f"none of the first {rows:,} rows"
                near = get_close_matches(column, undeclared, n=1)
                hint = f": did you mean '{near[0]}'?" if near else ""
                self._absent[column] = f"column '{column}' occurs in {where} of {path}, so it is null there{hint}"

    def notices(self) -> tuple[str, ...]:
        return tuple(self._absent.values())
