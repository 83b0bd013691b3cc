"""Two tiers of storage for state: volatile, which a host's failure may take, and stable.

A p-unit has the same name wherever it lies, so moving or copying it changes no manifest. Beside the two tiers there are
the place where the volatile tier spills what is beyond its budget, and the locations of backups.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from holdfast.store.directory import DirectoryStore
from holdfast.store.private import private_directory
from holdfast.store.segment import SEGMENT_EPOCHS, OpenSegments

__all__ = ["Tier", "Tiers", "default_volatile", "volatile_parent"]

Tier = Literal["stable", "volatile"]


@dataclass(frozen=True, slots=True)
class Tiers:
    """The directories of a fragment's state."""

    stable: Path
    volatile: Path
    backups: tuple[Path, ...] = ()
    sync: bool = True
    host: str | None = None
    """Whose volatile tier it is, where several hosts share the stable one."""

    @property
    def spilled(self) -> Path:
        """On disk, next to the stable tier, and as easily lost as the volatile one: never synced."""
        spilled = self.stable.with_name("spilled")
        return spilled if self.host is None else spilled / self.host

    def at(self, tier: Tier) -> DirectoryStore:
        """Writes to one tier and reads from all."""
        if tier == "volatile":
            return DirectoryStore(self.volatile, False, (self.spilled, self.stable, *self.backups))
        return DirectoryStore(self.stable, self.sync, (self.volatile, self.spilled, *self.backups))

    def open_segments(self) -> OpenSegments:
        """The segments that a process of this run appends to. Where several hosts may write for the same epoch, what
        the slower one has written must go at once: so segments are for one epoch each."""
        return OpenSegments(SEGMENT_EPOCHS if self.host is None else 1)

    @property
    def stable_only(self) -> DirectoryStore:
        return DirectoryStore(self.stable, self.sync)

    def backup(self, number: int) -> DirectoryStore:
        return DirectoryStore(self.backups[number], self.sync)


def default_volatile() -> Path:
    """A directory in memory where there is one, the same for all processes of a user here, and private to that user."""
    return private_directory(volatile_parent() / f"holdfast-{os.getuid()}")


def volatile_parent() -> Path:
    """Where volatile tiers may lie: in memory if there is such a place."""
    shared = Path("/dev/shm")
    return shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
