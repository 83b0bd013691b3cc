"""p-units and p-streams: immutable columnar batches in Arrow IPC files, and durable sequences of them. The sequence
itself, `PStream`, is in a module of its own: it needs the meta store, and these parts are for tasks, too."""

from holdfast.pstream.announcements import Announcements
from holdfast.pstream.description import Place, Placement, StreamDescription
from holdfast.pstream.punit import PUnit, append_punit, close_others, copy_punit, is_sound, read_punit, write_punit
from holdfast.pstream.stream_entry import Control, Lineage, StreamEntry, StreamUnit, stream_store
from holdfast.pstream.units import UnitWriter, read_unit, unit_writer

__all__ = [
    "Announcements",
    "Control",
    "Lineage",
    "PUnit",
    "Place",
    "Placement",
    "StreamDescription",
    "StreamEntry",
    "StreamUnit",
    "UnitWriter",
    "append_punit",
    "close_others",
    "copy_punit",
    "is_sound",
    "read_punit",
    "read_unit",
    "stream_store",
    "unit_writer",
    "write_punit",
]
