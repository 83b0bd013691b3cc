"""What a source and a sink must be able to do: the contracts between connectors and the epoch.

A *source* is planned on the driver and read in the tasks. `take` cuts the next slices of input, `read` turns one
slice into chunks of rows. A slice must always yield the same rows in the same order: exactly-once rests on it.

A *sink* is either a `TaskSink` (rows are written where they are made, in the tasks, and become visible when the
driver publishes the committed epochs) or a `DriverSink` (rows come to the driver).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import polars as pl

from holdfast.connect.sinks.rhythm import EVERY_EPOCH, Rhythm
from holdfast.errors import DeclarationError
from holdfast.store import Right

if TYPE_CHECKING:
    from holdfast.connect.source_need import SourceNeed

__all__ = [
    "DEAD_LETTER_SCHEMA",
    "BadRows",
    "Chunk",
    "DriverSink",
    "Marks",
    "Owner",
    "Position",
    "Receipt",
    "Sifted",
    "Sink",
    "Slice",
    "Source",
    "Take",
    "TaskSink",
    "Where",
    "check_bad_rows",
]

Position = Mapping[str, Any]
"""The position of a source: JSON-compatible, kept in the meta store, opaque to all but the source."""

Where = Mapping[str, Any]
"""What a slice is: JSON-able, kept in the plan of its epoch. Only the source knows what is in it."""

Receipt = Mapping[str, Any]
"""A task's report to the driver about prepared output, as JSON-compatible data."""

BadRows = Literal["fail", "skip", "dead_letter"]
"""How to handle a row that does not fit the schema."""


def check_bad_rows(where: str, value: BadRows) -> BadRows:
    """What was given as `bad_rows`, if it is one of the ways there are."""
    if value not in get_args(BadRows):
        raise DeclarationError(
            f"{where}: unknown bad_rows={value!r}", cure=f"use one of {', '.join(get_args(BadRows))}"
        )
    return value


DEAD_LETTER_SCHEMA = pl.Schema({"source": pl.String, "place": pl.String, "reason": pl.String, "row": pl.String})
"""The columns of dead letters: the source, the position in it, the problem, and the original row."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A contiguous part of a source, read by one task.

    `base` orders rows by arrival: `base + i` for row i of the slice, and every later slice of the source has a
    base that is larger than all of these. `rows` is exact where the source knows it and an estimate otherwise.
    """

    base: int
    rows: int
    where: Where


@dataclass(frozen=True, slots=True)
class Take:
    """The outcome of planning: the slices, the position after them, and whether the source has ended there."""

    slices: tuple[Slice, ...]
    position: Position
    done: bool = False


@dataclass(frozen=True, slots=True)
class Marks:
    """The watermark before and after the rows of a chunk, if the source knows it more precisely than its rows show.

    A chunk with marks may have the hidden column BOUND: on rows behind the watermark that they found, that watermark.
    """

    before: int | None
    after: int | None


@dataclass(frozen=True, slots=True)
class Sifted:
    """What a chunk was before its source left out rows that the pipeline's first filters drop: so many rows, with event
    times from `least` to `greatest`, in order; None where there is no event time."""

    rows: int
    least: int | None = None
    greatest: int | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows of a slice, in order.

    `shift` is added to the event time column by the reader of the chunk, lazily: only the rows that survive the
    filters pay for it. `ordered` promises that event times do not decrease within the chunk. `bad` holds the rows
    that did not fit, with DEAD_LETTER_SCHEMA. `place` says where the rows are from, for messages about one of them.
    """

    frame: pl.DataFrame
    shift: int = 0
    ordered: bool = False
    bad: pl.DataFrame | None = None
    marks: Marks | None = None
    place: str = ""
    sifted: Sifted | None = None

    @property
    def rows(self) -> int:
        """How many rows of the source it represents, without bad ones."""
        return self.frame.height if self.sifted is None else self.sifted.rows


class Source(ABC):
    """Input of a pipeline. Instances are pickled into the tasks, so they hold settings and no open handles.

    Not promised: that `take` and `read` run in the same process, that every planned slice is read only once, or
    that anything is called at the end.
    """

    schema: pl.Schema
    bounded: bool = False
    """A bounded source ends: when it is done, the watermark goes to the end of time and all windows close."""
    bad_rows: BadRows = "fail"
    """What happens to rows that do not fit, or whose event time is missing or not allowed."""
    in_order: bool = True
    """Whether one row comes after the other, so that a row is late by those before it. Where not, none of the rows up
    to a position that is `settled` makes another one late, and the watermark moves when all of them have been read."""
    keeps: bool = False
    """Whether what was taken long ago can be read again. Where not, state is made durable in every epoch."""

    @abstractmethod
    def start(self) -> Position:
        """The position before the first row."""

    @abstractmethod
    def take(self, position: Position, rows: int, pieces: int) -> Take:
        """Cut slices of about `rows` rows in all, at least one row if there is one, from `position` on.

        A source that is not `in_order` does not cut beyond a position that is `settled`.
        `pieces` is how many tasks will read; a source that can be cut anywhere returns that many slices of about
        equal size. No input yet is a Take without slices at the same position.
        """

    @abstractmethod
    def read(self, piece: Slice) -> Iterator[Chunk]:
        """The rows of a slice. Called in a task, again after a failure."""

    def narrowed(self, need: SourceNeed) -> Source:
        """This source without the columns that nobody reads: its `schema` is that of what `read` gives. Rows may be
        left out, too, as the need says. By default all is given."""
        return self

    def settled(self, position: Position) -> bool:
        """Of a source that is not `in_order`: whether the rows behind this position come after those before it."""
        return True

    def reads(self) -> Sequence[Path]:
        """Files, or a directory, that tasks must see as the driver does: a sample of them is enough."""
        return ()

    def lists(self, directory: Path) -> bool:
        """Whether its input is what is in this directory, or in one within it: nothing else may be put there."""
        return False

    def lists_below(self, directory: Path) -> bool:
        """Whether it looks for input in directories around this one, and in this one among them."""
        return False

    def lag(self, position: Position) -> int | None:
        """How many rows wait after `position`, or None if unknown."""
        return None

    def row_bytes(self) -> float | None:
        """About how many bytes of input a row takes, or None where that is unknown before it is read. It decides how
        many rows the first epoch takes."""
        return None

    def awaits(self, position: Position) -> bool:
        """Whether input is on its way that `take` leaves alone until it is complete: a run until idle waits for it."""
        return False

    def notices(self, position: Position) -> tuple[str, ...]:
        """Notices about the input for users, e.g. that a directory does not exist. Called now and then."""
        return ()

    def resumed(self, position: Position) -> Position:
        """The position to go on from after a person has changed input behind `position` and asked for a new plan. An
        error where what was read up to there has changed, too."""
        return position

    def named(self, file: str) -> str | None:
        """The name that a file has in slices and positions; None if the source does not read such a file."""
        return None

    def without(self, position: Position, name: str) -> Position:
        """The position from which nothing more of a file is read; the same one where all of it was read before."""
        return position

    def describe(self) -> str:
        """A few words for `explain`."""
        return type(self).__name__


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose output it is: no two sinks have the same one, also of pipelines in different stores."""

    store: str
    """The identity of the meta store."""
    pipeline: str
    """The name of the fragment; that of the pipeline where no p-stream cuts it."""
    sink: str

    def __str__(self) -> str:
        return f"sink '{self.sink}' of pipeline '{self.pipeline}' in store {self.store}"


class Sink(ABC):
    """Output of a pipeline. `guarantee` is one sentence, shown by `explain`."""

    guarantee: str

    @property
    def place(self) -> str | None:
        """What it writes to, where no other sink may write; None if others do no harm."""
        return None

    def accept(self, schema: pl.Schema) -> None:  # noqa: B027
        """Called when the sink is declared: raise DeclarationError if rows with these columns cannot be written."""

    def attach(self, owner: Owner) -> None:  # noqa: B027
        """Called once before a run, first of all."""

    def bind(self, schema: pl.Schema) -> None:  # noqa: B027
        """Called once before a run with the columns of the rows."""

    def describe(self) -> str:
        """A few words for `explain`."""
        return type(self).__name__


class TaskSink(Sink):
    """Output written by the tasks, made visible by the driver after the commit.

    Committed epochs are gathered until the `rhythm` says that it is time, and are then published together, under the
    number of the last one. What is committed and not known to be published is kept in the meta store.

    Not promised: that a prepared epoch is ever published (its attempt may lose), that `publish` is called only once (it
    is called again after a restart), or by one host at a time.
    """

    rhythm: Rhythm = EVERY_EPOCH

    @abstractmethod
    def prepare(self, rows: pl.DataFrame, *, epoch: int, part: str, attempt: str) -> Receipt:
        """Write the rows of one task durably where no reader sees them. `part` is unique within the epoch and
        stable over attempts; `attempt` is unique. `bytes` in the receipt counts for the rhythm."""

    def files(self, receipt: Receipt) -> Mapping[Path, int]:
        """The files that a receipt stands for, with their sizes: the driver must see them before it commits."""
        return {}

    @abstractmethod
    def publish(self, epoch: int, receipts: Sequence[Receipt]) -> None:
        """Make what was prepared for one or several epochs, of which this is the last, visible as a whole. Called
        again until the meta store knows of it, and then has no effect, whatever readers have done with it since."""

    def forget(self, epoch: int, receipts: Sequence[Receipt], right: Right) -> None:
        """The meta store knows that this was published: remove what was kept to tell. By default `sweep` does."""

    def seen(self, epoch: int, receipts: Sequence[Receipt], schema: pl.Schema) -> pl.DataFrame | None:
        """The rows that readers see of an epoch, to compare them; None where the sink cannot tell."""
        return None

    def writes(self) -> Sequence[Path]:
        """Directories that tasks write to, and the driver reads."""
        return ()

    def check(self, committed: int, retained: Mapping[int, Sequence[Receipt]]) -> None:
        """Called before the first job: raise if this sink cannot write, or must not because what is there is
        another's. `retained` is what the store still knows of the last of the `committed` epochs."""

    def discard(self, epoch: int, receipts: Sequence[Receipt], right: Right) -> None:
        """Remove what an attempt prepared that has lost, since another one's was committed. By default `sweep` does."""

    @abstractmethod
    def sweep(self, before_epoch: int, right: Right) -> None:
        """Remove what lost attempts prepared for epochs before this one. Called when all committed epochs among them
        were published."""


@dataclass(slots=True)
class DriverSink(Sink):
    """Output that goes through the driver, whole epochs in order."""

    guarantee: str = field(default="", init=False)

    def check(self, committed: int) -> None:
        """Called at the start: raise OutputConflictError if what was delivered is not of this history."""

    def deliver(self, epoch: int, rows: pl.DataFrame, vector: Mapping[str, Position]) -> None:
        """Called before the commit, with the vector of positions in the sources that the rows depend on: a sink that
        keeps it with the rows can tell, after a replay, what it has already. By default the vector is not used."""
        self.before_commit(epoch, rows)

    def delivered(self) -> int | None:
        """The last epoch that was delivered for good, committed or not; None where the sink cannot tell."""
        return None

    def before_commit(self, epoch: int, rows: pl.DataFrame) -> None:
        """Called before the commit. May be called again with the same epoch and the same rows after a failure."""

    def after_commit(self, epoch: int, rows: pl.DataFrame) -> None:
        """Called after the commit. Not called if the process dies in between."""
