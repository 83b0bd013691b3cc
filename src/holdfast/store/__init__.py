"""Files: how they are written to last, and a store of immutable ones."""

from holdfast.store.directory import DirectoryStore
from holdfast.store.durable import durable_write, full_disk_named, make_directories, sync_directory

__all__ = ["DirectoryStore", "durable_write", "full_disk_named", "make_directories", "sync_directory"]
