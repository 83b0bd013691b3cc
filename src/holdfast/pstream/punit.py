"""The p-unit: an immutable columnar batch in one Arrow IPC file, with metadata and a checksum.

The reference (`PUnit`) travels in manifests and holds the checksum of the whole file, so that a flipped bit, a
truncated file and a file swapped for another are all noticed before a row is used. Reading maps the file.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl
import pyarrow as pa
import xxhash

from holdfast.errors import CorruptPUnitError, UnknownVersionError
from holdfast.formats import PUNIT_VERSION
from holdfast.store import DirectoryStore

__all__ = ["PUnit", "close_all", "close_others", "open_table", "read_punit", "write_punit", "write_table"]

_VERSION_KEY = b"holdfast.punit"


@dataclass(frozen=True, slots=True)
class PUnit:
    """A reference to a p-unit: its name in the store, its size, and the checksum its bytes must have."""

    name: str
    rows: int
    bytes: int
    checksum: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: dict[str, Any]) -> PUnit:
        return PUnit(value["name"], value["rows"], value["bytes"], value["checksum"])


def write_punit(store: DirectoryStore, name: str, frame: pl.DataFrame) -> PUnit:
    """Write the rows durably under a new name."""
    return write_table(store, name, frame.rechunk().to_arrow(), frame.height)


def write_table(store: DirectoryStore, name: str, table: pa.Table, rows: int) -> PUnit:
    """Write an Arrow table that stands for so many rows."""
    metadata = {**(table.schema.metadata or {}), _VERSION_KEY: str(PUNIT_VERSION).encode()}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema.with_metadata(metadata)) as writer:
        writer.write_table(table)
    data = sink.getvalue()
    store.write(name, memoryview(data))
    return PUnit(name, rows, data.size, _checksum(data))


def _checksum(data: pa.Buffer) -> str:
    return xxhash.xxh3_64_hexdigest(memoryview(data))


def read_punit(store: DirectoryStore, punit: PUnit) -> pl.DataFrame:
    """The rows of a p-unit, mapped from its file and verified once per process."""
    key = f"{store.root}/{punit.name}"
    with _opened_lock:
        frame = _opened.get(key)
        if frame is not None:
            _opened.move_to_end(key)
            return frame
    frame = _open(store, punit)
    with _opened_lock:
        _opened[key] = frame
        while len(_opened) > _MOST_OPEN:
            _opened.popitem(last=False)
    return frame


def close_others(store: DirectoryStore, below: str, names: Iterable[str]) -> None:
    """Close the open p-units of `below` but for these: a mapped file takes memory, and disk space even after its
    removal. To be called with all that may be needed again, by any partition that this process serves."""
    wanted = {f"{store.root}/{name}" for name in names}
    prefix = f"{store.root}/{below}/"
    with _opened_lock:
        for key in [key for key in _opened if key.startswith(prefix) and key not in wanted]:
            del _opened[key]


def close_all() -> None:
    """Close what this process has opened, for one that will not need it again."""
    with _opened_lock:
        _opened.clear()


_MOST_OPEN = 256
_opened: OrderedDict[str, pl.DataFrame] = OrderedDict()
_opened_lock = threading.Lock()


def _open(store: DirectoryStore, punit: PUnit) -> pl.DataFrame:
    frame = pl.from_arrow(open_table(store, punit))
    assert isinstance(frame, pl.DataFrame)
    return frame


def open_table(store: DirectoryStore, punit: PUnit) -> pa.Table:
    """The Arrow table of a p-unit, mapped from its file and verified."""
    path = store.existing(punit.name)
    with pa.memory_map(str(path)) as file:
        data = file.read_buffer()
        if data.size != punit.bytes or _checksum(data) != punit.checksum:
            raise CorruptPUnitError(
                f"{path} does not match its checksum ({data.size} bytes, {punit.bytes} expected)",
                cure="restore the file from a copy of the store; the run stopped before using it",
            )
        reader = pa.ipc.open_file(pa.BufferReader(data))
        version = (reader.schema.metadata or {}).get(_VERSION_KEY, b"none").decode()
        if version != str(PUNIT_VERSION):
            raise UnknownVersionError(
                f"{path} is a p-unit of version {version}; this program knows version {PUNIT_VERSION}",
                cure="run the version of Holdfast that wrote the store, or a newer one that can read it",
            )
        return reader.read_all()
