"""A file to read: a `Path`, or an object of an object store, which is asked for the same things by the same names."""

from __future__ import annotations

from typing import BinaryIO, Literal, Protocol

__all__ = ["FileStat", "InputFile"]


class FileStat(Protocol):
    """What a file is now."""

    @property
    def st_size(self) -> int: ...

    @property
    def st_mtime_ns(self) -> int: ...


class InputFile(Protocol):
    """A value: it may be hashed and pickled. Its text is what people call it."""

    def __hash__(self) -> int: ...

    def open(self, mode: Literal["rb"]) -> BinaryIO:
        """A reader of the file as it is now, which can seek."""

    def stat(self) -> FileStat:
        """Raises FileNotFoundError."""
