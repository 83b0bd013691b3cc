"""The places that the suite for sinks writes to: each check has one of its own, and sees what a reader sees there."""

from __future__ import annotations

import inspect
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

import polars as pl

import holdfast
from holdfast.connect.base import DriverSink, Owner, Receipt, Sink, TaskSink
from holdfast.errors import DeclarationError
from holdfast.testkit.hand_run import Rows
from holdfast.testkit.promises import Promises
from holdfast.testkit.row_sets import at_most, difference, missing_rows, surplus_rows

__all__ = ["SinkGuarantee", "SinkPlaces", "code_of", "guarantee_of"]

SinkGuarantee = Literal["exactly-once", "at-least-once", "at-most-once", "none"]
"""What a sink promises about the rows of committed epochs, whatever crashes."""

_PLACES = itertools.count(1)


class SinkPlaces:
    """Makes sinks for places, and holds what a reader finds there against what was written."""

    def __init__(
        self,
        make: Callable[[str], Sink],
        read: Callable[[str], Rows],
        rows: pl.DataFrame,
        guarantee: SinkGuarantee,
        promises: Promises,
    ) -> None:
        self.rows, self.promises, self.guarantee = rows, promises, guarantee
        self._make, self._read = make, read

    def new(self) -> str:
        return f"place{next(_PLACES)}"

    def made(self, place: str) -> Sink:
        """As a pipeline declares it."""
        return self._make(place)

    def opened(self, place: str, committed: int = 0, retained: Mapping[int, Sequence[Receipt]] | None = None) -> Sink:
        """As a run begins with it, after so many committed epochs."""
        sink = self._make(place)
        sink.accept(self.rows.schema)
        sink.attach(Owner("suite", "suite", "out"))
        sink.bind(self.rows.schema)
        if isinstance(sink, TaskSink):
            sink.check(committed, retained or {})
        elif isinstance(sink, DriverSink):
            sink.check(committed)
        return sink

    def seen(self, place: str) -> pl.DataFrame:
        """What a reader finds, with the columns that were written."""
        found = self._read(place)
        frame = found if isinstance(found, pl.DataFrame) else pl.DataFrame(list(found), schema=self.rows.schema)
        return frame if frame.width else pl.DataFrame(schema=self.rows.schema)

    def compare(self, place: str, expected: pl.DataFrame, step: str) -> None:
        """After crashes: what the guarantee says of rows that were committed."""
        found = self.seen(place)
        wrong = [at_most(found, expected)]
        if self.guarantee == "exactly-once":
            wrong.append(difference(found, expected))
        if self.guarantee == "at-least-once":
            wrong.append(missing_rows(found, expected))
        if self.guarantee == "at-most-once":
            wrong.append(surplus_rows(found, expected))
        for problem in filter(None, wrong):
            raise self.promises.broken(step, f"{problem}; the guarantee is {self.guarantee}")

    def all_of(self, place: str, expected: pl.DataFrame, step: str) -> None:
        """Where nothing has crashed: every row, once."""
        wrong = difference(self.seen(place), expected)
        self.promises.check(wrong is None, step, str(wrong))

    def nothing(self, place: str, step: str) -> None:
        found = self.seen(place)
        self.promises.check(not found.height, step, f"a reader sees {found.rows()[:5]}")


def guarantee_of(sink: Sink) -> SinkGuarantee:
    """What the sentence says that `explain` shows."""
    for known in get_args(SinkGuarantee):
        if sink.guarantee.lower().replace("-", " ").startswith(known.replace("-", " ")):
            found: SinkGuarantee = known
            return found
    raise DeclarationError(
        f"the guarantee of the sink is {sink.guarantee!r}, which does not say what is to be checked",
        cure='begin it with "exactly once", "at least once", "at most once" or "none", or give guarantee=...',
    )


def code_of(sink: Sink) -> tuple[str, ...]:
    """Below which directories the code of a sink lies: where it can crash."""
    roots = set()
    for kind in type(sink).__mro__:
        if kind in (Sink, TaskSink, DriverSink, object) or not issubclass(kind, Sink):
            continue
        if kind.__module__.partition(".")[0] == holdfast.__name__:
            roots.add(str(Path(inspect.getfile(holdfast)).parent) + os.sep)
        else:
            roots.add(inspect.getfile(kind))
    return tuple(roots)
