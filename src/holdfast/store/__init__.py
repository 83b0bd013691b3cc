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
from holdfast.store.segment import (
    LARGE_SEGMENT,
    SEGMENT_EPOCHS,
    Appends,
    OpenSegments,
    SegmentWriter,
    SyncedSegments,
    last_epoch,
    of_one_epoch,
    segment_of,
    start_in,
    superseded,
    with_segments,
)
from holdfast.store.sync_clock import synced, syncing_seconds
from holdfast.store.tiers import Tier, Tiers, default_volatile, volatile_parent

__all__ = [
    "LARGE_SEGMENT",
    "SEGMENT_EPOCHS",
    "Appends",
    "DirectoryStore",
    "OpenSegments",
    "Private",
    "Right",
    "SegmentWriter",
    "SyncedSegments",
    "Tier",
    "Tiers",
    "default_volatile",
    "durable_write",
    "full_disk_named",
    "last_epoch",
    "made_before",
    "make_directories",
    "make_private",
    "of_one_epoch",
    "private_directory",
    "remove_directory",
    "remove_files",
    "remove_tree",
    "replace_copy",
    "segment_of",
    "start_in",
    "superseded",
    "sync_directory",
    "sync_names_above",
    "synced",
    "syncing_seconds",
    "volatile_parent",
    "with_segments",
]
