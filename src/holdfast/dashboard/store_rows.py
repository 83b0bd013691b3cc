"""Rows that the dashboard shows: state of any retained epoch, what changed between two, and the tail of a p-stream."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from holdfast.errors import HoldfastError, UnknownStateError
from holdfast.hidden_columns import visible
from holdfast.meta import opened_meta
from holdfast.pstream.pstream import PStream
from holdfast.state.inspection import key_types
from holdfast.state.reader import state, state_diff

__all__ = ["MOST_ROWS", "ShownRows", "shown_diff", "shown_state_rows", "shown_tail"]

MOST_ROWS = 500
_MOST_TEXT = 200


@dataclass(frozen=True, slots=True)
class ShownRows:
    """A table as text. `total` is how many rows there are, of which the first are shown."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: tuple[tuple[str | None, ...], ...]
    total: int


def shown_state_rows(
    store: Path, meta: str | None, fragment: str, operator: str, epoch: int | None, search: str, limit: int
) -> ShownRows:
    """The state after an epoch. `search` is a key as `column=value`, which is looked up, or a text that some column
    has."""
    column, given, value = search.partition("=")
    types = key_types(store, fragment, operator, meta) if given else {}
    if given and set(types) == {column.strip()}:
        key = pl.Series([value.strip()]).cast(types[column.strip()], strict=False).item()
        frame = state(store, fragment, operator, epoch=epoch, key={column.strip(): key}, meta=meta)
    else:
        frame = state(store, fragment, operator, epoch=epoch, meta=meta)
        if search:
            frame = frame.filter(_has(frame, search))
    return _shown(frame, limit)


def _has(frame: pl.DataFrame, text: str) -> pl.Expr:
    column, given, value = text.partition("=")
    if given and column.strip() in frame.columns:
        return pl.col(column.strip()).cast(pl.String, strict=False) == value.strip()
    plain = [name for name, dtype in frame.schema.items() if not dtype.is_nested() and dtype != pl.Binary]
    return pl.any_horizontal(pl.col(name).cast(pl.String).str.contains(text, literal=True) for name in plain)


def shown_diff(
    store: Path, meta: str | None, fragment: str, operator: str, before: int, after: int, limit: int
) -> ShownRows:
    """What changed from one retained epoch to another."""
    return _shown(state_diff(store, fragment, operator, before, after, meta=meta), limit)


def shown_tail(store: Path, meta: str | None, stream: str, limit: int) -> ShownRows:
    """The last rows of a p-stream that it still holds, the newest first."""
    with opened_meta(store, meta) as opened:
        known = PStream(opened, store, stream)
        offset, frames, found = known.state().offset, [], 0
        for entry in known.backwards():
            if found >= limit:
                break
            if entry.units:
                try:
                    frames += [frame.reverse() for frame in reversed(known.load([entry]))]
                except (HoldfastError, OSError) as error:  # it was released while it was read
                    raise UnknownStateError(
                        f"the rows have been removed in the meantime: {error}", cure="look again"
                    ) from error
                found += entry.rows
    frame = pl.concat(frames, how="diagonal_relaxed") if frames else pl.DataFrame()
    shown = _shown(frame, limit)
    return ShownRows(shown.columns, shown.types, shown.rows, offset)


def _shown(frame: pl.DataFrame, limit: int) -> ShownRows:
    head = frame.head(limit)
    columns = tuple(visible(head.columns))
    rows = tuple(tuple(None if value is None else str(value)[:_MOST_TEXT] for value in row)
                 for row in head.select(columns).iter_rows())  # fmt: skip
    return ShownRows(columns, tuple(str(frame.schema[name]) for name in columns), rows, frame.height)
