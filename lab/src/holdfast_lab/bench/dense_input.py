"""Input for benchmarks: dense, in memory, replayed for ever with shifted times.

The samples of the real datasets have some thousand rows over some minutes, so replaying them fast would make minutes
of event time pass in a blink and every window nearly empty. `dense` repeats every row at its own time instead: the
event times, keys and their shares stay, and a second of event time holds thousands of tuples, as it would in a stream
that is this fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from holdfast.connect.sources.replay import ReplaySource, replay
from holdfast.graph.durations import ticks
from holdfast_lab.workloads.datasets import Dataset

__all__ = ["DENSE_ROWS", "DenseInput", "DenseTable", "dense", "dense_table"]

DENSE_ROWS = 4_000_000


@dataclass(frozen=True, slots=True)
class DenseInput:
    """A dataset repeated to about so many rows per period."""

    data: Dataset
    frame: pl.DataFrame
    period: int

    @property
    def rows_per_event_second(self) -> float:
        return self.frame.height * ticks("1s", self.data.time_unit) / self.period

    def source(self, directory: Path, rows: int | None = None) -> ReplaySource:
        """The input as a source whose file is in `directory`."""
        return replay(self.frame, self.data.event_time, rows=rows, period=self.period, directory=directory)


@dataclass(frozen=True, slots=True)
class DenseTable:
    """A dense input for an engine that cannot hold all of it: every row of `input` is to be read `repeat` times."""

    input: DenseInput
    repeat: int

    @property
    def rows_per_event_second(self) -> float:
        return self.input.rows_per_event_second * self.repeat


def dense(data: Dataset, rows: int = DENSE_ROWS, frame: pl.DataFrame | None = None) -> DenseInput:
    """The dataset with each row repeated so often that there are about `rows` of them."""
    events = data.load() if frame is None else frame
    times = max(1, rows // events.height)
    # Round after round of the rows of an instant, not each row many times: runs of equal keys would be too kind.
    time = pl.col(data.event_time)
    repeated = pl.concat([events] * times).sort(time, maintain_order=True) if times > 1 else events
    return DenseInput(data, repeated, data.period(events))


def dense_table(data: Dataset, most: int, rows: int = DENSE_ROWS, frame: pl.DataFrame | None = None) -> DenseTable:
    """As dense as `dense(data, rows)`, in a table of about `most` rows: each of them counts several times."""
    events = data.load() if frame is None else frame
    made = dense(data, min(most, rows), events)
    rounds, here = (max(1, wanted // events.height) for wanted in (rows, made.frame.height))
    return DenseTable(made, max(1, round(rounds / here)))
