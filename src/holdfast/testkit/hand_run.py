"""A pipeline in the hands of a test: without Spark, fed by hand, by a clock that stands until it is moved.

The engine, the operators and the meta store are those of a run; only the executor is this process. So what a test sees
is what a run does, cut into epochs as the test says, in milliseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Any

import polars as pl

from holdfast.engine.fragment_runs import open_cuts
from holdfast.engine.loop import Loop
from holdfast.errors import DeclarationError, WrongTypeError
from holdfast.graph.guarantee import Guarantee
from holdfast.graph.nodes import Node, SinkNode, SourceNode
from holdfast.graph.pipeline import Pipeline, check_pipeline
from holdfast.pstream.link import StreamSink
from holdfast.task.in_process import Attempt
from holdfast.testkit.crash_points import CrashPoints
from holdfast.testkit.fed_rows import FedInput, FedSource, KeptOutput, KeptSink
from holdfast.testkit.quick_store import QuickStore, quick_store
from holdfast.testkit.row_sets import difference
from holdfast.testkit.stepping import MOST_EPOCHS, EpochCut, Stepping

__all__ = ["InProcess", "Rows", "standing_in"]

Rows = pl.DataFrame | Sequence[Mapping[str, Any]]
"""Rows as a test writes them: a DataFrame, or a list of dicts."""


class InProcess:
    """Runs a pipeline in this process, without Spark and within milliseconds, step by step as a test says.

    `pipeline` is the pipeline, or a function that declares it, which is then called for every start. Each source is
    fed by `feed`, and what comes to a sink is kept for `rows`; those named in `keep` stay as declared. `now` is the
    time of the clock in seconds, and stands until it is set. `rows_per_epoch`, `tasks` and `partitions` say how the run
    is divided. To be used in a `with` statement, or closed.
    """

    def __init__(
        self,
        pipeline: Pipeline | Callable[[], Pipeline],
        *,
        keep: Iterable[str] = (),
        now: float = 0.0,
        rows_per_epoch: int = 1_000_000,
        tasks: int = 1,
        partitions: int = 1,
    ) -> None:
        self.now = now
        self.cut = EpochCut(rows_per_epoch, tasks=tasks, partitions=partitions)
        self.points = CrashPoints()
        self._keep = frozenset(keep)
        self._declare: Callable[[], object] = pipeline if callable(pipeline) else lambda: pipeline
        self._fed: dict[str, FedInput] = {}
        self._kept: dict[str, KeptOutput] = {}
        self._owners: dict[str, str] = {}
        self._late: Counter[str] = Counter()
        self._first = self._stand_in()
        self._runs: list[Stepping] = []
        self._living = ExitStack()
        self._home = ExitStack()
        self._store: QuickStore = self._home.enter_context(quick_store())

    # the two ends

    def feed(self, source: str, rows: Rows) -> None:
        """Give rows to a source, behind those that it has. They are read by `epoch` or `run`."""
        node = self._source(source)
        frame = rows if isinstance(rows, pl.DataFrame) else pl.DataFrame(list(rows), schema=node.schema)
        if frame.columns != node.schema.names():
            frame = frame.select(node.schema.names())
        self._fed[source].items.append(frame.cast(node.schema))

    def watermark(self, source: str, time: int | datetime) -> None:
        """Let the watermark of a source be at `time`, behind the rows that it has: rows before it are late, and windows
        that end by then close. A number is in the unit of the source's event time."""
        node = self._source(source)
        if node.time is None:
            raise DeclarationError(
                "the source has no event time, so it has no watermark",
                cure="declare event_time=... on the source",
                operator=source,
            )
        if isinstance(time, datetime):
            time = int(pl.Series([time]).cast(node.schema[node.time.column]).to_physical()[0])
        self._fed[source].items.append(time)

    def end(self, *sources: str) -> None:
        """Let these sources end, or all of them: when all have ended, all windows close."""
        for name in sources or self._fed:
            self._source(name)
            self._fed[name].ended = True

    def rows(self, sink: str) -> pl.DataFrame:
        """All rows that have come to a sink in committed epochs, in the order of their epochs."""
        if sink not in self._kept:
            known = ", ".join(self._kept) or "none"
            raise DeclarationError(f"the test keeps no sink '{sink}'", cure=f"it keeps: {known}")
        self._begin()
        with closing(self._store.meta()) as meta:
            committed = meta.last_epoch(self._owners[sink])
        found = [frame for epoch, frame in sorted(self._kept[sink].epochs.items()) if epoch <= committed]
        return pl.concat(found) if found else pl.DataFrame(schema=self._first.nodes[sink].schema)

    def assert_rows(self, sink: str, expected: Rows, *, ordered: bool = False) -> None:
        """Check all rows that have come to a sink, in any order unless they are to be `ordered`."""
        found = self.rows(sink)
        if not isinstance(expected, pl.DataFrame):
            expected = pl.DataFrame(list(expected), schema=found.schema)
        if wrong := difference(found, expected, ordered=ordered):
            raise AssertionError(f"sink '{sink}': {wrong}")

    @property
    def read(self) -> dict[str, int]:
        """How many rows were read since the last start, by source; of some sources that is an estimate."""
        counted: Counter[str] = Counter()
        for run in self._runs:
            for plan in run.outcome.plans:
                counted.update({name: plan.rows_of(name) for name in plan.slices})
        return dict(counted)

    @property
    def late(self) -> dict[str, int]:
        """How many rows came too late, by operator."""
        counted = Counter(self._late)
        for run in self._runs:
            counted.update(run.outcome.late)
        return dict(counted)

    # running

    def epoch(self) -> bool:
        """Run an epoch, where there is input: of each fragment, if p-streams cut the pipeline. Whether there was."""
        self._begin()
        ran = [run.epoch() for run in self._runs]
        return any(ran)

    def run(self) -> None:
        """Run until everything that was fed is processed."""
        for _ in range(MOST_EPOCHS):
            if not self.epoch():
                for run in self._runs:
                    run.loop.committer.publish_all()
                return
        raise AssertionError(f"the sources do not end: {MOST_EPOCHS} epochs have been run")

    def crash(self) -> None:
        """End here, as if the process were killed. The next call starts again from what was committed."""
        for run in self._runs:
            self._late.update(run.outcome.late)
        self._runs = []
        living, self._living = self._living, ExitStack()
        living.close()

    def close(self) -> None:
        """End, and remove the store."""
        self.crash()
        self._home.close()

    def __enter__(self) -> InProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self) -> None:
        if self._runs:
            return
        with closing(self._store.meta()) as meta:
            made = open_cuts(self._stand_in(), meta)
        for fragment in made.fragments:
            for node in fragment.pipeline.nodes.values():
                if isinstance(node, SinkNode) and node.name in self._kept:
                    self._owners[node.name] = fragment.name
            run = Stepping(
                self._store.root, fragment.pipeline, self.cut, clock=lambda: self.now, meta=self._store.meta(),
                follow=self._follow, is_lost=self._task_done, until_idle=False,
            )  # fmt: skip
            run.loop.deadlines.watch = self.points.reach
            self._living.enter_context(run.run.seated())
            self._runs.append(run)

    def _follow(self, loop: Loop) -> None:
        self.points.reach(f"before {loop.machine.next()}")

    def _task_done(self, attempt: Attempt) -> bool:
        name = f"task {attempt.task} of stage {attempt.stage} in epoch {attempt.epoch}"
        self.points.reach(f"after {name}")
        return self.points.lose(name)

    def _stand_in(self) -> Pipeline:
        """The pipeline with both ends in the hands of the test."""
        declared = self._declare()
        check_pipeline(declared, "hf.testing.InProcess")
        assert isinstance(declared, Pipeline)
        for name in self._keep - declared.nodes.keys():
            raise DeclarationError(
                f"keep names '{name}', but there is no such source or sink",
                cure=f"there are: {', '.join(declared.nodes)}",
            )
        return standing_in(declared, self._hold)

    def _hold(self, node: Node) -> Node:
        if node.name in self._keep:
            return node
        if isinstance(node, SourceNode):
            fed = self._fed.setdefault(node.name, FedInput(self.points))
            source = FedSource(node.name, node.schema, node.source.bad_rows, node.lateness, fed)
            return replace(node, source=source)
        if isinstance(node, SinkNode) and not isinstance(node.sink, StreamSink):
            kept = self._kept.setdefault(node.name, KeptOutput())
            return replace(node, sink=KeptSink(node.name, kept))
        return node

    def _source(self, name: str) -> SourceNode:
        node = self._first.nodes.get(name)
        if not isinstance(node, SourceNode) or name not in self._fed:
            known = ", ".join(self._fed) or "none"
            raise WrongTypeError(f"the test feeds no source '{name}'", cure=f"it feeds: {known}")
        return node


def standing_in(pipeline: Pipeline, other: Callable[[Node], Node]) -> Pipeline:
    """A copy of a pipeline with other nodes in the places of some."""
    guarantee = None if pipeline.guarantee == Guarantee() else pipeline.guarantee
    copy = Pipeline(pipeline.name, guarantee=guarantee)
    for node in pipeline.nodes.values():
        copy.add(other(node))
    return copy
