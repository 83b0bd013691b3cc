"""p-units and p-streams: immutable columnar batches in Arrow IPC files, and durable sequences of them."""

from holdfast.pstream.announcements import Announcements
from holdfast.pstream.description import Place, Placement, StreamDescription
from holdfast.pstream.pstream import Control, Lineage, PStream, StreamEntry, StreamUnit, new_entry, stream_store
from holdfast.pstream.punit import PUnit, append_punit, close_others, copy_punit, is_sound, read_punit, write_punit
from holdfast.pstream.units import UnitWriter, read_unit, unit_writer

__all__ = [
    "Announcements",
    "Control",
    "Lineage",
    "PStream",
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
    "new_entry",
    "read_punit",
    "read_unit",
    "stream_store",
    "unit_writer",
    "write_punit",
]
