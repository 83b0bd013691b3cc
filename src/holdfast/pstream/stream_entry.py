"""An entry of a p-stream: its p-units, what they come from, and what operators add to them. What it is in the meta
store is text; tasks know entries, and nothing of the meta store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.connect.base import Position
from holdfast.pstream.punit import PUnit
from holdfast.store import DirectoryStore
from holdfast.stored_json import JsonForm

if TYPE_CHECKING:
    from holdfast.meta import Entry

__all__ = ["Control", "EntryContent", "Lineage", "StreamEntry", "StreamUnit", "stream_store"]


class Lineage(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an entry comes from; nothing is decided by it. A fragment says who has written it, in which epoch, and
    the vector of offsets in its own inputs that the rows depend on. A receiver says which batches of clients it took,
    by their ids, where they have any."""

    by: str | None = None
    epoch: int | None = None
    vector: Mapping[str, Position] | None = None
    batches: tuple[str | None, ...] | None = None


def stream_store(root: Path, stream: str, sync: bool = True) -> DirectoryStore:
    """Where the p-units of a stream are, in the store at `root`."""
    return DirectoryStore(root / "streams" / stream, sync)


@dataclass(frozen=True, slots=True)
class StreamUnit(PUnit):
    """A p-unit of a stream. `before` is the watermark that its first row found."""

    before: int | None

    @staticmethod
    def of(unit: PUnit, before: int | None = None) -> StreamUnit:
        return StreamUnit(unit.name, unit.rows, unit.bytes, unit.checksum, before)


@dataclass(frozen=True, slots=True)
class Control:
    """Control records that an operator adds to its results, for its own recovery; readers skip them.

    They are of one `epoch`; `head` has the figures that they have in common.
    """

    epoch: int
    head: Mapping[str, int | None]
    units: tuple[PUnit, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(unit.bytes for unit in self.units)


class EntryContent(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the meta store keeps of an entry as text."""

    units: tuple[StreamUnit, ...]
    after: int | None
    ended: bool
    lineage: Lineage
    control: Mapping[str, Control] = {}

    def encode(self) -> str:
        return _CONTENT.encode(self)


_CONTENT = JsonForm(EntryContent, "an entry of a p-stream")


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """An entry: its p-units in order, the watermark after it, whether the stream ends with it, and its lineage.
    `control` has the control records of operators."""

    number: int
    offset: int
    rows: int
    bytes: int
    units: tuple[StreamUnit, ...]
    after: int | None
    ended: bool
    lineage: Lineage
    control: Mapping[str, Control] = field(default_factory=dict)

    @property
    def files(self) -> list[str]:
        """The names of all its p-units."""
        control = [unit.name for records in self.control.values() for unit in records.units]
        return [*(unit.name for unit in self.units), *control]

    @staticmethod
    def of(entry: Entry) -> StreamEntry:
        content = _CONTENT.decode(entry.content)
        return StreamEntry(
            entry.number, entry.offset, entry.rows, entry.bytes, content.units, content.after, content.ended,
            content.lineage, content.control,
        )  # fmt: skip
