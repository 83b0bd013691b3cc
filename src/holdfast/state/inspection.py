"""State as a table for people: the rows of any operator at any retained epoch, whole or by key."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl

from holdfast.errors import CorruptPUnitError, DeclarationError, UnknownColumnError, UnknownStateError, WrongTypeError
from holdfast.hidden_columns import DELETED, POSITION
from holdfast.meta import Commit, MetaStore, opened_meta
from holdfast.plurals import ranges
from holdfast.state.key_matches import join_on_keys
from holdfast.state.layout import TABLE, OperatorLayout, TableLayout, layout_of
from holdfast.state.manifest import Interval, Manifest, Piece, read_piece
from holdfast.state.past_moment import Moment, seconds_at, shown_moment
from holdfast.state.pipeline_shape import OperatorShape, PipelineShape
from holdfast.state.position import Positions, key_positions
from holdfast.state.state_change import StateChange, changed_state
from holdfast.state.tables import as_now
from holdfast.store import DirectoryStore
from holdfast.stored_json import JsonForm

__all__ = [
    "Keys",
    "OperatorState",
    "OperatorTables",
    "as_keys",
    "kept_shape",
    "key_types",
    "not_retained",
    "open_operator",
    "open_state",
    "shown_state",
]

Keys = Mapping[str, Any] | Sequence[Mapping[str, Any]] | pl.DataFrame


class StateOfRecord(msgspec.Struct, frozen=True, rename={"other_places": "beside"}):
    """What the record of an epoch says about state."""

    state: Mapping[str, tuple[Manifest, ...]]
    other_places: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _ChangedState:
    """What the change of a record says about state: what has changed, and what is as it says."""

    state: StateChange
    record: StateOfRecord


_UNKNOWN = OperatorShape(kind="", keys={}, state={})
_STATE_FORM = JsonForm(StateOfRecord, "the record of an epoch")
_CHANGE_FORM = JsonForm(_ChangedState, "the change of a record")
_SETTLED_SECONDS = 0.5


def open_state(store: Path, pipeline: str, record: StateOfRecord) -> DirectoryStore:
    """The files that hold the state of a pipeline or fragment, in the tiers that a record of it names."""
    others = tuple(Path(place) for place in record.other_places)
    return DirectoryStore(store.resolve() / pipeline / "state", other_places=others)


@dataclass(frozen=True, slots=True)
class OperatorTables:
    """The tables of an operator, and the manifests of its partitions."""

    layout: OperatorLayout
    parts: tuple[Manifest, ...]
    files: DirectoryStore

    def table(self, table: TableLayout, keys: pl.DataFrame | None = None) -> pl.DataFrame:
        """The live rows of a table, or those of some keys, with their positions."""
        positions = None if keys is None else np.unique(key_positions([keys[name] for name in table.keys], keys.height))
        frames = [frame for part in self.parts for frame in self._part(part, table, positions)]
        if not frames:
            return pl.DataFrame(schema={POSITION: pl.UInt64(), **table.schema})
        rows = pl.concat(frames)
        return rows if keys is None else join_on_keys(rows, keys.unique(), table.keys, "inner", ordered=True)

    def _part(self, part: Manifest, table: TableLayout, positions: Positions | None) -> list[pl.DataFrame]:
        """The rows of a partition, as one frame, or none. Pieces that cannot hold a wanted position stay closed."""
        frames = []
        for piece in part.table(table.name):
            wanted = None if positions is None else _within(positions, piece.interval)
            if wanted is None:
                frames.append(as_now(read_piece(self.files, piece), table.schema, table.defaults))
            elif len(wanted):
                rows = _at(read_piece(self.files, piece), wanted)
                frames.append(as_now(rows, table.schema, table.defaults))
        if not frames:
            return []
        rows = pl.concat(frames)
        if table.keyed:
            # Pieces are oldest first, and the newest row of a key wins.
            rows = rows.unique(subset=[POSITION, *table.keys], keep="last", maintain_order=True)
            rows = rows.filter(~pl.col(DELETED)).drop(DELETED)
        return [rows]

    def is_gone(self) -> bool:
        """Whether a file of the state is missing: it was removed, since no retained epoch needs it, or lost."""
        return any(self.files.found(piece.punit.name) is None for part in self.parts for piece in part.pieces)

    def shown(self, keys: pl.DataFrame | None = None) -> pl.DataFrame:
        """All tables as one, the way people see them."""
        layout, frames = self.layout, [pl.DataFrame(schema=self.layout.shown_schema)]
        for table in layout.tables:
            rows = self.table(table, keys)
            shown = rows.select(pl.col(name).alias(plain) for name, plain in layout.shown(table).items())
            frames.append(shown.insert_column(0, pl.lit(table.name).alias(TABLE)) if layout.several else shown)
        return pl.concat(frames, how="diagonal")


@dataclass(frozen=True, slots=True)
class OperatorState(OperatorTables):
    """The state of an operator after an epoch."""

    pipeline: str
    operator: str
    epoch: int
    shape: OperatorShape
    commit: Commit


def shown_state(
    store: Path,
    pipeline: str,
    operator: str,
    epoch: int | None,
    at: Moment | None = None,
    *,
    key: Keys | None = None,
    meta: str | None = None,
) -> tuple[OperatorState, pl.DataFrame]:
    """The state of an operator, and its rows as people see them.

    A pipeline that runs removes the files of epochs it no longer retains. What is read of the last one is begun anew
    with a later one, should that happen: one that stays for a while.
    """
    moment = None if at is None else seconds_at(at, time.time())
    settled = False
    with opened_meta(store, meta) as opened:
        while True:
            found = open_operator(opened, store, pipeline, operator, epoch, moment, settled=settled)
            try:
                return found, found.shown(None if key is None else as_keys(found.layout, key))
            except CorruptPUnitError:
                if open_operator(opened, store, pipeline, operator).epoch == found.epoch:
                    raise
                if epoch is not None or moment is not None:
                    raise not_retained(found) from None
                settled = True


def not_retained(found: OperatorState) -> UnknownStateError | CorruptPUnitError:
    """Why the state of an earlier epoch cannot be read."""
    if found.is_gone():
        return UnknownStateError(
            f"the state of epoch {found.epoch} is no longer retained",
            cure="choose a later epoch, or retain more of them with `retain`",
            operator=found.operator,
        )
    return CorruptPUnitError(
        f"a file of the state of epoch {found.epoch} is damaged",
        cure="restore the file from a copy of the store; nothing was changed",
        operator=found.operator,
    )


def key_types(store: Path, pipeline: str, operator: str, meta: str | None = None) -> pl.Schema:
    """The key columns of an operator."""
    with opened_meta(store, meta) as opened:
        return open_operator(opened, store, pipeline, operator).layout.keys


def open_operator(
    meta: MetaStore,
    store: Path,
    pipeline: str,
    operator: str,
    epoch: int | None = None,
    moment: float | None = None,
    *,
    settled: bool = False,
) -> OperatorState:
    """Find the state of an operator after a retained epoch: the one of a number, the last one at a moment in seconds of
    the wall clock, by default the last; with `settled` one that stays for a while, if there is any."""
    if epoch is not None and moment is not None:
        raise DeclarationError("both an epoch and a time are given", cure="give `epoch` or `at`", operator=operator)
    pipeline = _fragment(meta, pipeline, operator)
    commits = _commits(meta, store, pipeline)
    if epoch is not None:
        commits_then = [commit for commit in commits if commit.epoch == epoch]
    elif moment is not None:
        there = (c for c in commits if c.committed_at <= moment and _is_there(meta, store, pipeline, operator, c))
        commits_then = list(islice(there, 1))
    else:
        commits_then = [_settled(commits) if settled else commits[0]]
    if not commits_then:
        what = f"epoch {epoch} is not retained" if moment is None else f"nothing of {shown_moment(moment)} is retained"
        raise UnknownStateError(what, cure=_choice(meta, store, pipeline, operator, commits), operator=operator)
    return _opened(meta, store, pipeline, operator, commits_then[0])


def _settled(commits: Sequence[Commit]) -> Commit:
    """The last commit that is retained for its time, as far as one can tell: it is whole, and not among the last."""
    newest = commits[0]
    old = (c for c in commits if not c.since and newest.committed_at - c.committed_at >= _SETTLED_SECONDS)
    return next(old, newest)


def _is_there(meta: MetaStore, store: Path, pipeline: str, operator: str, commit: Commit) -> bool:
    """Whether the state after an epoch is retained. The store knows more epochs than those."""
    return not _opened(meta, store, pipeline, operator, commit).is_gone()


def _choice(meta: MetaStore, store: Path, pipeline: str, operator: str, commits: Sequence[Commit]) -> str:
    """What can be chosen."""
    kept = [commit for commit in reversed(commits) if _is_there(meta, store, pipeline, operator, commit)]
    if not kept:
        return "no epoch is retained; start the pipeline"
    return (
        f"choose one of {ranges(commit.epoch for commit in kept)}, which were committed from"
        f" {shown_moment(kept[0].committed_at)} to {shown_moment(kept[-1].committed_at)}; `retain` sets how long"
        " epochs are kept"
    )


def _state_of(commit: Commit) -> StateOfRecord:
    first, *changes = (*commit.since, commit.record)
    found = _STATE_FORM.decode(first)
    for text in changes:
        change = _CHANGE_FORM.decode(text)
        found = StateOfRecord(changed_state(found.state, change.state), change.record.other_places)
    return found


def _opened(meta: MetaStore, store: Path, pipeline: str, operator: str, commit: Commit) -> OperatorState:
    record = _state_of(commit)
    if operator not in record.state:
        raise UnknownStateError(
            f"pipeline '{pipeline}' has no stateful operator '{operator}'",
            cure=f"it has: {', '.join(sorted(record.state)) or 'none'}",
        )
    known = kept_shape(meta, pipeline)
    shape = _UNKNOWN if known is None else known.operators.get(operator, _UNKNOWN)
    files = open_state(store, pipeline, record)
    parts = record.state[operator]
    units: dict[str, list[pl.Schema]] = {}
    if shape.tables is None:
        for piece in _pieces(parts):
            units.setdefault(piece.table, []).append(read_piece(files, piece).schema)
    layout = layout_of(operator, shape, units)
    return OperatorState(layout, parts, files, pipeline, operator, commit.epoch, shape, commit)


def as_keys(layout: OperatorLayout, key: Keys) -> pl.DataFrame:
    """Keys as a frame with the columns and types of the operator's key."""
    if not layout.keys:
        raise UnknownColumnError(
            "it has no key: its state is one group", cure="read it without a key", operator=layout.operator
        )
    if isinstance(key, pl.DataFrame):
        given, columns = key, [set(key.columns)]
    else:
        rows = [dict(key)] if isinstance(key, Mapping) else list(map(dict, key))
        given, columns = None, [set(row) for row in rows]
    for names in columns:
        if names != set(layout.keys):
            raise UnknownColumnError(
                f"the key has the columns {', '.join(layout.keys)}, not {', '.join(sorted(names)) or 'none'}",
                cure=f"give a value for each of {', '.join(layout.keys)}",
                operator=layout.operator,
            )
    made = []
    for name, dtype in layout.keys.items():
        try:
            if given is None:
                series = pl.Series(name, [row[name] for row in rows], dtype=dtype, strict=True)
            else:
                series = _same_values(given[name], dtype)
        except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
            raise WrongTypeError(
                f"key column '{name}' is {dtype}: {str(error).splitlines()[0]}",
                cure=f"give values of the type {dtype}",
                operator=layout.operator,
            ) from error
        made.append(series)
    return pl.DataFrame(made)


def _same_values(column: pl.Series, dtype: pl.DataType) -> pl.Series:
    """The column in another type of the same kind, if all its values exist there."""
    if column.dtype == dtype:
        return column
    if not (column.dtype.is_integer() and dtype.is_integer()) and column.dtype != pl.Null:
        raise TypeError(f"the given column is {column.dtype}")
    return column.cast(dtype, strict=True)


def _within(positions: Positions, interval: Interval) -> Positions:
    start = int(np.searchsorted(positions, np.uint64(interval.lo), side="left"))
    stop = len(positions)
    if interval.hi < 1 << 64:
        stop = int(np.searchsorted(positions, np.uint64(interval.hi), side="left"))
    return positions[start:stop]


def _at(rows: pl.DataFrame, wanted: Positions) -> pl.DataFrame:
    """The rows at these positions, found in the sorted ones."""
    positions = rows[POSITION].to_numpy()
    starts = np.searchsorted(positions, wanted, side="left")
    counts = np.searchsorted(positions, wanted, side="right") - starts
    offsets = np.repeat(np.cumsum(counts) - counts, counts)
    index = np.repeat(starts, counts) + np.arange(int(counts.sum())) - offsets
    return rows.select(pl.all().gather(index))


def _pieces(parts: Sequence[Manifest]) -> Iterator[Piece]:
    return (piece for part in parts for piece in part.pieces)


def _commits(meta: MetaStore, store: Path, pipeline: str) -> list[Commit]:
    commits = meta.commits(pipeline)
    if not commits:
        known = meta.pipelines()
        cure = f"the store has: {', '.join(known)}" if known else "run the pipeline first"
        raise UnknownStateError(f"pipeline '{pipeline}' has no committed epoch in {store}", cure=cure)
    return commits


def _fragment(meta: MetaStore, pipeline: str, operator: str) -> str:
    """The fragment that holds the operator, where p-streams cut the pipeline."""
    for name in meta.pipelines():
        shape = kept_shape(meta, name) if name.startswith(f"{pipeline}.") else None
        if shape is not None and operator in shape.operators:
            return name
    return pipeline


def kept_shape(meta: MetaStore, pipeline: str) -> PipelineShape | None:
    """What a pipeline looked like when it last ran."""
    text = meta.shape(pipeline)
    return None if text is None else PipelineShape.decode(text)
