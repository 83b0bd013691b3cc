"""The primitives over operator state: checkpoint, backup, restore, replay, spill and persist.

Processing state is manifests, buffer state is what upstream retains behind a checkpoint's positions, routing state maps
key intervals to partitions. P-units are immutable and named alike wherever they lie, so all of this moves references
and copies files; it never changes one. Partition and merge are in `partition.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import xxhash

from holdfast.connect.base import Position
from holdfast.pstream import PUnit, copy_punit
from holdfast.state.manifest import Manifest
from holdfast.store import DirectoryStore, Right, Tiers, replace_copy, sync_names_above

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


Plan = TypeVar("Plan")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a fragment after an epoch.

    `state` is the processing state of each operator, partition by partition. `positions` is the vector of what is
    reflected in it: what upstream holds before these is needed no more, what it holds behind them is to be replayed.
    """

    epoch: int
    state: Mapping[str, tuple[Manifest, ...]]
    positions: Mapping[str, Position]

    def units(self) -> dict[str, PUnit]:
        """The p-units of all state by name, each once: partitions may share them."""
        return {
            piece.punit.name: piece.punit
            for parts in self.state.values()
            for manifest in parts
            for piece in manifest.pieces
        }


def checkpoint_state(
    epoch: int, state: Mapping[str, tuple[Manifest, ...]], positions: Mapping[str, Position]
) -> Checkpoint:
    """A consistent copy of the state, without a pause: manifests are immutable, so naming them is taking them."""
    return Checkpoint(epoch, dict(state), dict(positions))


def persist_state(checkpoint: Checkpoint, tiers: Tiers, known: Iterable[str] = ()) -> int:
    """Put all p-units of a checkpoint on the stable tier, verified; returns how many bytes were written.

    Incremental: what lies there already (`known`, or found) is not written again.
    """
    stable, everywhere = tiers.stable_only, tiers.at("volatile")
    skip, lasting = frozenset(known), set[Path]()
    written = 0
    for unit in checkpoint.units().values():
        if unit.name not in skip and copy_punit(everywhere, unit, stable):
            written += unit.bytes
            if stable.sync:  # another host may have made the directories a moment ago, and not have synced their names
                sync_names_above(stable.path(unit.name), stable.root.parents[2], lasting)
    return written


def backup_location(operator: str, partition: int, locations: int) -> int:
    """Which of the upstream locations keeps the backup of an operator's partition: the load is spread by a hash."""
    return xxhash.xxh3_64_intdigest(f"{operator}/{partition}".encode()) % locations


def backup_state(
    checkpoint: Checkpoint,
    tiers: Tiers,
    right: Right,
    known: set[tuple[int, str]] | None = None,
    keep: Collection[str] = (),
) -> int:
    """Copy each partition's p-units to its backup location, verified, and release what older backups hold, but for the
    names to `keep`. Returns how many bytes were written.

    `known` are the copies, by location and name, that were verified before; it is brought up to date. Upstream trims
    its buffers with the next commit, which names this checkpoint as its base.
    """
    source = tiers.at("stable")
    known = set() if known is None else known
    wanted: list[dict[str, PUnit]] = [{} for _ in tiers.backups]
    for operator, parts in checkpoint.state.items():
        for number, manifest in enumerate(parts):
            location = backup_location(operator, number, len(tiers.backups))
            wanted[location] |= {piece.punit.name: piece.punit for piece in manifest.pieces}
    written = 0
    for number, units in enumerate(wanted):
        store = tiers.backup(number)
        for unit in units.values():
            if (number, unit.name) not in known:
                written += unit.bytes if copy_punit(source, unit, store) else 0
                known.add((number, unit.name))
    for number, units in enumerate(wanted):
        store = tiers.backup(number)
        store.remove([name for name in store.names() if name not in units and name not in keep], right)
        known -= {(where, name) for where, name in known if where == number and name not in units}
    return written


def restore_state(checkpoint: Checkpoint, tiers: Tiers, others: Iterable[Path] = ()) -> int:
    """Bring all p-units of a checkpoint back to where tasks look first, from wherever a sound copy is: also from places
    `others`, where earlier runs had their backups.

    Returns how many bytes had to be brought. A p-unit that is nowhere is left to those who need it.
    """
    stable, everywhere = tiers.stable_only, tiers.at("stable")
    everywhere = replace(everywhere, other_places=tuple(dict.fromkeys((*everywhere.other_places, *others))))
    near = DirectoryStore(tiers.volatile, False, (tiers.spilled, tiers.stable))
    brought = 0
    for unit in checkpoint.units().values():
        found = everywhere.found(unit.name) if near.found(unit.name) is None else None
        if found is not None and copy_punit(everywhere, unit, stable):
            _log.warning("%s was missing; restored from %s", stable.path(unit.name), found)
            brought += unit.bytes
    return brought


def replay_buffer_state(plans: Mapping[int, Plan], checkpoint: int, until: int) -> dict[int, Plan]:
    """The epochs behind a checkpoint as they were planned: what upstream is asked for again, in the same slices.

    Raises KeyError if one is missing: then it must not be replayed.
    """
    return {epoch: plans[epoch] for epoch in range(checkpoint + 1, until + 1)}


def spill_state(units: Sequence[PUnit], tiers: Tiers, budget: int, right: Right) -> list[str]:
    """Keep the volatile tier within `budget` bytes: its files go to disk, as far as they must.

    First those that the state does not need any more and only older epochs have, then the p-units of the state, oldest
    first. What lies on the stable tier already is only let go. A reader that looks while a file moves finds one of
    both. Returns the names of those that went.
    """
    volatile, needed = DirectoryStore(tiers.volatile, False), {unit.name for unit in units}
    sizes = {name: _size(volatile.path(name)) for name in volatile.names()}
    held = sum(sizes.values())
    gone = []
    for name in sorted(sizes, key=lambda name: (name in needed, _written(name))):
        if held <= budget:
            break
        if tiers.stable_only.found(name) is None:
            replace_copy(volatile.path(name), tiers.spilled / name, sync=False)
        volatile.remove([name], right)
        held -= sizes[name]
        gone.append(name)
    return gone


def unspill_state(units: Sequence[PUnit], tiers: Tiers, budget: int, right: Right) -> list[str]:
    """Bring spilled p-units back to the volatile tier, newest first, as far as there is room."""
    volatile, disk = DirectoryStore(tiers.volatile, False), DirectoryStore(tiers.spilled, False)
    held = sum(_size(volatile.path(name)) for name in volatile.names())
    back = []
    for unit in sorted(units, key=lambda unit: _written(unit.name), reverse=True):
        if disk.path(unit.name).exists() and held + unit.bytes <= budget:
            replace_copy(disk.path(unit.name), volatile.path(unit.name), sync=False)
            disk.remove([unit.name], right)
            held += unit.bytes
            back.append(unit.name)
    return back


def _written(name: str) -> str:
    """Names of p-units begin with the number of their epoch: in their order they are oldest first."""
    return name.rpartition("/")[2]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0  # removed meanwhile
