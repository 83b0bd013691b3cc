"""A keyed table that stays in memory from epoch to epoch: what its pieces hold, ready to be looked up and changed.

The manifest remains the truth. A resident table says which pieces it stands for, and can go back a few epochs: an epoch
that is run again, or was never committed, finds the table as it was before. Keys are in *levels*, each sorted by
position. A key is in one of them, whatever happens to its row; keys that are new make a new level, and levels of
similar size become one, so that nearly all keys are in the first.

A *place* is the number of a row, counted through all levels. Different keys at the same position have no place here:
`SharedPositionError` says so, and the table is looked up in its pieces instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from holdfast.hidden_columns import DELETED, POSITION
from holdfast.state.key_matches import differ
from holdfast.state.manifest import Piece
from holdfast.state.piece_lineage import added_pieces
from holdfast.state.position import Positions, is_one_to_one
from holdfast.state.position_index import PositionIndex
from holdfast.state.resident_columns import Places, ResidentColumn, empty_column, owned, resident_column

__all__ = ["HeldRows", "ResidentTable", "SharedPositionError"]

Flags = npt.NDArray[np.bool_]

_MOST_VERSIONS = 4
"""So many epochs can be taken back."""
_RATIO = 4
_FEW = 64
"""A batch of less than one of so many places is sorted; a larger one is marked in an array of all places."""
_LEAST_DEAD = 1_024


class SharedPositionError(Exception):
    """Different keys have the same position."""


@dataclass(slots=True)
class _ResidentLevel:
    """Rows sorted by position. `live` says which keys have a row; of the others only the key is known."""

    index: PositionIndex
    keys: pl.DataFrame
    columns: list[ResidentColumn]
    live: Flags

    @property
    def nbytes(self) -> int:
        columns = sum(column.nbytes for column in self.columns)
        return self.index.nbytes + int(self.keys.estimated_size()) + columns + self.live.nbytes


@dataclass(slots=True)
class HeldRows:
    """What some places, in any order, held before they were changed."""

    places: Places
    live: Flags
    values: list[pl.Series]


@dataclass(slots=True)
class _TableVersion:
    """A state of the table: its pieces, and what takes the next state back to it."""

    pieces: tuple[Piece, ...]
    undo: list[HeldRows] = field(default_factory=list)


class ResidentTable:
    """`schema` has key and value columns, `keys` names the former. `rows` are all live rows, sorted by position, with
    their positions; `pieces` are what they were read from."""

    def __init__(self, keys: Sequence[str], schema: pl.Schema, rows: pl.DataFrame, pieces: Sequence[Piece]) -> None:
        self.schema = schema
        self._keys = list(keys)
        self._values = [name for name in schema if name not in keys]
        self._one_to_one = len(self._keys) == 1 and is_one_to_one(schema[self._keys[0]])
        positions = rows[POSITION].to_numpy().copy()
        if (positions[1:] == positions[:-1]).any():
            raise SharedPositionError
        columns = [resident_column(rows[name]) for name in self._values]
        live = np.ones(rows.height, dtype=bool)
        level = _ResidentLevel(PositionIndex.of(positions), _owned(rows.select(self._keys)), columns, live)
        self._levels = [level]
        self._marks = np.zeros(rows.height, dtype=bool)
        self._perhaps_dead = 0
        """How many keys were deleted, or admitted without a row, since dead ones were last looked for."""
        self._versions = [_TableVersion(tuple(pieces))]

    def __len__(self) -> int:
        return sum(len(level.live) for level in self._levels)

    @property
    def nbytes(self) -> int:
        undo = (undo for version in self._versions for undo in version.undo)
        taken = sum(level.nbytes for level in self._levels) + self._marks.nbytes
        return taken + sum(kept.places.nbytes + sum(int(v.estimated_size()) for v in kept.values) for kept in undo)

    # which state it stands for

    def go_to(self, pieces: Sequence[Piece], read: Callable[[Piece], pl.DataFrame]) -> bool:
        """Stand for these pieces, by going back or by reading what others have added. False if that cannot be; the
        table is to be thrown away then, as it is after an error."""
        for number in reversed(range(len(self._versions))):
            added = added_pieces(self._versions[number].pieces, pieces)
            if added is None:
                continue
            self._back_to(number)
            for piece in added:
                self._add(read(piece))
            if added:
                self.became(pieces)
            else:
                self._versions[-1].pieces = tuple(pieces)
            return True
        return False

    def became(self, pieces: Sequence[Piece]) -> None:
        """What was changed since the last call has made it the table of these pieces."""
        self._settle()
        self._versions.append(_TableVersion(tuple(pieces)))
        del self._versions[: -_MOST_VERSIONS - 1]

    def rewritten(self, before: Sequence[Piece], after: Sequence[Piece]) -> None:
        """The same rows stand in other pieces now."""
        if self._versions[-1].pieces == tuple(before):
            self._versions[-1].pieces = tuple(after)

    def _back_to(self, number: int) -> None:
        for version in reversed(self._versions[number:]):
            for undo in reversed(version.undo):
                for level, part, of in self._scattered(undo.places):
                    level.live[part] = undo.live if of is None else undo.live[of]
                    for column, values in zip(level.columns, undo.values, strict=True):
                        column.put(part, values, of)
            version.undo.clear()
        del self._versions[number + 1 :]

    def _add(self, rows: pl.DataFrame) -> None:
        """Rows and tombstones, sorted by position, as a piece has them."""
        places = self.admit(rows, rows[POSITION].to_numpy())
        deleted = rows[DELETED].to_numpy()
        held = self.held(np.sort(places))
        self.change(rows.filter(~pl.col(DELETED)), places[~deleted], places[deleted], held, held.places)

    # finding

    def find(self, keys: pl.DataFrame, positions: Positions) -> Places:
        """The place of each row's key, in any order; -1 where there is none, -2 where another key is there."""
        places, first = self._levels[0].index.find(positions), 0
        self._compare(self._levels[0], places, keys, None)
        for before, level in zip(self._levels[:-1], self._levels[1:], strict=True):
            first += len(before.live)
            rest = np.flatnonzero(places == -1)
            if not len(rest):
                break
            found = level.index.find(positions[rest])
            self._compare(level, found, keys, rest)
            places[rest] = np.where(found >= 0, found + first, found)
        return places

    def _compare(self, level: _ResidentLevel, found: Places, keys: pl.DataFrame, rest: Places | None) -> None:
        """Places found by position, -2 where the key is another one."""
        if self._one_to_one and not level.keys[self._keys[0]].null_count() and not keys[self._keys[0]].null_count():
            return
        hits = np.flatnonzero(found >= 0)
        if not len(hits):
            return
        if len(hits) == len(found):
            there, wanted = level.keys[found], keys if rest is None else keys[rest]
        else:
            there, wanted = level.keys[found[hits]], keys[hits if rest is None else rest[hits]]
        others = differ(there, wanted, self._keys)
        if others.any():
            found[hits[others]] = -2

    def admit(self, keys: pl.DataFrame, positions: Positions) -> Places:
        """The place of each row's key. Keys that were not known get one, and have no row there yet."""
        places = self.find(keys, positions)
        if (places == -2).any():
            raise SharedPositionError
        new = np.flatnonzero(places == -1)
        if len(new):
            distinct, first, number = np.unique(positions[new], return_index=True, return_inverse=True)
            names = keys[list(self._keys)][new]
            level_keys = _owned(names[first])
            if len(distinct) < len(new) and differ(level_keys[number], names, self._keys).any():
                raise SharedPositionError
            places[new] = len(self) + number
            columns = [empty_column(self.schema[name], len(distinct)) for name in self._values]
            level = _ResidentLevel(PositionIndex.of(distinct), level_keys, columns, np.zeros(len(distinct), bool))
            self._levels.append(level)
            self._perhaps_dead += len(distinct)
        return places

    def distinct(self, places: Places) -> Places:
        """The places without repetition, in order."""
        if len(places) * _FEW < len(self):
            return np.unique(places)
        marks = self._marked()
        marks[places] = True
        found = np.flatnonzero(marks)
        marks[found] = False
        return found

    def changed_among(self, touched: Places, changed: Places) -> Places | int:
        """Those of the ordered places `touched` that are among `changed`; or which of the latter is not touched."""
        if len(touched) * _FEW < len(self):
            inside = np.searchsorted(touched, changed)
            strange = touched[np.minimum(inside, len(touched) - 1)] != changed
            if strange.any():
                return int(np.argmax(strange))
            among = np.zeros(len(touched), dtype=bool)
            among[inside] = True
            return touched[among]
        marks = self._marked()
        marks[touched] = True
        strange = ~marks[changed] | (changed < 0)
        if strange.any():
            return int(np.argmax(strange))
        marks[changed] = False
        left = marks[touched]
        marks[touched] = False
        return touched[~left]

    def _marked(self) -> Flags:
        """An array for marks at all places; its user takes them away again."""
        if len(self._marks) < len(self):
            self._marks = np.zeros(len(self) + len(self) // _RATIO, dtype=bool)
        return self._marks[: len(self)]

    def _split(self, places: Places) -> list[tuple[_ResidentLevel, Places, slice]]:
        """Of ordered places: the levels they are in, the places within each, and which of them those are."""
        if len(self._levels) == 1:
            return [(self._levels[0], places, slice(0, len(places)))]
        parts, first = [], 0
        for level in self._levels:
            start, stop = np.searchsorted(places, [first, first + len(level.live)]).tolist()
            if start < stop:
                parts.append((level, places[start:stop] - first, slice(start, stop)))
            first += len(level.live)
        return parts

    def _scattered(self, places: Places) -> Iterator[tuple[_ResidentLevel, Places, Places | None]]:
        """As `_split`, of places in any order; all of them where the last is None. To look for those of each level is
        cheaper than to sort them: there are few levels."""
        if len(self._levels) == 1:
            yield self._levels[0], places, None
            return
        first = 0
        for level in self._levels:
            of = np.flatnonzero((places >= first) & (places < first + len(level.live)))
            if len(of):
                yield level, places[of] - first, of
            first += len(level.live)

    # reading

    def by_position(self, places: Places) -> Places:
        """Ordered places in the order of positions: as an order of them."""
        parts = self._split(places)
        if len(parts) <= 1:
            return np.arange(len(places))
        return np.argsort(self.positions(places), kind="stable")

    def positions(self, places: Places) -> Positions:
        parts = [level.index.positions[part] for level, part, _ in self._split(places)]
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, dtype=np.uint64), *parts])

    def keys(self, places: Places) -> pl.DataFrame:
        """The keys at ordered places."""
        parts = [level.keys[part] for level, part, _ in self._split(places)]
        return pl.concat(parts) if parts else self._levels[0].keys.clear()

    def live(self, places: Places) -> Flags:
        """Which of ordered places have a row."""
        parts = [level.live[part] for level, part, _ in self._split(places)]
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, dtype=bool), *parts])

    def held(self, places: Places) -> HeldRows:
        """What is at ordered places, whether the rows are live or not."""
        parts = self._split(places) or [(self._levels[0], places, slice(0))]
        of = [part for _, part, _ in parts]
        columns = zip(*(level.columns for level, _, _ in parts), strict=True)
        values = [first.take(of, others) for first, *others in columns]
        named = [series.alias(name) for name, series in zip(self._values, values, strict=True)]
        return HeldRows(places, self.live(places), named)

    def rows(self, held: HeldRows) -> pl.DataFrame:
        """The rows among what some places hold, with their keys."""
        found = {series.name: series for series in (*self.keys(held.places).get_columns(), *held.values)}
        rows = pl.DataFrame([found[name] for name in self.schema])
        return rows if held.live.all() else rows.filter(pl.Series(held.live))

    # changing

    def change(self, upserts: pl.DataFrame, at: Places, deleted: Places, held: HeldRows, changed: Places) -> None:
        """Put in rows at their places, and take out those at `deleted`. `changed` are all these places in order: each
        comes once. They are among those of which it is known what they `held`."""
        few = 2 * len(changed) < len(held.places)
        self._versions[-1].undo.append(self.held(changed) if few else held)
        for level, part, of in self._scattered(at):
            level.live[part] = True
            for column, name in zip(level.columns, self._values, strict=True):
                column.put(part, upserts[name], of)
        for level, part, _ in self._scattered(deleted):
            level.live[part] = False
        self._perhaps_dead += len(deleted)

    def _settle(self) -> None:
        """Make levels of similar size one, and let go of keys without rows where they are many."""
        while len(self._levels) > 1 and len(self._levels[-2].live) < _RATIO * len(self._levels[-1].live):
            self._join(len(self._levels) - 2)
        if 8 * self._perhaps_dead < len(self):
            return
        self._perhaps_dead = 0
        for number, level in enumerate(self._levels):
            if len(level.live) > _LEAST_DEAD and 2 * np.count_nonzero(level.live) < len(level.live):
                self._join(number)
                return

    def _join(self, number: int) -> None:
        """Make one level of this and those behind it. A key without a row goes, unless going back may bring it back."""
        first = sum(len(level.live) for level in self._levels[:number])
        levels, self._levels = self._levels[number:], self._levels[:number]
        live = np.concatenate([level.live for level in levels])
        undone = [undo for version in self._versions for undo in version.undo]
        kept = live.copy()
        for undo in undone:
            kept[undo.places[undo.places >= first] - first] = True
        positions = np.concatenate([level.index.positions for level in levels])
        order = np.argsort(positions, kind="stable")
        order = order[kept[order]]
        columns = [
            column.joined([level.columns[at] for level in levels[1:]], order)
            for at, column in enumerate(levels[0].columns)
        ]
        keys = pl.concat([level.keys for level in levels], rechunk=True)[order]
        self._levels.append(_ResidentLevel(PositionIndex.of(positions[order]), keys, columns, live[order]))
        now = np.empty(len(live), dtype=np.int64)
        now[order] = np.arange(len(order)) + first
        for undo in undone:
            _renumber(undo, first, now)


def _owned(frame: pl.DataFrame) -> pl.DataFrame:
    return pl.DataFrame([owned(column) for column in frame]).rechunk()


def _renumber(undo: HeldRows, first: int, now: Places) -> None:
    """Places from `first` on have become others."""
    moved = undo.places >= first
    if moved.any():
        undo.places = undo.places.copy()
        undo.places[moved] = now[undo.places[moved] - first]
