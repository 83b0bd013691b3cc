"""A pipeline with a crash at every step of the protocol, and with its input cut at every place: the output must be that
of one run in one epoch."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import polars as pl

from holdfast.errors import HoldfastError
from holdfast.graph.nodes import SinkNode, SourceNode
from holdfast.graph.pipeline import Pipeline
from holdfast.plurals import counted
from holdfast.testkit.crash_points import DiedError
from holdfast.testkit.hand_run import InProcess, Rows
from holdfast.testkit.row_sets import difference
from holdfast.testkit.stepping import WHOLE, EpochCut

__all__ = ["CrashedRun", "chosen", "crash_everywhere", "run_with_crashes"]

T = TypeVar("T")
Outputs = dict[str, pl.DataFrame]


@dataclass(frozen=True, slots=True)
class CrashedRun:
    """What to do to one run: how its input is cut, at which steps it dies, and which attempt of a task is lost."""

    cut: EpochCut
    dies_at: tuple[int, ...] = ()
    loses: int | None = None


@dataclass(slots=True)
class CrashLog:
    """What happened to a run: the steps it reached in its first life, those at which it died, and tasks that ran."""

    reached: list[str] = field(default_factory=list)
    died: list[str] = field(default_factory=list)
    attempts: int = 0

    def told(self, case: CrashedRun) -> str:
        cut = case.cut
        first = f", the first of them {', '.join(map(str, cut.first))}" if cut.first else ""
        epochs = "in one epoch" if cut == WHOLE else f"in epochs of {counted(cut.rows, 'row')}{first}"
        crashes = "".join(f", with a crash {step}" for step in self.died)
        lost = f", with attempt {case.loses} of a task lost" if case.loses is not None else ""
        return f"{epochs} ({counted(cut.tasks, 'task')}, {counted(cut.partitions, 'partition')}){crashes}{lost}"


def run_with_crashes(kit: InProcess, case: CrashedRun, log: CrashLog) -> None:
    """Run what was fed to its end, dying where the case says so."""
    kit.cut, kit.points.loses_at = case.cut, case.loses
    for number, dies_at in enumerate((*case.dies_at, None)):
        kit.points.reached.clear()
        kit.points.dies_at = dies_at
        try:
            kit.run()
        except DiedError as death:
            log.died.append(str(death))
        finally:
            if number == 0:
                log.reached = list(kit.points.reached)
        if dies_at is None:
            break
        kit.crash()
    log.attempts = kit.points.attempts


def crash_everywhere(
    feed: Mapping[str, Rows] | None = None, *, ordered: bool = False, most: int = 100, seed: int = 0
) -> Callable[[Callable[..., Pipeline]], Callable[..., None]]:
    """A decorator that makes a test of a function that declares a pipeline: it runs the pipeline with a crash at every
    step of the protocol, and with its input cut at every place, and compares the output with that of one undisturbed
    run.

    `feed` gives the rows of sources by name; a source that is not in it is read as declared, and must be finite. What
    comes to the sinks is kept in memory. Rows are compared in any order, unless they are to be `ordered`. Of more than
    `most` places or steps, so many are chosen by `seed`; the error of a failed check names it.
    """

    def made(declare: Callable[..., Pipeline]) -> Callable[..., None]:
        @functools.wraps(declare)
        def test(*given: Any, **named: Any) -> None:
            CrashTest(lambda: declare(*given, **named), dict(feed or {}), ordered, most, seed).run()

        test.__annotations__ = {**declare.__annotations__, "return": None}
        return test

    return made


class CrashTest:
    """See `crash_everywhere`."""

    def __init__(
        self, declare: Callable[[], Pipeline], feed: Mapping[str, Rows], ordered: bool, most: int, seed: int
    ) -> None:
        self._declare, self._feed, self._ordered = declare, feed, ordered
        self._most, self._seed, self._random = most, seed, random.Random(seed)
        nodes = declare().nodes.values()
        self._kept = [node.name for node in nodes if isinstance(node, SourceNode) and node.name not in feed]
        self._sinks = [node.name for node in nodes if isinstance(node, SinkNode)]
        self._expected: Outputs = {}

    def run(self) -> None:
        log, rows = CrashLog(), [0]
        self._expected = self._outputs(CrashedRun(WHOLE), log, rows)
        length = max(rows)
        for case in self._cuts(length):
            self._compare(case)
        halves = EpochCut(max(1, -(-length // 2)))
        log = self._compare(CrashedRun(halves))
        steps = range(1, len(log.reached) + 1)
        for step in chosen(steps, self._most, self._random):
            self._compare(CrashedRun(halves, (step,)))
        for attempt in chosen(range(1, log.attempts + 1), self._most, self._random):
            self._compare(CrashedRun(halves, loses=attempt))
        for _ in range(min(self._most, 5)):
            twice = (self._random.choice(steps), self._random.choice(steps))
            size = self._random.randint(1, max(1, length))
            self._compare(CrashedRun(EpochCut(size, tasks=2, partitions=2), twice))

    def _cuts(self, length: int) -> Iterator[CrashedRun]:
        yield CrashedRun(
            EpochCut(1, partitions=2) if length <= self._most else EpochCut(-(-length // self._most), partitions=2)
        )
        for place in chosen(range(1, length), self._most, self._random):
            yield CrashedRun(EpochCut(first=(place,)))

    def _compare(self, case: CrashedRun) -> CrashLog:
        log = CrashLog()
        try:
            found = self._outputs(case, log, [])
        except HoldfastError as error:
            raise AssertionError(f"{log.told(case)}: {error} (seed={self._seed})") from error
        for sink, rows in found.items():
            if wrong := difference(rows, self._expected[sink], ordered=self._ordered):
                raise AssertionError(
                    f"sink '{sink}', {log.told(case)}, differs from the run in one epoch without a crash: {wrong}"
                    f" (seed={self._seed})"
                )
        return log

    def _outputs(self, case: CrashedRun, log: CrashLog, rows: list[int]) -> Outputs:
        with InProcess(self._declare, keep=self._kept) as kit:
            for source, given in self._feed.items():
                kit.feed(source, given)
            kit.end()
            run_with_crashes(kit, case, log)
            rows += kit.read.values()
            return {sink: kit.rows(sink) for sink in self._sinks}


def chosen(items: range, most: int, by: random.Random) -> list[int]:
    """All of them, or so many, in their order."""
    return list(items) if len(items) <= most else sorted(by.sample(items, most))
