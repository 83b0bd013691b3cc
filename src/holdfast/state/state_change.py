"""What changed in the state of operators from one epoch to the next: which pieces stayed, and which are new.

A commit writes this in the place of all manifests, so that it costs no more when the state has more pieces. Names of
p-units are used once, so that two pieces with the same name, table and interval are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from holdfast.errors import CorruptRecordError
from holdfast.state.manifest import Interval, Manifest, Piece

__all__ = ["KeptPieces", "ManifestChange", "StateChange", "changed_state", "state_change"]

State = Mapping[str, tuple[Manifest, ...]]


class KeptPieces(msgspec.Struct, frozen=True, array_like=True):
    """Pieces of the manifest before: from the one of this number up to, and without, the other."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class ManifestChange:
    """The pieces of a manifest in their order. Its interval is given where it is another one."""

    pieces: tuple[KeptPieces | Piece, ...]
    interval: Interval | None = None


StateChange = Mapping[str, Mapping[int, ManifestChange]]
"""By operator and number of the partition, what has changed."""


def state_change(before: State, after: State) -> StateChange | None:
    """From one state to the other; None where operators or their numbers of partitions are not the same."""
    if before.keys() != after.keys() or any(len(before[name]) != len(parts) for name, parts in after.items()):
        return None
    found: dict[str, dict[int, ManifestChange]] = {}
    for name, parts in after.items():
        pairs = enumerate(zip(before[name], parts, strict=True))
        changed = {part: _change(old, new) for part, (old, new) in pairs if old is not new}
        if changed:
            found[name] = changed
    return found


def _change(before: Manifest, after: Manifest) -> ManifestChange:
    numbers = {piece.punit.name: number for number, piece in enumerate(before.pieces)}
    pieces: list[KeptPieces | Piece] = []
    for piece in after.pieces:
        number = numbers.get(piece.punit.name)
        if number is None or not _same(before.pieces[number], piece):
            pieces.append(piece)
            continue
        last = pieces[-1] if pieces else None
        if isinstance(last, KeptPieces) and last.stop == number:
            pieces[-1] = KeptPieces(last.start, number + 1)
        else:
            pieces.append(KeptPieces(number, number + 1))
    return ManifestChange(tuple(pieces), None if after.interval == before.interval else after.interval)


def _same(one: Piece, other: Piece) -> bool:
    return one.interval == other.interval and one.table == other.table


def changed_state(before: State, change: StateChange) -> dict[str, tuple[Manifest, ...]]:
    """The state after a change. What did not change is shared with the state before."""
    state = dict(before)
    for name, parts in change.items():
        manifests = list(state.get(name, ()))
        for part, changed in parts.items():
            if not 0 <= part < len(manifests):
                raise _misfit(name, part)
            before_it = manifests[part]
            pieces = tuple(_pieces(name, part, before_it, changed))
            manifests[part] = Manifest(changed.interval or before_it.interval, pieces)
        state[name] = tuple(manifests)
    return state


def _pieces(operator: str, part: int, before: Manifest, change: ManifestChange) -> Iterator[Piece]:
    for item in change.pieces:
        if isinstance(item, Piece):
            yield item
        elif 0 <= item.start < item.stop <= len(before.pieces):
            yield from before.pieces[item.start : item.stop]
        else:
            raise _misfit(operator, part)


def _misfit(operator: str, part: int) -> CorruptRecordError:
    return CorruptRecordError(
        f"the record of an epoch changes what partition {part} does not have",
        cure="restore the store from a copy; nothing was changed",
        operator=operator,
    )
