"""The pieces of a Parquet object that some of its rows need, in a file of this machine.

The file is as long as the object and has its footer, and of the row groups the columns that are asked for; the rest is
a hole that takes no space. So an object is decoded as a local file is, with as few requests as its layout allows.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.connect.formats.input_file import InputFile
from holdfast.connect.object_store.object_file import ObjectFile
from holdfast.errors import CorruptFileError

__all__ = ["at_hand", "read_footer"]

_MAGIC = b"PAR1"
_TRAILER = 8
"""Bytes behind the footer: its length, and the magic word."""
_GUESS = 1 << 16
_GAP = 1 << 20
"""Bytes between two pieces that are read with them, rather than by another request."""


def read_footer(path: InputFile) -> pq.FileMetaData:
    """What the footer of a file says."""
    if isinstance(path, ObjectFile):
        return pq.read_metadata(pa.BufferReader(_MAGIC + _footer(path, path.stat().st_mtime_ns)))
    return pq.read_metadata(path)


@contextmanager
def at_hand(path: InputFile, low: int = 0, high: int = 0, columns: Sequence[str] = ()) -> Iterator[Path]:
    """A local file with the footer of a file, and the columns of its rows [low, high)."""
    if isinstance(path, Path):
        yield path
        return
    assert isinstance(path, ObjectFile)
    found = path.stat()
    footer = _footer(path, found.st_mtime_ns)
    with _hollow_file(found.st_size) as (handle, local):
        _fill(handle, _MAGIC, 0)
        _fill(handle, footer, found.st_size - len(footer))
        if low < high:
            meta = pq.read_metadata(pa.BufferReader(_MAGIC + footer))
            ranges = _joined(_chunks(meta, low, high, columns), found.st_size)
            for start, content in path.bucket.read_ranges(path.key, ranges):
                _fill(handle, content, start)
        yield local


@lru_cache(maxsize=64)
def _footer(path: ObjectFile, mtime_ns: int) -> bytes:
    """The footer with what is behind it. Kept, since planning asks for it again and again."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _GUESS))
        tail = file.read()
        if size < len(_MAGIC) + _TRAILER or tail[-4:] != _MAGIC:
            raise CorruptFileError(
                f"{path} does not end as a Parquet file does",
                cure="it is truncated, damaged or of another format: write it again, or remove it from the input",
            )
        length = int.from_bytes(tail[-_TRAILER:-4], "little") + _TRAILER
        if len(tail) < min(length, size):
            file.seek(max(0, size - length))
            tail = file.read()
    return tail[-length:]


def _chunks(meta: pq.FileMetaData, low: int, high: int, columns: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Where the columns are, in those row groups that have some of the rows."""
    wanted, first = frozenset(columns), 0
    for number in range(meta.num_row_groups):
        group = meta.row_group(number)
        if first < high and first + group.num_rows > low:
            for index in range(group.num_columns):
                chunk = group.column(index)
                # Of a nested column the path goes on behind its name.
                if chunk.path_in_schema in wanted or chunk.path_in_schema.partition(".")[0] in wanted:
                    begins = [chunk.data_page_offset]
                    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                        begins.append(chunk.dictionary_page_offset)
                    yield min(begins), min(begins) + chunk.total_compressed_size
        first += group.num_rows


def _joined(chunks: Iterator[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """The same bytes in fewer ranges, with what lies between those that are close."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(chunks):
        if joined and start - joined[-1][1] <= _GAP:
            joined[-1] = (joined[-1][0], max(joined[-1][1], stop))
        else:
            joined.append((start, stop))
    return [(start, min(stop, size)) for start, stop in joined if start < size]


@contextmanager
def _hollow_file(size: int) -> Iterator[tuple[int, Path]]:
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("holdfast-parquet")
        try:
            os.ftruncate(handle, size)
            yield handle, Path(f"/proc/self/fd/{handle}")
        finally:
            os.close(handle)
        return
    with tempfile.NamedTemporaryFile(prefix="holdfast-", suffix=".parquet") as file:
        os.ftruncate(file.fileno(), size)
        yield file.fileno(), Path(file.name)


def _fill(handle: int, content: bytes | memoryview, at: int) -> None:
    view = memoryview(content)
    while view:
        done = os.pwrite(handle, view, at)
        view, at = view[done:], at + done
