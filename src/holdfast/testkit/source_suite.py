"""The suite for sources: what `connect/base.py` says a source must do, checked on a source and its input."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from pyspark import cloudpickle

from holdfast.connect.base import DEAD_LETTER_SCHEMA, Position, Slice, Source, Take
from holdfast.connect.sinks.driver_sinks import collect
from holdfast.connect.source_answers import checked_chunks, checked_position, checked_take
from holdfast.connect.source_need import SourceNeed
from holdfast.graph.pipeline import Pipeline
from holdfast.plurals import counted
from holdfast.testkit.crash_runs import CrashedRun, CrashLog, chosen, run_with_crashes
from holdfast.testkit.hand_run import InProcess, Rows
from holdfast.testkit.promises import Promises
from holdfast.testkit.reading_process import read_elsewhere, read_here
from holdfast.testkit.row_sets import difference
from holdfast.testkit.stepping import EpochCut

__all__ = ["check_source"]

_MOST_TAKES = 10_000
_MOST_SECONDS = 120.0
_PAUSE = 0.01
_MANY = 1_000_000
_SHORTEST_INPUT = 3
Outage = Callable[[], AbstractContextManager[Any]]


def check_source(
    make_source: Callable[[], Source],
    rows: Rows | None = None,
    *,
    feed: Callable[[], Rows] | None = None,
    ordered: bool = True,
    bad: int = 0,
    hang: Outage | None = None,
    slow: Outage | None = None,
    deadline: float = 60.0,
    crashes: int = 30,
    seed: int | None = None,
) -> None:
    """Check that a source keeps what `Source` promises; an AssertionError says which promise is broken, where, with the
    rows that differ and the seed.

    `make_source` makes a source, each time as another process would. `rows` are the rows of its input; without them
    they are what one reading gives. `feed` adds to the input and returns what it has added. `ordered=False` says that
    rows have no one order, as those of several partitions. `bad` is how many rows of the input do not fit; the source
    must then be made with `bad_rows="dead_letter"`. `hang` and `slow` are context managers in which the server does not
    answer, or is slow: calls must come back within `deadline` seconds. Of the steps at which a run can crash, `crashes`
    are tried, chosen by `seed`; with 0 of them nothing is run.
    """
    first = make_source()
    suite = _SourceSuite(make_source, Promises("check_source", first.describe(), seed), ordered, bad)
    suite.declaration(first)
    suite.one_reading(None if rows is None else _frame(rows, first.schema))
    suite.planning()
    suite.cuts()
    suite.other_processes()
    suite.columns()
    if bad:
        suite.bad_rows()
    if slow is not None:
        with slow():
            suite.slowness()
    if hang is not None:
        suite.outage(hang, deadline)
    if crashes:
        suite.deaths(crashes)
    if feed is not None:
        suite.growth(lambda: _frame(feed(), first.schema))


@dataclass(slots=True)
class _Reading:
    """What came of reading a source from a position to its end: rows, those that did not fit, and how it was cut."""

    rows: pl.DataFrame
    position: Position
    bad: pl.DataFrame
    slices: list[Slice] = field(default_factory=list)


class _SourceSuite:
    """The checks, each with a promise. `expected` is what the input holds."""

    def __init__(self, make: Callable[[], Source], promises: Promises, ordered: bool, bad: int) -> None:
        self._make, self._promises, self._ordered, self._bad = make, promises, ordered, bad
        self.expected = pl.DataFrame()
        self._letters = pl.DataFrame(schema=DEAD_LETTER_SCHEMA)

    def declaration(self, source: Source) -> None:
        with self._promises.promise("a source can be pickled, and its positions are JSON"):
            self._promises.check(isinstance(source.schema, pl.Schema), "schema", "it is no pl.Schema")
            _copy(source)
            checked_position("start", source.start())
            again = self._make().start()
            same = json.dumps(again, sort_keys=True) == json.dumps(source.start(), sort_keys=True)
            self._promises.check(same, "start", f"it gives {source.start()} and then {again}")

    def one_reading(self, rows: pl.DataFrame | None) -> None:
        with self._promises.promise("all rows of the input are read, each once"):
            reading = self._read(_MANY, 1)
            self.expected = reading.rows if rows is None else rows
            self._compare(reading.rows, "read as a whole")
            self._letters = reading.bad

    def planning(self) -> None:
        with self._promises.promise("planning from the same position gives the same slices"):
            at = self._make().start()
            for number in range(3):
                size = self._promises.random.choice((1, 5, max(1, self.expected.height // 3)))
                takes = [checked_take(self._make().take(_json(at), size, 3)) for _ in range(2)]
                step = f"take {number + 1}, {counted(size, 'row')} in 3 pieces"
                one, other = (json.dumps(_plain(take), sort_keys=True) for take in takes)
                self._promises.check(one == other, step, f"it gave {one} and then {other}")
                at = takes[0].position

    def cuts(self) -> None:
        with self._promises.promise("rows are the same however the input is cut, and a slice that is read again"):
            height = self.expected.height + self._bad
            wanted = self._promises.random.randint(1, max(1, height))
            for size, pieces in ((max(1, height // 20), 1), (7, 2), (max(1, height // 2), 5), (wanted, 3)):
                reading = self._read(size, pieces, again=True)
                self._compare(reading.rows, f"{counted(size, 'row')} per take in {counted(pieces, 'piece')}")
                self._compare_letters(reading.bad, f"{counted(size, 'row')} per take")

    def other_processes(self) -> None:
        with self._promises.promise("another process reads the same rows of a slice, in the same order"):
            source = self._make()
            reading = self._read(max(1, self.expected.height // 3), 2)
            read = read_elsewhere(source, reading.slices)
            for number, (piece, there) in enumerate(zip(reading.slices, read, strict=True)):
                here, _ = read_here(source, piece)
                wrong = difference(there, here, ordered=True)
                self._promises.check(wrong is None, f"slice {number}: {piece.where}", str(wrong))

    def columns(self) -> None:
        with self._promises.promise("without the columns that nothing reads, a source gives the others unchanged"):
            column = self.expected.columns[-1]
            narrow = self._make().narrowed(SourceNeed((column,)))
            self._promises.check(column in narrow.schema, "narrowed", f"it has no column '{column}'")
            reading = self._read(_MANY, 2, source=narrow)
            wrong = difference(reading.rows.select(column), self.expected.select(column), ordered=self._ordered)
            self._promises.check(wrong is None, f"column '{column}' alone", str(wrong))

    def bad_rows(self) -> None:
        with self._promises.promise("rows that do not fit are reported one by one, each with its place and the reason"):
            letters = self._letters
            counts = f"{counted(letters.height, 'row')} given, {self._bad} expected"
            self._promises.check(letters.height == self._bad, "read as a whole", counts)
            for column in ("place", "reason"):
                empty = letters.filter(pl.col(column).is_null() | (pl.col(column) == ""))
                self._promises.check(not empty.height, "read as a whole", f"no {column}: {empty.rows()}")
            self._promises.check(
                letters["place"].n_unique() == letters.height,
                "read as a whole",
                f"places are the same: {letters['place'].to_list()}",
            )

    def slowness(self) -> None:
        with self._promises.promise("a slow server changes nothing"):
            self._compare(self._read(_MANY, 2).rows, "read from a slow server")

    def outage(self, hang: Outage, seconds: float) -> None:
        with self._promises.promise("calls come back by a deadline when the server hangs"):
            before = self._make()
            pieces = self._make().take(before.start(), _MANY, 1).slices
            take = lambda: self._make().take(before.start(), _MANY, 1)  # noqa: E731
            # A run has a deadline of its own for what it asks of a source while it plans.
            self._promises.comes_back("take while the server hangs", seconds, hang, take, own_error=False)
            if pieces:
                read = lambda: list(before.read(pieces[0]))  # noqa: E731
                self._promises.comes_back("read while the server hangs", seconds, hang, read)
            self._compare(self._read(_MANY, 2).rows, "read when the server answers again")

    def deaths(self, crashes: int) -> None:
        """Runs of the engine itself, from the source to a sink that keeps rows."""
        with self._promises.promise("no row is lost or comes twice when a run crashes at any step and starts again"):
            size = max(1, -(-max(self.expected.height, _SHORTEST_INPUT) // 3))
            log = self._run(CrashedRun(EpochCut(size, tasks=2)))
            steps = chosen(range(1, len(log.reached) + 1), crashes, self._promises.random)
            for step in steps:
                self._run(CrashedRun(EpochCut(size, tasks=2), (step,)))
            for attempt in chosen(range(1, log.attempts + 1), min(3, crashes), self._promises.random):
                self._run(CrashedRun(EpochCut(size, tasks=2), loses=attempt))

    def _run(self, case: CrashedRun) -> CrashLog:
        def declare() -> Pipeline:
            pipeline = Pipeline("suite")
            pipeline.source("rows", self._make()).sink("out", collect())
            return pipeline

        log = CrashLog()
        with InProcess(declare, keep=["rows"]) as kit:
            try:
                run_with_crashes(kit, case, log)
            except Exception as error:
                raise self._promises.broken(log.told(case), f"the run failed: {error}") from error
            wrong = difference(kit.rows("out"), self.expected)
        self._promises.check(wrong is None, log.told(case), str(wrong))
        return log

    def growth(self, feed: Callable[[], pl.DataFrame]) -> None:
        with self._promises.promise("rows that arrive while a source is read are read after the others, each once"):
            reading = self._read(max(1, self.expected.height // 2), 2)
            at, source = reading.position, self._make()
            for number in range(2):
                fed = feed()
                step = f"addition {number + 1}, {counted(fed.height, 'row')}"
                more = self._read(max(1, fed.height // 2), 2, position=at, source=source)
                wrong = difference(more.rows, fed, ordered=self._ordered)
                self._promises.check(wrong is None, step, str(wrong))
                at, source = more.position, self._make()
        if source.keeps:
            with self._promises.promise("a source that keeps its input gives the rows of old slices again"):
                old = [frame for piece in reading.slices for frame in (read_here(source, piece)[0],)]
                found = pl.concat(old) if old else pl.DataFrame(schema=source.schema)
                self._compare(found, "slices that were planned before the input grew")

    def _read(
        self,
        rows: int,
        pieces: int,
        *,
        position: Position | None = None,
        source: Source | None = None,
        again: bool = False,
    ) -> _Reading:
        """From a position to the end, as a run reads: positions and slices go through JSON, sources are pickled."""
        source = self._make() if source is None else source
        at = source.start() if position is None else position
        reader = _copy(source)
        found, bad, slices = [pl.DataFrame(schema=source.schema)], [self._letters.clear()], []
        base = None
        for number, take in enumerate(self._takes(source, at, rows, pieces)):
            for piece in take.slices:
                step = f"take {number + 1} of {counted(rows, 'row')}, slice {piece.where}"
                self._promises.check(
                    base is None or piece.base >= base,
                    step,
                    f"its base is {piece.base}, and rows before it go up to {base}: bases must grow with the rows",
                )
                frame, letters = self._slice(reader, piece, step, again=again)
                base = piece.base + frame.height + (0 if letters is None else letters.height)
                found.append(frame)
                bad += [] if letters is None else [letters]
                slices.append(piece)
            at = take.position
        return _Reading(pl.concat(found), at, pl.concat(bad), slices)

    def _takes(self, source: Source, at: Position, rows: int, pieces: int) -> Iterator[Take]:
        began = time.monotonic()
        for number in itertools.count():
            take = checked_take(source.take(_json(at), rows, pieces))
            if take.slices and not take.done:
                moved = json.dumps(take.position, sort_keys=True) != json.dumps(at, sort_keys=True)
                self._promises.check(moved, f"take {number + 1}", f"it gave rows, and the position stays {at}")
            yield Take(tuple(_stored(piece) for piece in take.slices), _json(take.position), take.done)
            at = take.position
            if take.done or (not take.slices and not source.awaits(at)):
                return
            if not take.slices:
                time.sleep(_PAUSE)
            if number == _MOST_TAKES or time.monotonic() - began > _MOST_SECONDS:
                raise self._promises.broken(f"take {number + 1}", "the source does not come to an end")

    def _slice(
        self, source: Source, piece: Slice, step: str, *, again: bool
    ) -> tuple[pl.DataFrame, pl.DataFrame | None]:
        for _ in checked_chunks(source.schema, source.read(piece)) if again else ():
            break  # a reader that dies after the first chunk
        frame, letters = read_here(source, piece)
        if again:
            second, _ = read_here(_copy(source), piece)
            wrong = difference(second, frame, ordered=True)
            self._promises.check(wrong is None, f"{step}, read again", str(wrong))
        return frame, letters

    def _compare(self, found: pl.DataFrame, step: str) -> None:
        wrong = difference(found, self.expected, ordered=self._ordered)
        self._promises.check(wrong is None, step, str(wrong))

    def _compare_letters(self, found: pl.DataFrame, step: str) -> None:
        wrong = difference(found.select("place", "row"), self._letters.select("place", "row"))
        self._promises.check(wrong is None, f"rows that do not fit, {step}", str(wrong))


def _json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _stored(piece: Slice) -> Slice:
    """As it comes back from the plan of an epoch."""
    return Slice(piece.base, piece.rows, _json(piece.where))


def _plain(take: Take) -> Any:
    slices = [[piece.base, piece.rows, piece.where] for piece in take.slices]
    return {"slices": slices, "position": take.position, "done": take.done}


def _copy(source: Source) -> Source:
    copy: Source = cloudpickle.loads(cloudpickle.dumps(source))  # type: ignore[no-untyped-call]
    return copy


def _frame(rows: Rows, schema: pl.Schema) -> pl.DataFrame:
    return rows if isinstance(rows, pl.DataFrame) else pl.DataFrame(list(rows), schema=schema)
