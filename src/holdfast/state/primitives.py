"""The primitives over operator state: checkpoint, backup, restore, replay, spill and persist.

Processing state is manifests, buffer state is what upstream retains behind a checkpoint's positions, routing state maps
key intervals to partitions. P-units are immutable and named alike wherever they lie, so all of this moves references
and copies files; it never changes one. Partition and merge are in `partition.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from holdfast.pstream import PUnit, copy_punit
from holdfast.state.manifest import Manifest
from holdfast.store import DirectoryStore, Tiers

__all__ = [
    "Checkpoint",
    "backup_location",
    "backup_state",
    "checkpoint_state",
    "persist_state",
    "replay_buffer_state",
    "restore_state",
    "spill_state",
    "unspill_state",
]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a fragment after an epoch.

    `state` is the processing state of each operator, partition by partition. `positions` is the vector of what is
    reflected in it: what upstream holds before these is needed no more, what it holds behind them is to be replayed.
    """

    epoch: int
    state: Mapping[str, tuple[Manifest, ...]]
    positions: Mapping[str, Any]

    def units(self) -> dict[str, PUnit]:
        """The p-units of all state by name, each once: partitions may share them."""
        return {
            piece.punit.name: piece.punit
            for parts in self.state.values()
            for manifest in parts
            for piece in manifest.pieces
        }


def checkpoint_state(epoch: int, state: Mapping[str, tuple[Manifest, ...]], positions: Mapping[str, Any]) -> Checkpoint:
    """A consistent copy of the state, without a pause: manifests are immutable, so naming them is taking them."""
    return Checkpoint(epoch, dict(state), dict(positions))


def persist_state(checkpoint: Checkpoint, tiers: Tiers, known: Iterable[str] = ()) -> int:
    """Put all p-units of a checkpoint on the stable tier, verified; returns how many bytes were written.

    Incremental: what lies there already (`known`, or found) is not written again.
    """
    stable, everywhere = tiers.stable_only, tiers.at("volatile")
    skip = frozenset(known)
    return sum(
        unit.bytes
        for unit in checkpoint.units().values()
        if unit.name not in skip and copy_punit(everywhere, unit, stable)
    )


def backup_location(operator: str, partition: int, locations: int) -> int:
    """Which of the upstream locations keeps the backup of an operator's partition: the load is spread by a hash."""
    return xxhash.xxh3_64_intdigest(f"{operator}/{partition}".encode()) % locations


def backup_state(checkpoint: Checkpoint, tiers: Tiers, trim: Callable[[], None] | None = None) -> int:
    """Copy each partition's p-units to its backup location, verified; then let upstream trim its buffers, and release
    what other locations hold, which is that of older backups. Returns how many bytes were written.
    """
    source = tiers.at("stable")
    wanted: list[dict[str, PUnit]] = [{} for _ in tiers.backups]
    for operator, parts in checkpoint.state.items():
        for number, manifest in enumerate(parts):
            location = backup_location(operator, number, len(tiers.backups))
            wanted[location] |= {piece.punit.name: piece.punit for piece in manifest.pieces}
    written = 0
    for number, units in enumerate(wanted):
        store = tiers.backup(number)
        written += sum(unit.bytes for unit in units.values() if copy_punit(source, unit, store))
    if trim is not None:
        trim()
    for number, units in enumerate(wanted):
        store = tiers.backup(number)
        store.remove([name for name in store.names() if name not in units])
    return written


def restore_state(checkpoint: Checkpoint, tiers: Tiers) -> int:
    """Bring all p-units of a checkpoint back to where tasks look first, from wherever a sound copy is.

    Returns how many bytes had to be brought from a backup. Raises if a p-unit has no sound copy at all.
    """
    stable, everywhere = tiers.stable_only, tiers.at("stable")
    near = DirectoryStore(tiers.volatile, False, (tiers.spilled, tiers.stable))
    brought = 0
    for unit in checkpoint.units().values():
        if near.found(unit.name) is None and copy_punit(everywhere, unit, stable):
            brought += unit.bytes
    return brought


def replay_buffer_state(
    plans: Mapping[int, Mapping[str, Any]], checkpoint: int, until: int
) -> dict[int, Mapping[str, Any]]:
    """The epochs behind a checkpoint as they were planned: what upstream is asked for again, in the same slices.

    Raises KeyError if one is missing: then it must not be replayed.
    """
    return {epoch: plans[epoch] for epoch in range(checkpoint + 1, until + 1)}


def spill_state(units: Sequence[PUnit], tiers: Tiers, budget: int) -> list[str]:
    """Keep the volatile tier within `budget` bytes: its p-units, given oldest first, go to disk as far as they must.

    What lies on the stable tier already is only let go. A reader that looks while a p-unit moves finds one of both.
    Returns the names of those that went.
    """
    volatile = DirectoryStore(tiers.volatile, False)
    disk = DirectoryStore(tiers.spilled, False)
    here = [unit for unit in units if volatile.path(unit.name).exists()]
    held = sum(unit.bytes for unit in here)
    gone = []
    for unit in here:
        if held <= budget:
            break
        if not tiers.stable_only.path(unit.name).exists():
            copy_punit(volatile, unit, disk)
        volatile.remove([unit.name])
        held -= unit.bytes
        gone.append(unit.name)
    return gone


def unspill_state(units: Sequence[PUnit], tiers: Tiers, budget: int) -> list[str]:
    """Bring spilled p-units back to the volatile tier, newest first, as far as there is room."""
    volatile = DirectoryStore(tiers.volatile, False)
    disk = DirectoryStore(tiers.spilled, False)
    held = sum(unit.bytes for unit in units if volatile.path(unit.name).exists())
    back = []
    for unit in reversed(units):
        if disk.path(unit.name).exists() and held + unit.bytes <= budget:
            copy_punit(disk, unit, volatile)
            disk.remove([unit.name])
            held += unit.bytes
            back.append(unit.name)
    return back
