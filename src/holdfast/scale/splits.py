"""Where to split: bounds of partitions with about equal loads, from a profile of key positions. Pure.

Load within a cell can be divided anywhere; a heavy key is one position and cannot be divided. One that has more than a
fair part of all load (a hot key) gets an interval of its own, and its neighbours are split around it. The rest is cut
so that the heaviest partition is as light as can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.state.key_load import HeavyKey, LoadProfile
from holdfast.state.manifest import Interval
from holdfast.state.routing import Routing

__all__ = ["HotKey", "Split", "split"]

_END = 1 << 64
_HALVINGS = 40


@dataclass(frozen=True, slots=True)
class HotKey:
    """A key with more than a fair part of the load. `alone` says whether it has a partition of its own."""

    position: int
    share: float
    key: str
    alone: bool

    def __str__(self) -> str:
        return f"key {self.key} ({self.share:.0%} of the rows)"


@dataclass(frozen=True, slots=True)
class Split:
    """Bounds as in a routing, the part of the load that each partition will have, and the hot keys."""

    bounds: tuple[int, ...]
    shares: tuple[float, ...]
    hot: tuple[HotKey, ...] = ()

    @property
    def heaviest(self) -> float:
        return max(self.shares)


@dataclass(frozen=True, slots=True)
class _LoadPiece:
    """Neighbouring positions with their load; a heavy key is a piece of one position."""

    lo: int
    hi: int
    rows: float


def split(profile: LoadProfile, partitions: int) -> Split:
    """Divide the line of positions into so many intervals. Where nothing was measured, they have equal lengths."""
    total = profile.rows
    if total <= 0:
        bounds = Routing.even(partitions).bounds
        return Split(bounds, tuple(1 / partitions for _ in bounds))
    hot = sorted((key for key in profile.heavy if key.rows > total / partitions), key=lambda key: -key.rows)
    alone = _isolated(hot, partitions)
    parts = _parts(profile)
    stretches = _stretches(parts, alone)
    counts = _shared_out(stretches, partitions - len(alone))
    bounds = tuple(
        sorted(
            [key.position for key in alone]
            + [bound for stretch, count in zip(stretches, counts, strict=True) for bound in _cut(stretch, count)]
        )
    )
    routing = Routing(bounds)
    shares = tuple(profile.within(routing.interval(number)) / total for number in range(partitions))
    named = tuple(HotKey(key.position, key.rows / total, key.key, key in alone) for key in hot)
    return Split(bounds, shares, named)


def _isolated(hot: Sequence[HeavyKey], partitions: int) -> list[HeavyKey]:
    """Those hot keys, heaviest first, that can have a partition of their own while everything between has one too."""
    alone: list[HeavyKey] = []
    for key in hot:
        if len(alone) + 1 + len(_gaps([*alone, key])) <= partitions:
            alone.append(key)
    return alone


def _gaps(alone: Iterable[HeavyKey]) -> list[Interval]:
    """What lies between positions, without gaps of no length."""
    edges = [0]
    for position in sorted(key.position for key in alone):
        edges += [position, position + 1]
    edges.append(_END)
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return [Interval(lo, hi) for lo, hi in pairs if lo < hi]


def _parts(profile: LoadProfile) -> list[_LoadPiece]:
    """Cells, with the heavy keys taken out as parts of one position."""
    parts = []
    heavy = {key.position: key.rows for key in profile.heavy}
    waiting = sorted(heavy)
    for cell in profile.cells:
        at = cell.lo
        inside = [position for position in waiting if cell.lo <= position < cell.hi]
        room = cell.hi - cell.lo - len(inside)
        for position in inside:
            if at < position:
                parts.append(_LoadPiece(at, position, cell.rows * (position - at) / max(1, room)))
            rest = cell.rows if not room else 0.0
            parts.append(_LoadPiece(position, position + 1, heavy[position] + rest / len(inside)))
            at = position + 1
        if at < cell.hi:
            parts.append(_LoadPiece(at, cell.hi, cell.rows * (cell.hi - at) / room))
    return parts


def _stretches(parts: Sequence[_LoadPiece], alone: Sequence[HeavyKey]) -> list[list[_LoadPiece]]:
    """The parts of each gap between the keys that stand alone."""
    return [[part for part in parts if gap.lo <= part.lo and part.hi <= gap.hi] for gap in _gaps(alone)]


def _shared_out(stretches: Sequence[Sequence[_LoadPiece]], partitions: int) -> list[int]:
    """How many partitions each stretch gets: at least one, and the next one always where the load is greatest."""
    rows = [sum(part.rows for part in stretch) for stretch in stretches]
    room = [stretch[-1].hi - stretch[0].lo for stretch in stretches]
    counts = [1] * len(stretches)
    for _ in range(partitions - len(stretches)):
        able = [number for number in range(len(stretches)) if counts[number] < room[number]]
        counts[max(able, key=lambda number: (rows[number] / counts[number], room[number]))] += 1
    return counts


def _cut(stretch: Sequence[_LoadPiece], partitions: int) -> list[int]:
    """The beginnings of partitions of a stretch, with the heaviest as light as can be."""
    total = sum(part.rows for part in stretch)
    whole = max((part.rows for part in stretch if part.hi - part.lo == 1), default=0.0)
    low, high = max(total / partitions, whole), total + whole
    bounds = _filled(stretch, high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        tried = _filled(stretch, middle)
        if len(tried) <= partitions:
            bounds, high = tried, middle
        else:
            low = middle
    return _made_up(stretch, bounds, partitions)


def _filled(stretch: Sequence[_LoadPiece], capacity: float) -> list[int]:
    """Fill partitions from the left up to a capacity; where they begin."""
    bounds, used = [stretch[0].lo], 0.0
    slack = capacity * 1e-9
    for part in stretch:
        at, rows = part.lo, part.rows
        while used + rows > capacity + slack:
            length = part.hi - at
            step = int(length * ((capacity - used) / rows)) if rows else length
            if length == 1 or step < 1:
                if at == bounds[-1]:
                    break  # a single position that is more than the capacity
                bounds.append(at)
                used = 0.0
                if length == 1:
                    break
                continue
            if step >= length:
                break
            at += step
            rows -= rows * step / length
            bounds.append(at)
            used = 0.0
        used += rows
    return bounds


def _made_up(stretch: Sequence[_LoadPiece], bounds: list[int], partitions: int) -> list[int]:
    """As many partitions as asked for: the longest intervals are halved until there are."""
    end = stretch[-1].hi
    while len(bounds) < partitions:
        edges = [*bounds, end]
        widest = max(range(len(bounds)), key=lambda number: edges[number + 1] - edges[number])
        bounds = sorted([*bounds, (edges[widest] + edges[widest + 1]) // 2])
    return bounds
