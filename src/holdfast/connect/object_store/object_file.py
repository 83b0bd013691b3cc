"""An object as a file to read: looked at, opened, and read at any place.

A reader sees the object as it was when it was opened: what it reads later is asked for by the tag of the object, and
refused if another object has taken its place.

The modification time of an object has seconds only, and an object may be put twice within one. Its nanoseconds are a
fingerprint of the object's tag here, so that an object which was put again never looks the same.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field, replace
from typing import BinaryIO, Literal, cast
from zlib import crc32

from holdfast.connect.object_store.bucket import Bucket, StoredObject
from holdfast.errors import CorruptFileError

__all__ = ["ObjectFile", "ObjectStat"]

_WINDOW = 1 << 16
_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """An object as `stat` tells of a file."""

    st_size: int
    st_mtime_ns: int
    st_ctime_ns: int

    @staticmethod
    def of(found: StoredObject) -> ObjectStat:
        changed = int(found.modified.timestamp()) * _SECOND
        return ObjectStat(found.size, changed + crc32(found.tag.encode()) % _SECOND, changed)


@dataclass(frozen=True, slots=True)
class ObjectFile:
    """See `InputFile`."""

    bucket: Bucket
    key: str
    known: StoredObject | None = field(default=None, compare=False, repr=False)
    """The object as it was when this was pinned to it: it is not asked for again."""

    def __str__(self) -> str:
        return self.bucket.address(self.key)

    def pinned(self) -> ObjectFile:
        """This file, to be read as the object that it is now; if there is none, whoever looks at it is told."""
        return replace(self, known=self.bucket.head(self.key))

    def stat(self) -> ObjectStat:
        return ObjectStat.of(self._head())

    def open(self, mode: Literal["rb"]) -> BinaryIO:
        return cast(BinaryIO, _ObjectReader(self, self._head()))

    def _head(self) -> StoredObject:
        found = self.known or self.bucket.head(self.key)
        if found is None:
            raise FileNotFoundError(f"there is no object {self}")
        return found


class _ObjectReader(io.RawIOBase):
    """One request for each large read; small ones are served from a window that is read around them."""

    def __init__(self, file: ObjectFile, found: StoredObject) -> None:
        super().__init__()
        self._file = file
        self._found = found
        self._at = 0
        self._window = (0, b"")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._found.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        rest = max(0, self._found.size - self._at)
        wanted = rest if size is None or size < 0 else min(size, rest)
        content = self._fetch(self._at, self._at + wanted) if wanted >= _WINDOW else self._near(wanted)
        self._at += len(content)
        return content

    def readline(self, size: int | None = -1) -> bytes:
        start, line = self._at, bytearray()
        while part := self.read(_WINDOW - 1):
            end = part.find(b"\n") + 1
            line += part[:end] if end else part
            if end:
                break
        if size is not None and size >= 0:
            del line[size:]
        self._at = start + len(line)
        return bytes(line)

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        content = self.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def _near(self, wanted: int) -> bytes:
        start, content = self._window
        if not wanted or not start <= self._at <= self._at + wanted <= start + len(content):
            start = self._at
            content = self._fetch(start, min(start + _WINDOW, self._found.size)) if wanted else b""
            self._window = (start, content)
        return content[self._at - start : self._at - start + wanted]

    def _fetch(self, start: int, stop: int) -> bytes:
        try:
            content = self._file.bucket.read(self._file.key, start, stop, self._found.tag)
        except FileNotFoundError:
            content = None
        if content is None or len(content) != stop - start:
            raise CorruptFileError(
                f"the object {self._file} was deleted or overwritten while it was being read",
                cure="restore it as it was; write new rows under a new name, and delete input only after the epochs"
                " that read it are committed",
            )
        return content
