"""Rows made by a function of their offsets: synthetic input that can be replayed exactly.

The function must be pure: the same offsets give the same rows, in any process, at any time. That is what
lets a slice be read again after a failure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import polars as pl

from holdfast.connect.base import BadRows, Chunk, Slice, check_bad_rows
from holdfast.connect.schema import AnySchema, as_schema
from holdfast.connect.sources.offsets import Clock, OffsetSource
from holdfast.errors import DeclarationError, OperatorError

__all__ = ["GeneratorSource", "generator"]

MakeRows = Callable[[int, int], pl.DataFrame]


class GeneratorSource(OffsetSource):
    """See `generator`."""

    keeps = True

    def __init__(
        self,
        fn: MakeRows,
        schema: pl.Schema,
        *,
        rows: int | None,
        chunk_rows: int,
        rate: float | None,
        clock: Clock,
        bad_rows: BadRows = "fail",
    ) -> None:
        super().__init__(rows=rows, rate=rate, clock=clock)
        if chunk_rows < 1:
            raise DeclarationError(f"chunk_rows={chunk_rows} is below 1", cure="give a positive number of rows")
        self.fn = fn
        self.schema = schema
        self.chunk_rows = chunk_rows
        self.bad_rows = bad_rows

    def read(self, piece: Slice) -> Iterator[Chunk]:
        start, stop = int(piece.where["start"]), int(piece.where["stop"])
        for low in range(start, stop, self.chunk_rows):
            yield Chunk(self._make(low, min(low + self.chunk_rows, stop)))

    def describe(self) -> str:
        return f"generator {self._name()}, {self._extent()}"

    def _make(self, start: int, stop: int) -> pl.DataFrame:
        try:
            made = self.fn(start, stop)
        except Exception as error:
            raise OperatorError(
                f"the generator function {self._name()} raised for rows {start} to {stop}: {error!r}",
                cure="correct the function; it is called with (start, stop) and returns rows start .. stop-1",
            ) from error
        fault = self._fault(made, stop - start)
        if fault is not None:
            raise OperatorError(
                f"the generator function {self._name()} returned {fault} for rows {start} to {stop}",
                cure="return a DataFrame with exactly stop - start rows and the columns and types of"
                " the schema given to generator()",
            )
        return made.select(self.schema.names())

    def _fault(self, made: object, rows: int) -> str | None:
        if not isinstance(made, pl.DataFrame):
            return f"a {type(made).__name__} instead of a DataFrame"
        if made.height != rows:
            return f"{made.height} rows"
        for name, dtype in self.schema.items():
            if name not in made.schema:
                return f"no column '{name}'"
            if made.schema[name] != dtype:
                return f"column '{name}' as {made.schema[name]} instead of {dtype}"
        return None

    def _name(self) -> str:
        return getattr(self.fn, "__qualname__", type(self.fn).__name__)


def generator(
    fn: MakeRows,
    schema: AnySchema,
    rows: int | None = None,
    chunk_rows: int = 100_000,
    rate: float | None = None,
    clock: Clock = time.time,
    bad_rows: BadRows = "fail",
) -> GeneratorSource:
    """A source of rows made by `fn(start, stop)`, a pure function that returns the rows start .. stop-1.

    `rows=None` never ends. `rate` limits delivery to that many rows per second of `clock`, counted from the first
    take. `bad_rows` says what happens to a row whose event time is missing or not allowed. Not promised: the sizes in
    which `fn` is called, or that it is called only once for a row.
    """
    check_bad_rows("generator()", bad_rows)
    return GeneratorSource(
        fn,
        as_schema(schema, "generator()"),
        rows=rows,
        chunk_rows=chunk_rows,
        rate=rate,
        clock=clock,
        bad_rows=bad_rows,
    )
