"""The p-unit: an immutable columnar batch in the form of an Arrow IPC file, with metadata and a checksum.

It is a file of its own, or part of a segment with others. The reference (`PUnit`) travels in manifests and holds the
checksum of all its bytes, so that a flipped bit, a truncated file and a file swapped for another are all noticed before
a row is used. Reading maps the file.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa
import xxhash
from polars.exceptions import PanicException, PolarsError

from holdfast.errors import CorruptPUnitError, UnknownVersionError
from holdfast.formats import PUNIT_VERSION
from holdfast.pstream.written_units import WRITTEN
from holdfast.store import Appends, DirectoryStore, replace_copy, start_in
from holdfast.stored_json import FileName, Natural

__all__ = [
    "PUnit",
    "append_punit",
    "append_table",
    "as_frame",
    "close_all",
    "close_others",
    "copy_punit",
    "is_sound",
    "open_table",
    "punit_bytes",
    "read_punit",
    "write_content",
    "write_punit",
    "write_table",
]

_VERSION_KEY = b"holdfast.punit"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PUnit:
    """A reference to a p-unit: its name in the store, its size, and the checksum its bytes must have."""

    name: FileName
    rows: Natural
    bytes: Natural
    checksum: str


def write_punit(store: DirectoryStore, name: str, frame: pl.DataFrame) -> PUnit:
    """Write the rows durably under a new name."""
    return write_table(store, name, frame.rechunk().to_arrow(), frame.height)


def write_table(store: DirectoryStore, name: str, table: pa.Table, rows: int) -> PUnit:
    """Write an Arrow table that stands for so many rows."""
    data = _encoded(table)
    store.write(name, memoryview(data))
    return PUnit(name, rows, data.size, _checksum(data))


def write_content(store: DirectoryStore, frame: pl.DataFrame, known: PUnit | None = None) -> PUnit:
    """Write the rows durably under a name that begins with a digest of them; `known`, if it has the same rows. Every
    file has a name of its own: a process killed while writing leaves one that nothing reads."""
    data = _encoded(frame.rechunk().to_arrow())
    digest = hashlib.sha256(memoryview(data)).hexdigest()
    if known is not None and known.name.startswith(f"{digest}-"):
        return known
    name = f"{digest}-{uuid.uuid4().hex[:8]}.arrow"
    store.write(name, memoryview(data))
    return PUnit(name, frame.height, data.size, _checksum(data))


def append_punit(segments: Appends, epoch: int, frame: pl.DataFrame) -> PUnit:
    """Append the rows to a segment. They are durable when that is synced. This process reads few of them from its
    memory for as long as they are needed, not from the file."""
    data = _encoded(frame.rechunk().to_arrow())
    punit = _appended(segments, epoch, data, frame.height)
    WRITTEN.add(segments.root, punit.name, epoch, data)
    return punit


def append_table(segments: Appends, epoch: int, table: pa.Table, rows: int) -> PUnit:
    """Append an Arrow table that stands for so many rows."""
    return _appended(segments, epoch, _encoded(table), rows)


def _appended(segments: Appends, epoch: int, data: pa.Buffer, rows: int) -> PUnit:
    return PUnit(segments.append(epoch, memoryview(data)), rows, data.size, _checksum(data))


def _encoded(table: pa.Table) -> pa.Buffer:
    metadata = {**(table.schema.metadata or {}), _VERSION_KEY: str(PUNIT_VERSION).encode()}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema.with_metadata(metadata)) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _checksum(data: pa.Buffer) -> str:
    return xxhash.xxh3_64_hexdigest(memoryview(data))


def read_punit(store: DirectoryStore, punit: PUnit) -> pl.DataFrame:
    """The rows of a p-unit, mapped from its file and verified once per process."""
    path = store.found(punit.name)
    if path is None:  # on its way from one place to another, or gone
        return _open(store, punit)
    key = _key(path, punit.name)
    with _opened_lock:
        opened = _opened.get(key)
        if opened is not None:
            _opened.move_to_end(key)
            return opened[1]
    own = WRITTEN.content(key)
    frame = _open(store, punit) if own is None else as_frame(_table(path, own), punit)
    with _opened_lock:
        _opened[key] = punit.name, frame
        while len(_opened) > _MOST_OPEN:
            _opened.popitem(last=False)
    return frame


def _key(path: Path, name: str) -> str:
    start = start_in(path, name)
    return str(path) if start is None else f"{path}@{start}"


def close_others(store: DirectoryStore, names: Iterable[str], epoch: int | None = None) -> None:
    """Close the open p-units of a store but for these: a mapped file takes memory, and disk space even after its
    removal. To be called with all that may be needed again, by any partition that this process serves; what it has
    written for `epoch` stays, too."""
    wanted = frozenset(names)
    WRITTEN.keep(store.places, wanted, epoch)
    prefixes = tuple(f"{place}/" for place in store.places)
    with _opened_lock:
        for key in [key for key, (name, _) in _opened.items() if name not in wanted and key.startswith(prefixes)]:
            del _opened[key]


def close_all() -> None:
    """Close what this process has opened, for one that will not need it again."""
    with _opened_lock:
        _opened.clear()
    WRITTEN.clear()


_MOST_OPEN = 256
_opened: OrderedDict[str, tuple[str, pl.DataFrame]] = OrderedDict()
"""By where the rows are mapped from: the name of the p-unit, and its rows. One that was moved to another place is
opened again there."""
_opened_lock = threading.Lock()


def _open(store: DirectoryStore, punit: PUnit) -> pl.DataFrame:
    return as_frame(open_table(store, punit), punit)


def as_frame(table: pa.Table, punit: PUnit) -> pl.DataFrame:
    """The rows of a p-unit's table."""
    try:
        frame = pl.from_arrow(table)
    except (PolarsError, PanicException, ValueError) as error:
        raise CorruptPUnitError(
            f"the columns of {punit.name} cannot be read: {str(error).partition(chr(10))[0]}",
            cure="restore the file from a copy of the store; the run stopped before using it",
        ) from error
    assert isinstance(frame, pl.DataFrame)
    return frame


def open_table(store: DirectoryStore, punit: PUnit) -> pa.Table:
    """The Arrow table of a p-unit, mapped from its file and verified.

    Of several copies the first sound one is used, and the others are made sound from it.
    """
    spoilt: list[tuple[Path, str]] = []
    for path in store.copies(punit.name):
        try:
            data = _sound(path, punit)
        except FileNotFoundError:
            continue  # moved to another place meanwhile
        if isinstance(data, str):
            spoilt.append((path, data))
            continue
        for bad, why in spoilt:
            _log.warning("%s %s; restored from %s", bad, why, path)
            _copy(path, punit, _own_file(bad, punit), sync=store.sync)
        return _table(path, data)
    if spoilt:
        path, why = spoilt[0]
        raise CorruptPUnitError(
            f"{path} {why}",
            cure="restore the file from a copy of the store; the run stopped before using it",
        )
    store.existing(punit.name)  # an error, unless it was moved while we looked
    return open_table(store, punit)


def _sound(path: Path, punit: PUnit) -> pa.Buffer | str:
    """The bytes of a p-unit in a file that holds it, or what is wrong with them."""
    start = start_in(path, punit.name)
    with pa.memory_map(str(path)) as file:
        if start is None:
            data = file.read_buffer()
        else:
            file.seek(min(start, file.size()))
            data = file.read_buffer(punit.bytes)
    if data.size != punit.bytes or _checksum(data) != punit.checksum:
        return f"does not match its checksum ({data.size} bytes, {punit.bytes} expected)"
    return data


def punit_bytes(path: Path, punit: PUnit) -> bytes:
    """What a file holds of a p-unit, sound or not, as a copy."""
    with path.open("rb") as file:
        start = start_in(path, punit.name)
        file.seek(start or 0)
        return file.read() if start is None else file.read(punit.bytes)


def is_sound(path: Path, punit: PUnit) -> bool:
    """Whether what a file holds of a p-unit is what was written."""
    try:
        return not isinstance(_sound(path, punit), str)
    except FileNotFoundError:
        return False


def _table(path: Path, data: pa.Buffer) -> pa.Table:
    try:
        reader = pa.ipc.open_file(pa.BufferReader(data))
        table = reader.read_all()
        table.validate()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptPUnitError(
            f"{path} is not an Arrow file: {str(error).partition(chr(10))[0]}",
            cure="restore the file from a copy of the store; the run stopped before using it",
        ) from error
    version = (reader.schema.metadata or {}).get(_VERSION_KEY, b"none").decode(errors="replace")
    if version != str(PUNIT_VERSION):
        raise UnknownVersionError(
            f"{path} is a p-unit of version {version}; this program knows version {PUNIT_VERSION}",
            cure="run the version of Holdfast that wrote the store, or a newer one that can read it",
        )
    return table


def copy_punit(store: DirectoryStore, punit: PUnit, to: DirectoryStore) -> bool:
    """Put a verified copy of a p-unit, as a file of its own, under the same name into the directory of another store.

    False if a sound one is there already. What is copied is read back and held against the checksum.
    """
    there = to.path(punit.name)
    if any(is_sound(path, punit) for path in to.alone.copies(punit.name)):
        return False
    for path in store.copies(punit.name):
        if path != there and is_sound(path, punit):
            _copy(path, punit, there, sync=to.sync)
            if is_sound(there, punit):
                return True
    raise CorruptPUnitError(
        f"no intact copy of {punit.name} could be put into {to.root}",
        cure="check the disks, and restore the file from a copy of the store",
    )


def _own_file(path: Path, punit: PUnit) -> Path:
    """Where a p-unit is a file of its own, next to the segment that holds it, or is one already."""
    return path.with_name(punit.name.rpartition("/")[2])


def _copy(path: Path, punit: PUnit, target: Path, *, sync: bool) -> None:
    replace_copy(path, target, sync=sync, start=start_in(path, punit.name), length=punit.bytes)
