"""A run of a pipeline in this process, without Spark: the engine as it is, cut into epochs as whoever runs it says.

`Stepping` is a run in a store that goes on epoch by epoch, or to its end, and notes what was committed. How the run is
cut into epochs, tasks and partitions, and how long merges last, is handed in; `follow` is called before each step of
the loop, and may end it there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import polars.selectors as cs

from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.engine.instructions import CommitEpoch, Finish, How, PlanEpoch
from holdfast.engine.loop import Loop
from holdfast.engine.observer import Observer
from holdfast.engine.options import RunArguments, RunOptions
from holdfast.epoch.messages import Message, commits_of, rows_for
from holdfast.epoch.plan import EpochPlan
from holdfast.epoch.record import EpochRecord
from holdfast.epoch.report import EpochReport
from holdfast.graph.pipeline import Pipeline
from holdfast.graph.policies import DELTA
from holdfast.meta import MetaStore
from holdfast.plan.program import Program
from holdfast.plan.watermarks import operator_watermark
from holdfast.state.levels import next_merge
from holdfast.state.manifest import Manifest
from holdfast.state.routing import Routing
from holdfast.task.in_process import Attempt, nothing_lost

__all__ = [
    "MOST_EPOCHS",
    "WHOLE",
    "Commits",
    "CutPace",
    "EpochCut",
    "Outcome",
    "Ran",
    "Stepping",
    "check_intervals",
    "options",
    "plain_rows",
    "platform",
]

MOST_EPOCHS = 10_000


@dataclass(frozen=True, slots=True)
class EpochCut:
    """How a run is cut: rows per epoch and source, reading tasks, partitions of stateful operators."""

    rows: int = 1_000_000
    tasks: int = 1
    partitions: int = 1
    scales: tuple[int, ...] = ()
    """Partitions of keyed operators from epoch to epoch, over and over; `partitions` where there are none."""
    merges: tuple[int, ...] = ()
    """Merges beside the epochs: how many epochs each lasts, over and over; none where there are none."""
    first: tuple[int, ...] = ()
    """Rows of the first epochs, one after the other; the others have `rows`."""


WHOLE = EpochCut()
"""Everything in one epoch, one task, one partition: the plainest run there is."""


@dataclass(frozen=True, slots=True)
class CutPace:
    """Epochs as a cut says, whatever is measured. Those in `empty` have no input."""

    cut: EpochCut
    empty: frozenset[int] = frozenset()

    def is_due(self, now: float) -> bool:
        return True

    def rows(self, epoch: int, program: Program) -> int:
        if epoch in self.empty:
            return 0
        first = self.cut.first
        return (first[epoch - 1] if epoch <= len(first) else self.cut.rows) * len(program.sources)

    def tasks(self, most: int) -> int:
        return most

    def routing(self, epoch: int, program: Program, routing: Mapping[str, Routing]) -> Mapping[str, Routing]:
        scales = self.cut.scales
        if not scales:
            return routing
        even = Routing.even(scales[(epoch - 1) % len(scales)])
        return {**routing, **{node.name: even for node in program.stateful if node.keys}}

    def began(self, now: float) -> None: ...

    def measured(self, rows: int, seconds: float, reading: float | None) -> None: ...


@dataclass(frozen=True, slots=True)
class Ran:
    """An epoch whose tasks have ended. One that is `replayed` was committed before."""

    epoch: int
    plan: EpochPlan
    messages: list[Message]
    replayed: bool


def _nothing(loop: Loop, ran: Ran) -> None: ...


@dataclass(slots=True)
class Commits:
    """Follows the loop of a run: is called before each step, and calls `before` and `after` around each commit."""

    after: Callable[[Loop, Ran], None] = _nothing
    before: Callable[[Loop, Ran], None] = _nothing
    _ran: Ran | None = None

    def __call__(self, loop: Loop) -> None:
        ran, self._ran = self._ran, None
        if ran is not None:
            loop.committer.chores.do()  # reports are among them, and are looked at
            self.after(loop, ran)
        match loop.machine.next():
            case CommitEpoch(epoch, how):
                execution = loop.executor.execution(epoch)
                self._ran = Ran(epoch, execution.plan, execution.outcome, how is How.AGAIN)
                self.before(loop, self._ran)


@dataclass(slots=True)
class Outcome:
    """What a run left: rows by sink, counters, and the record after each epoch. Epochs that were replayed are left out:
    they put out nothing."""

    program: Program
    records: list[EpochRecord]
    """As a start would find them; the first one is that before the first epoch."""
    reports: list[EpochReport] = field(default_factory=list)
    late: Counter[str] = field(default_factory=Counter)
    plans: list[EpochPlan] = field(default_factory=list)
    frames: dict[str, list[pl.DataFrame]] = field(default_factory=dict)

    @property
    def totals(self) -> dict[str, int]:
        return dict(self.records[-1].totals)

    @property
    def epochs(self) -> int:
        return len(self.plans)

    @property
    def sinks(self) -> dict[str, pl.DataFrame]:
        return {
            node.name: pl.concat(frames) if (frames := self.frames.get(node.name)) else pl.DataFrame(schema=node.schema)
            for node in self.program.sinks
        }

    def rows(self, sink: str = "out") -> list[tuple[Any, ...]]:
        return plain_rows(self.sinks[sink])

    def watermark_after(self, operator: str, epoch: int) -> int | None:
        """The operator's watermark after an epoch; epoch 0 is before the first."""
        record = self.records[epoch]
        return operator_watermark(self.program, operator, record.greatest, record.done)

    def note(self, loop: Loop, ran: Ran) -> None:
        """An epoch was committed."""
        record = loop.committer.run.progress.record
        check_intervals(record)
        if ran.replayed:
            assert not any(rows_for(ran.messages, node.name) for node in self.program.sinks), "a replay is silent"
            return
        self.records.append(EpochRecord.decode(record.encode()))
        self.plans.append(ran.plan)
        for commit in commits_of(ran.messages):
            self.late.update(commit.late)
        for node in self.program.sinks:
            self.frames.setdefault(node.name, []).extend(rows_for(ran.messages, node.name))


def plain_rows(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    """Rows as tuples; dates and times as the integers behind them."""
    return frame.with_columns(cs.temporal().to_physical()).rows()


def check_intervals(record: EpochRecord) -> None:
    """The state of each partition lies in the partition's own interval of key positions."""
    for name, parts in record.state.items():
        for part, manifest in enumerate(parts):
            assert isinstance(manifest, Manifest)
            assert manifest.interval == record.routing[name].interval(part)


# runs


def platform(
    cut: EpochCut, follow: Callable[[Loop], None], is_lost: Callable[[Attempt], bool] = nothing_lost
) -> InProcessPlatform:
    """This process. Merges are as small as there are any."""
    small = partial(next_merge, most=2, small=1, target=800)
    return InProcessPlatform(is_lost=is_lost, merges=cut.merges, find_merge=small, before_step=follow)


def options(store: Path, cut: EpochCut, **given: Any) -> RunOptions:
    """Nothing is synced, and a run ends when there is nothing to read."""
    common: RunArguments = {
        "store": store, "volatile": store / "volatile", "partitions": cut.partitions, "tasks": cut.tasks,
        "overlap": False, "poll": 0.0, "until_idle": True, "checkpoint": DELTA, "durable": False,
    }  # fmt: skip
    return RunOptions(**{**common, **given})


class Noted(Observer):
    """Gives the reports of commits to an outcome."""

    def __init__(self, reports: list[EpochReport]) -> None:
        self._reports = reports

    def epoch_committed(self, report: EpochReport) -> None:
        self._reports.append(report)


class Stepping:
    """A run in a store, that goes on epoch by epoch as a test says, or to its end."""

    def __init__(
        self,
        store: Path,
        pipeline: Pipeline,
        cut: EpochCut = WHOLE,
        *,
        clock: Callable[[], float] = lambda: 0.0,
        most_epochs: int = MOST_EPOCHS,
        meta: MetaStore | None = None,
        follow: Callable[[Loop], None] = lambda loop: None,
        is_lost: Callable[[Attempt], bool] = nothing_lost,
        **given: Any,
    ) -> None:
        """`follow` is called before each step, `is_lost` after each task; what they raise ends the run there. What else
        is given are options of the run."""
        reports: list[EpochReport] = []
        self._follow = follow
        chosen = options(store, cut, **{"max_epochs": most_epochs, **given})
        self.run = FragmentRun(
            pipeline, platform(cut, self._before_step, is_lost), chosen,
            observer=Noted(reports), pace=CutPace(cut), clock=clock, meta=meta,
        )  # fmt: skip
        self.loop = self.run.loop
        self.outcome = Outcome(self.run.program, [self.loop.committer.run.progress.record], reports)
        self._commits = Commits(self.outcome.note)

    def _before_step(self, loop: Loop) -> None:
        self._commits(loop)
        self._follow(loop)

    def epoch(self) -> bool:
        """Run an epoch, if there is input. Only within `run.seated()`."""
        machine = self.loop.machine
        while True:
            self._before_step(self.loop)
            match self.loop.step():
                case CommitEpoch():
                    self._commits(self.loop)
                    return True
                case PlanEpoch() if machine.planned == machine.committed:
                    return False
                case Finish():
                    return False

    def to_the_end(self) -> Outcome:
        self.run.live()
        return self.outcome
