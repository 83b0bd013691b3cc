"""What is odd about the files of a source, so that a person should know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import polars as pl

from holdfast.connect.formats.file_format import FileFormat
from holdfast.connect.formats.ndjson import NdjsonFormat
from holdfast.connect.sources.absent_columns import AbsentColumns
from holdfast.connect.sources.file_set import FileId, FileSet, Memory
from holdfast.connect.sources.object_set import ObjectSet
from holdfast.errors import HoldfastError

__all__ = ["FileNotices"]


@dataclass(slots=True)
class FileNotices:
    """`grows` is whether files are waited for."""

    files: FileSet | ObjectSet
    format: FileFormat
    schema: pl.Schema
    grows: bool
    _absent: AbsentColumns = field(default_factory=AbsentColumns)

    def look(
        self, memory: Memory, is_complete: Callable[[FileId], bool], is_slow: Callable[[FileId], bool]
    ) -> tuple[str, ...]:
        """`is_slow` is whether a file that is not complete has kept those behind it waiting for long."""
        if not self.grows:
            with suppress(HoldfastError, OSError):  # `take` says so, when the turn of a file comes
                return self._null_columns(memory, self.files.present(memory), is_complete)
            return ()
        if self.files.is_missing():
            return (f"the directory {self.files.root} does not exist: is the path right? Files are read once it does",)
        present = self.files.present(memory)
        if not present and not memory.last:
            return (f"there is no file at {self.files.describe()} yet",)
        new = [file for file in present if memory.is_new(file)]
        held_up = len(new) > 1 and is_slow(new[0]) and not is_complete(new[0])
        return (
            *((self._held_up(new[0]),) if held_up else ()),
            *self._changed(memory, present),
            *self._null_columns(memory, present, is_complete),
        )

    def _held_up(self, by: FileId) -> str:
        return (
            f"{self.files.path(by.name)} is still being written, and the files after it wait for it: write it under a"
            " name that starts with '.' and rename it when it is complete, or read with order='arrival'"
        )

    def _changed(self, memory: Memory, present: Sequence[FileId]) -> tuple[str, ...]:
        if changed := memory.changed(present):
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            return (
                f"{self.files.path(changed[0])}{more} changed after it was read; the change was not read: put new rows"
                " into a new file",
            )
        return ()

    def _null_columns(
        self, memory: Memory, present: Sequence[FileId], is_complete: Callable[[FileId], bool]
    ) -> tuple[str, ...]:
        """Which declared columns were not found, as far as the next file shows, or the last one."""
        if not isinstance(self.format, NdjsonFormat):
            return ()
        last = [file for file in present if file.name == memory.last]
        for file in [file for file in present if memory.is_new(file)][:1] or last:
            with suppress(OSError):  # it is going away
                if is_complete(file):
                    self._absent.look(file, self.files.path(file.name), self.format, self.schema)
        return self._absent.notices()
