"""Input that comes by itself and is kept in a p-stream: what all such sources have in common.

A `ReceivedSource` only declares. A receiver of `holdfast.ingress` takes what comes, writes it into a p-stream and
acknowledges it once it is durable; the pipeline reads the p-stream. So nothing is ever read from the source itself, and
a pipeline that is down or slow loses nothing, as far as the budget goes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import polars as pl

from holdfast.connect.base import BadRows, Chunk, Position, Slice, Source, Take
from holdfast.connect.time_range import TimeRange
from holdfast.errors import DeclarationError, HoldfastError, WrongTypeError

__all__ = ["ReceivedSource", "check_received_schema", "parse_size"]

_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*")
_UNUSABLE = (pl.Object, pl.Unknown)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ReceivedSource(Source):
    """Sizes are in bytes, `idle` is in seconds."""

    schema: pl.Schema
    max_body: int
    budget: int
    bad_rows: BadRows
    idle: float
    push_up: bool = True
    compress: bool = True
    times: TimeRange | None = None
    """The event times that are allowed, once the source is part of a pipeline."""
    clock: Callable[[], float] = time.time

    def start(self) -> Position:
        return {}

    def take(self, position: Position, rows: int, pieces: int) -> Take:
        raise _not_readable()

    def read(self, piece: Slice) -> Iterator[Chunk]:
        raise _not_readable()


def parse_size(name: str, value: str | int) -> int:
    """A number of bytes: a plain one, or a text such as "64 MB" or "1 GiB"."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = _SIZE.fullmatch(value.lower()) if isinstance(value, str) else None
    if match is not None and match[2] in _UNITS and (found := int(float(match[1]) * _UNITS[match[2]])) > 0:
        return found
    raise WrongTypeError(
        f"{name}={value!r} is not a size", cure='write a number of bytes, or a text such as "64 MB" or "1 GiB"'
    )


def check_received_schema(by: str, schema: pl.Schema) -> None:
    if not schema:
        raise WrongTypeError(f"{by}: the schema has no columns", cure="declare the columns that clients send")
    for name, dtype in schema.items():
        if isinstance(dtype, _UNUSABLE):
            raise WrongTypeError(
                f"{by}: column '{name}' is {dtype}", cure="declare a type that Arrow can hold, such as pl.Int64"
            )


def _not_readable() -> HoldfastError:
    return DeclarationError(
        "a source whose rows are received cannot be read directly: they come only once",
        cure="run the pipeline with `holdfast run` or holdfast.run(): it reads the p-stream that the receivers write",
    )
