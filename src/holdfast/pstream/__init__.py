"""p-units: immutable columnar batches in Arrow IPC files."""

from holdfast.pstream.punit import PUnit, close_others, read_punit, write_punit

__all__ = ["PUnit", "close_others", "read_punit", "write_punit"]
