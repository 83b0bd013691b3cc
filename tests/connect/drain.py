"""Reading a source to its end the way an epoch loop does, with the contract's promises checked on the way."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable

import polars as pl

from holdfast.source import Chunk, Position, Slice, Source


def rows_of(source: Source, piece: Slice, time: str | None = None) -> tuple[pl.DataFrame, list[Chunk]]:
    chunks = list(source.read(piece))
    frames = [chunk.frame if time is None else chunk.frame.with_columns(shifted(chunk, time)) for chunk in chunks]
    return (pl.concat(frames) if frames else pl.DataFrame(schema=source.schema)), chunks


def shifted(chunk: Chunk, time: str) -> pl.Expr:
    dtype = chunk.frame.schema[time]
    return (pl.col(time).to_physical().cast(pl.Int64) + chunk.shift).cast(dtype).alias(time)


def drain(
    source: Source,
    *,
    rows: int = 1000,
    pieces: int = 1,
    time: str | None = None,
    position: Position | None = None,
    limit: int = 10_000,
    seen: Callable[[Chunk], None] | None = None,
) -> tuple[pl.DataFrame, Position]:
    """All rows from `position` until the source is done, or has nothing more for now."""
    source = pickle.loads(pickle.dumps(source))
    at = source.start() if position is None else position
    frames = [pl.DataFrame(schema=source.schema)]
    next_base = -1
    for _ in range(limit):
        # Positions and slices go through the meta store, so they must survive JSON.
        take = source.take(json.loads(json.dumps(at)), rows, pieces)
        for piece in take.slices:
            piece = Slice(piece.base, piece.rows, json.loads(json.dumps(piece.where)))
            frame, chunks = rows_of(source, piece, time)
            again, _ = rows_of(source, piece, time)
            assert frame.equals(again), "a slice must give the same rows again"
            assert piece.base >= next_base, "bases must grow by at least the number of rows"
            next_base = piece.base + frame.height
            frames.append(frame)
            for chunk in chunks:
                if seen is not None:
                    seen(chunk)
        at = take.position
        if take.done or not take.slices:
            return pl.concat(frames), at
    raise AssertionError("the source did not end")
