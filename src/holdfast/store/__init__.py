"""Files: how they are written to last, and a store of immutable ones."""

from holdfast.store.directory import DirectoryStore, made_before
from holdfast.store.durable import (
    durable_write,
    full_disk_named,
    make_directories,
    replace_copy,
    sync_directory,
    sync_names_above,
)
from holdfast.store.private import make_private, private_directory
from holdfast.store.removal import Private, Right, remove_directory, remove_files, remove_tree
from holdfast.store.tiers import Tier, Tiers, default_volatile, volatile_parent

__all__ = [
    "DirectoryStore",
    "Private",
    "Right",
    "Tier",
    "Tiers",
    "default_volatile",
    "durable_write",
    "full_disk_named",
    "made_before",
    "make_directories",
    "make_private",
    "private_directory",
    "remove_directory",
    "remove_files",
    "remove_tree",
    "replace_copy",
    "sync_directory",
    "sync_names_above",
    "volatile_parent",
]
