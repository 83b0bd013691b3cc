"""Sinks whose rows come to the driver: the console, a collection in memory, a function of the user's.

All rows of an epoch pass through one process, so these are for results that are small: alerts, summaries,
tests. For bulk output use the file sinks, which write where the rows are made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import polars as pl

from holdfast.connect.base import DriverSink, Position
from holdfast.errors import DeclarationError, OperatorError
from holdfast.plurals import counted

__all__ = ["CollectSink", "ConsoleSink", "EpochFunctionSink", "collect", "console", "for_each_epoch"]


@dataclass(slots=True)
class ConsoleSink(DriverSink):
    """See `console`."""

    limit: int = 20
    guarantee: str = field(
        default="at most once: an epoch is printed after its commit, and not at all if the process dies in between",
        init=False,
    )

    def after_commit(self, epoch: int, rows: pl.DataFrame) -> None:
        if rows.height == 0:
            return
        left_out = max(0, rows.height - self.limit)
        with pl.Config(tbl_rows=self.limit, tbl_hide_dataframe_shape=True, tbl_width_chars=120):
            table = str(rows.head(self.limit))
        more = f"\n… and {counted(left_out, 'more row')}" if left_out else ""
        print(f"epoch {epoch}, {counted(rows.height, 'row')}\n{table}{more}", flush=True)

    def describe(self) -> str:
        return "console"


@dataclass(slots=True)
class CollectSink(DriverSink):
    """See `collect`. `epochs` maps the number of each epoch to its rows."""

    epochs: dict[int, pl.DataFrame] = field(default_factory=dict, init=False)
    schema: pl.Schema | None = field(default=None, init=False)
    guarantee: str = field(
        default="exactly once while the process lives: rows are kept by epoch number in memory, and lost with it",
        init=False,
    )

    @property
    def place(self) -> str:
        return f"collection {id(self)}"

    def bind(self, schema: pl.Schema) -> None:
        """Tell the columns to expect, so that `frame()` has them before the first row comes."""
        self.schema = schema

    def after_commit(self, epoch: int, rows: pl.DataFrame) -> None:
        self.epochs[epoch] = rows

    def frame(self) -> pl.DataFrame:
        """All rows so far, in the order of their epochs."""
        if not self.epochs:
            return pl.DataFrame(schema=self.schema)
        return pl.concat([self.epochs[epoch] for epoch in sorted(self.epochs)])

    def describe(self) -> str:
        return "collect in memory"


@dataclass(slots=True)
class EpochFunctionSink(DriverSink):
    """See `for_each_epoch`."""

    fn: Callable[..., object]
    takes_vector: bool = False
    guarantee: str = field(
        default="at least once per epoch, with the same epoch number and the same rows each time:"
        " exactly once if the function is idempotent by epoch number",
        init=False,
    )

    def deliver(self, epoch: int, rows: pl.DataFrame, vector: Mapping[str, Position]) -> None:
        try:
            if self.takes_vector:
                self.fn(epoch, rows, vector=vector)
            else:
                self.fn(epoch, rows)
        except Exception as error:
            raise OperatorError(
                f"the function {self._name()} given to for_each_epoch raised: {error!r}",
                cure="correct the function or the service it calls, then start the pipeline again: the"
                " epoch was not committed and will be given to it again",
                epoch=epoch,
            ) from error

    def describe(self) -> str:
        return f"for each epoch: {self._name()}"

    def _name(self) -> str:
        return getattr(self.fn, "__qualname__", type(self.fn).__name__)


def console(limit: int = 20) -> ConsoleSink:
    """Print the first `limit` rows of every epoch that has rows, after its commit."""
    if limit < 1:
        raise DeclarationError(f"console: limit={limit} is below 1", cure="give how many rows to print per epoch")
    return ConsoleSink(limit)


def collect() -> CollectSink:
    """Keep all rows in memory, for tests and notebooks: `sink.frame()`."""
    return CollectSink()


def for_each_epoch(fn: Callable[..., object]) -> EpochFunctionSink:
    """Call `fn(epoch, rows)` before every commit, with `vector=` too if it has a parameter of that name.

    `vector` says where each source stands after the epoch: what the rows depend on. Kept with the rows, it tells what
    is there already, also where epochs are counted anew.

    It is called again with the same epoch and rows if the process dies before the commit. To have an effect
    exactly once, let the function write under the epoch number, and do nothing where that number is there
    already.
    """
    try:
        takes_vector = "vector" in inspect.signature(fn).parameters
    except ValueError:  # a function of C that does not tell
        takes_vector = False
    return EpochFunctionSink(fn, takes_vector)
