"""p-units: immutable columnar batches in Arrow IPC files."""

from holdfast.pstream.punit import FORMAT_VERSION, PUnit, read_punit, write_punit

__all__ = ["FORMAT_VERSION", "PUnit", "read_punit", "write_punit"]
