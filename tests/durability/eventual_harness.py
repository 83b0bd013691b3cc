"""Runs under eventual checkpoints without Spark, that die and come back: the engine as it is, with this process as its
executor.

A `Story` is what one store goes through: lives that each begin with a recovery and end with a death, or with the end of
the sources. After each commit a witness may look at it. Time is a counter, so that a story is the same in every run.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import polars as pl

from harness import Commits, Cut, CutPace, Ran, check_intervals, options, platform
from holdfast.durability import footprint_log as driver_side
from holdfast.durability.checkpoints import Checkpoints
from holdfast.durability.footprint_log import FootprintLogs
from holdfast.durability.footprint_recovery import Gathered
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.instructions import LaunchEpoch
from holdfast.engine.loop import Loop
from holdfast.engine.observer import Observer
from holdfast.engine.recovery import RecoveryReport
from holdfast.epoch.messages import rows_for
from holdfast.epoch.record import EpochRecord
from holdfast.epoch.report import EpochReport
from holdfast.graph.pipeline import Pipeline
from holdfast.graph.policies import DELTA, CheckpointPolicy
from holdfast.meta import MetaStore
from holdfast.operators import footprint_trace as task_side
from holdfast.plan.program import Program
from holdfast.pstream.punit import close_all
from holdfast.store import Tiers
from holdfast.task import assembly_task
from holdfast.testkit.quick_store import QuickStore, quick_store

EPOCH_SECONDS = 1.0
"""Between two epochs: what is let go now and then is let go after each of them."""
Moment = Literal["planned", "ran", "committed"]
"""When a life ends: with an epoch planned, with its tasks done, or with it committed."""


@dataclass(frozen=True, slots=True)
class Death:
    """A life ends after so many epochs, replayed ones too. With `host` the volatile tier is lost."""

    after: int
    moment: Moment = "committed"
    host: bool = True
    policy: CheckpointPolicy | None = None
    """Of the life that follows; as before, if it is None."""
    partitions: int | None = None
    """How many a replay has; as they were, if it is None."""
    clean: bool = False
    """A stop instead of a death: state is made durable."""
    damage: Callable[[Life], None] | None = None
    """What else happens to the store."""
    build: Callable[[], Pipeline] | None = None
    """The code of the lives that follow; the same, if it is None."""


@dataclass(frozen=True, slots=True)
class Script:
    """How a story goes."""

    cut: Cut = field(default_factory=Cut)
    policy: CheckpointPolicy = DELTA
    deaths: tuple[Death, ...] = ()
    empty: frozenset[int] = frozenset()
    """Epochs without input."""
    chunk: int = 2
    """How many windows are looked up at once for a new footprint, to begin with."""
    batches: int = 64
    """Old batches that tasks are given at a time."""
    retain: int = 2


class Time:
    """A clock that moves when it is asked, and from epoch to epoch."""

    def __init__(self, step: float) -> None:
        self.now, self._step = 0.0, step

    def __call__(self) -> float:
        self.now += self._step
        return self.now


@dataclass(slots=True)
class Story(Observer):
    """What happened: rows put out by epoch, input rows by epoch, and how lives began. It is the observer of each."""

    script: Script
    outputs: dict[int, dict[str, pl.DataFrame]] = field(default_factory=dict)
    read: dict[int, int] = field(default_factory=dict)
    gathered: list[Gathered] = field(default_factory=list)
    replayed: list[int] = field(default_factory=list)
    kills: int = 0
    losses: int = 0
    epochs: int = 0

    def epoch_committed(self, report: EpochReport) -> None:
        assert report.epoch not in self.read, "no epoch is committed twice"
        self.read[report.epoch] = report.rows

    def recovered(self, report: RecoveryReport) -> None:
        self.gathered += report.gathered

    def rows(self, epoch: int) -> dict[str, list[str]]:
        return {sink: sorted(map(repr, frame.rows())) for sink, frame in self.outputs[epoch].items()}


Witness = Callable[["Life", int, bool], None]
"""Is shown a life at the commit of an epoch, and whether that one was replayed."""


def tell(
    pipeline: Callable[[], Pipeline],
    script: Script,
    witness: Witness | None = None,
    *,
    before_commit: Witness | None = None,
    prepare: Callable[[MetaStore, Path], Pipeline] | None = None,
    then: Callable[[MetaStore, Path], None] | None = None,
) -> Story:
    """Run a pipeline until its sources end, with the deaths that the script has. The witness looks at each commit,
    `before_commit` just before it. `prepare` may make the pipeline in the store, `then` look at the store in the end.
    """
    with quick_store() as store, fast_forward(script) as clock:
        root, meta = store.root, store.meta()
        try:
            made = prepare(meta, root) if prepare is not None else pipeline()
            story = Story(script)
            policy, partitions = script.policy, None
            for death in (*script.deaths, None):
                life = Life(made, story, store, policy, clock, partitions, death, witness, before_commit)
                ended = life.live()
                story.epochs = life.committed
                if ended or death is None:
                    break
                story.kills += 1
                close_all()  # what a process has verified, the next one has to look at again
                policy, partitions = death.policy or policy, death.partitions
                made = death.build() if death.build is not None else made
                if death.host and not death.clean:
                    story.losses += 1
                    shutil.rmtree(life.tiers.volatile, ignore_errors=True)
                if death.damage is not None:
                    death.damage(life)
            if then is not None:
                then(meta, root)
            return story
        finally:
            meta.close()


@contextmanager
def fast_forward(script: Script) -> Iterator[Time]:
    """Small chunks and few batches, and time that is counted."""
    clock, real = Time(1e-3), assembly_task.trace_of

    def trace_of(*arguments: Any) -> Any:
        trace = real(*arguments)
        if trace is not None:
            trace._piece = script.chunk
        return trace

    before = (task_side.time, task_side._LEAST_PIECE, driver_side._MOST_BATCHES)
    assembly_task.trace_of = trace_of  # type: ignore[assignment]
    task_side.time = SimpleNamespace(perf_counter=clock, process_time=clock)  # type: ignore[assignment]
    task_side._LEAST_PIECE, driver_side._MOST_BATCHES = 1, script.batches
    try:
        yield clock
    finally:
        assembly_task.trace_of = real
        task_side.time, task_side._LEAST_PIECE, driver_side._MOST_BATCHES = before


class Died(BaseException):
    """What a life ends of, where the script says so."""


class Life:
    """One process on a store, from its start to its end."""

    def __init__(
        self, pipeline: Pipeline, story: Story, store: QuickStore, policy: CheckpointPolicy, clock: Time,
        partitions: int | None, death: Death | None, witness: Witness | None, before_commit: Witness | None,
    ) -> None:  # fmt: skip
        script = story.script
        self.story, self.script, self.policy = story, script, policy
        self.root, self.meta = store.root, store.meta()
        self._clock, self._death, self._witness, self._before_commit = clock, death, witness, before_commit
        self._epochs, self._begun = 0, False
        self._run = FragmentRun(
            pipeline,
            platform(script.cut, self._before_step),
            options(store.root, script.cut, checkpoint=policy, retain=script.retain, recovery_partitions=partitions),
            observer=story,
            pace=CutPace(script.cut, script.empty),
            clock=clock,
            meta=store.meta(),
        )
        self._commits = Commits(self._committed, self._ran)

    # what a witness may look at

    @property
    def program(self) -> Program:
        return self._run.program

    @property
    def record(self) -> EpochRecord:
        return self._run.loop.committer.run.progress.record

    @property
    def lost(self) -> dict[int, EpochRecord]:
        return self._run.loop.committer.run.progress.lost

    @property
    def tiers(self) -> Tiers:
        return self._run.loop.committer.run.tiers

    @property
    def checkpoints(self) -> Checkpoints:
        return self._run.loop.committer.upkeep.checkpoints

    @property
    def footprints(self) -> FootprintLogs:
        return self._run.loop.committer.upkeep.footprints

    @property
    def committed(self) -> int:
        return self._run.committed

    # its course

    def live(self) -> bool:
        """Until death or the end of the sources; whether it was the end."""
        try:
            self._run.live()
        except Died:
            return False
        return not self._run.loop.stopped

    def _before_step(self, loop: Loop) -> None:
        self._commits(loop)
        if loop.machine.begun and not self._begun:
            self._begun = True
            self.story.replayed.append(loop.machine.planned - loop.machine.began)
        if isinstance(loop.machine.next(), LaunchEpoch):
            self._epochs += 1
            self._clock.now += EPOCH_SECONDS
            self._die("planned")

    def _ran(self, loop: Loop, ran: Ran) -> None:
        if self._before_commit is not None:
            self._before_commit(self, ran.epoch, ran.replayed)
        self._die("ran")

    def _committed(self, loop: Loop, ran: Ran) -> None:
        check_intervals(self.record)
        frames = {node.name: rows_for(ran.messages, node.name) for node in self.program.sinks}
        put_out = {name: pl.concat(each) for name, each in frames.items() if each}
        if ran.replayed:
            assert not put_out, "a replay is silent"
        else:
            self.story.outputs[ran.epoch] = put_out
        if self._witness is not None:
            self._witness(self, ran.epoch, ran.replayed)
        if self._dying and self._death is not None and self._death.clean:
            loop.stopped = True
        else:
            self._die("committed")

    @property
    def _dying(self) -> bool:
        return self._death is not None and self._epochs >= self._death.after

    def _die(self, moment: Moment) -> None:
        if self._dying and self._death is not None and self._death.moment == moment and not self._death.clean:
            raise Died
