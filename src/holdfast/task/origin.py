"""Rows that enter the chains of a task, with what is known about their event times."""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from holdfast.hidden_columns import BOUND

__all__ = ["FEW_ROWS", "Origin"]

FEW_ROWS = 20_000
"""For which setting up a query may take longer than running it."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Rows that enter the chains at `name`.

    `times` are the event times of rows in order, where they are known to be in order, so that panes can be cut out
    as slices; `shift` is still to be added to them and to the time column. `base` numbers the rows by arrival. `marks`
    are the watermarks before the rows, where all of them are wanted.
    """

    name: str
    frame: pl.DataFrame
    time: str | None = None
    shift: int = 0
    times: pl.Series | None = None
    base: int = 0
    marks: pl.Series | None = None

    def with_marks(self) -> Origin:
        """With the watermark before each row as its bound, whether it lies behind it or not."""
        if self.marks is None:
            return self
        return replace(self, frame=self.frame.with_columns(self.marks.alias(BOUND)))

    def without_bounds(self) -> Origin:
        return replace(self, frame=self.frame.drop(BOUND)) if BOUND in self.frame.columns else self

    def collect(self, made: pl.LazyFrame) -> pl.DataFrame:
        """What was made of these rows. Few of them are not worth an engine that cuts them into pieces."""
        return made.collect(engine="in-memory" if self.frame.height <= FEW_ROWS else "auto")

    def lazy(self, start: int = 0, stop: int | None = None) -> pl.LazyFrame:
        frame = self.frame
        if start or stop is not None:
            frame = frame.slice(start, None if stop is None else stop - start)
        if not self.shift or self.time is None:
            return frame.lazy()
        return frame.lazy().with_columns(_shifted(frame, self.time, self.shift))


def _shifted(frame: pl.DataFrame, column: str, shift: int) -> pl.Expr:
    dtype = frame.schema[column]
    if dtype.is_integer():
        return pl.col(column) + pl.lit(shift, dtype)
    return (pl.col(column).to_physical() + shift).cast(dtype)
