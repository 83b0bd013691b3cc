"""Files by tier."""

from holdfast.store.directory import DirectoryStore, durable_write, sync_directory

__all__ = ["DirectoryStore", "durable_write", "sync_directory"]
