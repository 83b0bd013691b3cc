"""What a source answers, held against the contract in `connect/base.py`: a source may be a user's own, and what is
wrong with its answers must be said where they come in, not by what they break later."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from holdfast.connect.base import Chunk, Position, Slice, Take
from holdfast.errors import OperatorError
from holdfast.hidden_columns import is_hidden

__all__ = ["checked_chunks", "checked_position", "checked_take"]


def checked_position(method: str, position: object) -> Position:
    """A position, which must come back from the meta store as it was."""
    if not isinstance(position, Mapping):
        raise OperatorError(
            f"the source's {method} gives a position that is {_a(position)}",
            cure='return a dict, e.g. {"row": 0}; it is kept in the meta store as JSON',
        )
    _check_json(f"the position that the source's {method} gives", position)
    return position


def checked_take(take: object) -> Take:
    """The outcome of planning."""
    if not isinstance(take, Take):
        raise OperatorError(
            f"the source's take returned {_a(take)}",
            cure="return hf.source.Take(slices, position); without slices and at the same position if there is nothing",
        )
    if not isinstance(take.slices, list | tuple) or not all(isinstance(piece, Slice) for piece in take.slices):
        raise OperatorError(
            "the source's take returned a Take whose slices are not a tuple of Slice",
            cure="return hf.source.Take((hf.source.Slice(base, rows, where), ...), position)",
        )
    for piece in take.slices:
        _check_json("the `where` of a slice that the source's take gives", piece.where)
    checked_position("take", take.position)
    return take


def checked_chunks(schema: pl.Schema, chunks: object) -> Iterator[Chunk]:
    """The chunks of a slice, with the columns of the schema in its order."""
    if not isinstance(chunks, Iterable):
        raise OperatorError(
            f"the source's read returned {_a(chunks)}",
            cure="let it yield chunks: yield hf.source.Chunk(frame)",
        )
    for chunk in chunks:
        if not isinstance(chunk, Chunk) or not isinstance(chunk.frame, pl.DataFrame):
            found = f"a Chunk of {_a(chunk.frame)}" if isinstance(chunk, Chunk) else _a(chunk)
            raise OperatorError(
                f"the source's read yielded {found}",
                cure="let it yield chunks of a Polars DataFrame: yield hf.source.Chunk(frame)",
            )
        yield chunk if chunk.frame.schema == schema else _ordered(schema, chunk)


def _ordered(schema: pl.Schema, chunk: Chunk) -> Chunk:
    """The chunk with its columns as declared; an error if they are others."""
    found = chunk.frame.schema
    for column, dtype in schema.items():
        if column not in found:
            raise OperatorError(
                f"the source's read yielded rows without the column '{column}', which its schema declares as {dtype}",
                cure="give all columns of the schema, with nulls for missing values, or remove it from the schema",
            )
        if found[column] != dtype:
            raise OperatorError(
                f"the source's read yielded column '{column}' as {found[column]}, but its schema declares {dtype}",
                cure=f"make the frame with schema=self.schema, or cast the column, or declare it as {found[column]}",
            )
    hidden = [column for column in found if is_hidden(column)]
    more = [column for column in found if column not in schema and column not in hidden]
    if more:
        raise OperatorError(
            f"the source's read yielded a column '{more[0]}', which its schema does not have",
            cure="select the columns of the schema: frame.select(self.schema.names()), or declare it",
        )
    return replace(chunk, frame=chunk.frame.select(*schema, *hidden))


def _check_json(what: str, value: Any) -> None:
    try:
        again = json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise OperatorError(f"{what} is not JSON: {error}", cure=_PLAIN) from error
    if again != value:
        raise OperatorError(f"{what} is {value!r:.200}, which comes back from JSON as {again!r:.200}", cure=_PLAIN)


_PLAIN = "use dicts with text as keys, lists, text, whole numbers, true, false and null: no tuples, dates or arrays"


def _a(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
