"""p-units: immutable columnar batches in Arrow IPC files."""

from holdfast.pstream.punit import PUnit, read_punit, write_punit

__all__ = ["PUnit", "read_punit", "write_punit"]
