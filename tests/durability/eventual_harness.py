"""Runs under eventual checkpoints without Spark, that die and come back: the engine's own tasks, meta store, logs,
checkpoints and restart, called in the driver's order by this process.

A `Story` is what one store goes through: lives that each begin with a recovery and end with a death, or with the end of
the sources. After each commit a witness may look at it. Time is a counter, so that a story is the same in every run.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import polars as pl

from harness import Cut, _fast_directory, _Run, _sent
from holdfast.durability import footprint_log as driver_side
from holdfast.durability.checkpoints import Checkpoints, CheckpointSettings
from holdfast.durability.footprint_log import FootprintLogs
from holdfast.durability.footprint_recovery import Gathered
from holdfast.durability.policy_choice import Amounts
from holdfast.durability.retention import Retention
from holdfast.engine.authority import HeldAuthority
from holdfast.engine.code_changes import take_changes
from holdfast.engine.epoch_input import new_plan, nothing_taken, take_input
from holdfast.engine.options import RunOptions
from holdfast.engine.recovery import Recovery
from holdfast.engine.restart import Restart
from holdfast.engine.stream_links import vector_of
from holdfast.epoch.facts import EpochFacts, merge_commits
from holdfast.epoch.handover import HandOver
from holdfast.epoch.messages import Message, RowsHead, rows_for
from holdfast.epoch.plan import EpochPlan, TaskSettings
from holdfast.epoch.record import EpochRecord, made_again
from holdfast.epoch.transaction import committing
from holdfast.graph.pipeline import Pipeline
from holdfast.graph.policies import DELTA, CheckpointPolicy
from holdfast.meta import MetaStore
from holdfast.operators import footprint_trace as task_side
from holdfast.pstream.punit import close_all
from holdfast.state.routing import Routing
from holdfast.task import assembly_task
from holdfast.task.assembly_task import AssemblyTask
from holdfast.task.fragment_task import FragmentTask

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
    """A clock that moves when it is asked."""

    def __init__(self, step: float) -> None:
        self.now, self._step = 0.0, step

    def __call__(self) -> float:
        self.now += self._step
        return self.now


@dataclass(slots=True)
class Story:
    """What happened: rows put out by epoch, input rows by epoch, and how lives began."""

    script: Script
    outputs: dict[int, dict[str, pl.DataFrame]] = field(default_factory=dict)
    read: dict[int, int] = field(default_factory=dict)
    gathered: list[Gathered] = field(default_factory=list)
    replayed: list[int] = field(default_factory=list)
    kills: int = 0
    losses: int = 0
    epochs: int = 0

    def rows(self, epoch: int) -> dict[str, list[str]]:
        return {sink: sorted(map(repr, frame.rows())) for sink, frame in self.outputs[epoch].items()}


Witness = Callable[["Life", int, bool], None]
"""Is shown a life after the commit of an epoch, and whether that one was replayed."""


def tell(
    pipeline: Callable[[], Pipeline],
    script: Script,
    witness: Witness | None = None,
    *,
    prepare: Callable[[MetaStore, Path], Pipeline] | None = None,
    then: Callable[[MetaStore, Path], None] | None = None,
) -> Story:
    """Run a pipeline until its sources end, with the deaths that the script has. `prepare` may make the pipeline in the
    store, `then` look at the store in the end."""
    with tempfile.TemporaryDirectory(prefix="hf-", dir=_fast_directory()) as directory, fast_forward(script) as clock:
        root = Path(directory)
        meta = MetaStore(root, sync=False)
        try:
            made = prepare(meta, root) if prepare is not None else pipeline()
            story = Story(script)
            policy, partitions = script.policy, None
            for death in (*script.deaths, None):
                life = Life(made, story, root, meta, policy, clock, partitions)
                ended = life.live(death, witness)
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
            trace._chunk = script.chunk
        return trace

    before = (task_side.time, task_side._LEAST_CHUNK, driver_side._MOST_BATCHES)
    assembly_task.trace_of = trace_of  # type: ignore[assignment]
    task_side.time = SimpleNamespace(perf_counter=clock)  # type: ignore[assignment]
    task_side._LEAST_CHUNK, driver_side._MOST_BATCHES = 1, script.batches
    try:
        yield clock
    finally:
        assembly_task.trace_of = real
        task_side.time, task_side._LEAST_CHUNK, driver_side._MOST_BATCHES = before


class Life(_Run):
    """One process on a store, from its start to its end."""

    def __init__(
        self, pipeline: Pipeline, story: Story, root: Path, meta: MetaStore, policy: CheckpointPolicy, clock: Time,
        partitions: int | None,
    ) -> None:  # fmt: skip
        script = story.script
        super().__init__(pipeline, script.cut, root / pipeline.name, meta, root)
        self.story, self.script, self.root, self.meta, self.policy = story, script, root, meta, policy
        self.clock = clock
        self.tiers = self._tiers
        self.program = self._given
        self.lease = meta.acquire(pipeline.name, "test", clock(), 1e9, dead_owner="test")
        self.options = RunOptions(store=root, partitions=script.cut.partitions, recovery_partitions=partitions)
        settings = CheckpointSettings(policy)
        self.right = HeldAuthority(meta, SimpleNamespace(lease=self.lease))  # type: ignore[arg-type]
        self.checkpoints = Checkpoints(self.program, self.tiers, settings, self.right, clock, lambda report: None)
        self.footprints = FootprintLogs(self.program, meta, root, False, self.right, clock, trim_every=0)
        self.retention = Retention(self.tiers.at("stable"), script.retain, self.right)
        self._recover()

    @property
    def record(self) -> EpochRecord:
        return self._record

    def _recover(self) -> None:
        """As the driver does."""
        self.committed = take_changes(self.program, self.meta, self.lease, self.options.partitions, self.clock())
        restart = Restart(self.program, self.meta, self.options)
        for epoch, record in restart.records.items():
            self.retention.add(epoch, record.files(), pinned=range(epoch + 1))
        last, self._positions, self._done = restart.record, restart.positions, restart.done
        restart.load(Recovery(self.clock), self.tiers)
        if restart.lost or restart.gathered:
            self.retention.forget(restart.began)
            self.retention.add(restart.began, restart.record.files(), pinned=range(restart.began))
        self._record = self._begin = restart.record
        self.planned, self.lost, self.routing = restart.planned, restart.lost, restart.routing
        self.checkpoints.begin(restart.record, restart.base, restart.since_base(), last.policy)
        damaged = {each.operator for each in restart.gathered if each.left_out}
        self.footprints.begin(last, self.committed, damaged)
        self.retention.sweep()
        assert self._links is not None
        self._links.recover(self.right)
        self.footprints.sweep(self.right)
        self.began = self.committed = restart.began
        self.story.gathered += restart.gathered
        self.story.replayed.append(len(restart.planned))

    def live(self, death: Death | None, witness: Witness | None) -> bool:
        """Until death or the end of the sources; whether it was the end."""
        try:
            for ran in range(1, 10_000):
                dying = death is not None and ran >= death.after
                epoch = self.committed + 1
                plan = self.planned.get(epoch) or self._plan()
                if plan is None:
                    self._end()
                    return True
                plan = EpochPlan.decode(self.meta.plan(self.lease, epoch, plan.encoded_as, self.clock()))
                if dying and death is not None and death.moment == "planned" and not death.clean:
                    return False
                messages = self._ran(epoch, plan)
                if dying and death is not None and death.moment == "ran" and not death.clean:
                    return False
                replayed = epoch in self.lost
                self._commit(epoch, plan, messages)
                if witness is not None:
                    witness(self, epoch, replayed)
                if dying and death is not None and not (death.clean and self.planned):  # what is planned is run first
                    if death.clean:
                        self._end()
                    return False
        finally:
            self.checkpoints.close()
        raise AssertionError("the sources do not end")

    def _plan(self) -> EpochPlan | None:
        number, cut = self.committed, self.script.cut
        rows = cut.rows * len(self._given.sources)
        if number + 1 in self.script.empty:
            taken = nothing_taken(self._given, self._positions, self._done, cut.tasks)
        else:
            found = take_input(self._given, self._positions, self._done, rows, cut.tasks, number + 1)
            if found is None:
                return None
            taken = found
        self._positions, self._done = taken.positions, taken.done
        if cut.scales:
            wide = cut.scales[number % len(cut.scales)]
            self.routing |= {node.name: Routing.even(wide) for node in self._program.stateful if node.keys}
        return new_plan(self._program, taken, cut.tasks, self.routing)

    def _ran(self, epoch: int, plan: EpochPlan) -> list[Message]:
        self._work.write_plan(epoch, plan, TaskSettings(silent=epoch in self.lost))
        self._work.write_handover(epoch, self._hand_over(epoch, plan))
        plan, _ = self._work.read_plan(epoch)
        fragment = FragmentTask(self._work, epoch)
        messages: list[Message] = []
        for task in range(plan.tasks[0]):
            messages += _sent(partial(fragment.run, self._program, task))
        for stage, count in enumerate(plan.tasks[1:], start=1):
            assembly = AssemblyTask(self._work, epoch, stage, self.tiers)
            inboxes: list[list[Message]] = [[] for _ in range(count)]
            for message in messages:
                inboxes[message.part % count].append(message)
            messages = []
            for task, inbox in enumerate(inboxes):
                messages += _sent(partial(assembly.run, self._program, task, iter(inbox)))
        return messages

    def _hand_over(self, epoch: int, plan: EpochPlan) -> HandOver:
        replayed = self.lost[epoch].footings if epoch in self.lost else {}
        orders = self.footprints.orders(epoch, self.checkpoints.policy.footprints, plan.routing, replayed=replayed)
        return self._begin.handover(plan, self.checkpoints.tier, orders)

    def _commit(self, epoch: int, plan: EpochPlan, messages: list[Message]) -> None:
        """As the driver does."""
        record, facts = merge_commits(self._record, plan, messages)
        beside = tuple(str(place) for place in self.tiers.at("stable").beside)
        lost = self.lost.pop(epoch, None)
        if lost is None:
            footings, controls = self.footprints.committed(epoch, facts.footprints, facts.read, 0.01)
            record = replace(record, footings=footings or self._record.footings)
            base = self.checkpoints.base_of(epoch, record)
            record = replace(record, base=base, policy=str(self.checkpoints.policy), beside=beside)
            if record.base is None or not record.base.eventual:
                record = replace(record, footings=footings)
            self._commit_fresh(epoch, record, facts, messages, controls)
            self._keep(epoch, facts, messages)
        else:
            assert not [message for message in messages if isinstance(message.head, RowsHead)], "a replay is silent"
            record = made_again(lost, record, epoch, self.program.name)
            record = replace(record, base=self.checkpoints.base_of(epoch, record), beside=beside)
            self.meta.recommit(self.lease, epoch, record.encode())
        self._record = EpochRecord.decode(record.encode())
        self._begin = self._record
        self.committed = epoch
        self.planned.pop(epoch, None)
        if epoch + 1 in self.planned:
            self._hand_over(epoch + 1, self.planned[epoch + 1])
        pinned = self.checkpoints.pinned() | ({self.began} if self.lost else set())
        self.retention.add(epoch, record.files(), pinned)
        self.checkpoints.committed(epoch, record, Amounts(facts.read, facts.written, facts.left))
        assert self._links is not None
        self._links.committed(last=True)
        self.footprints.trim(left=self.checkpoints.policy.footprints is None and not record.footings)
        self._work.forget(epoch)
        self._check_intervals()

    def _commit_fresh(
        self, epoch: int, record: EpochRecord, facts: EpochFacts, messages: list[Message], controls: Any
    ) -> None:
        assert self._links is not None
        keep_from = min(self.retention.keep_from(epoch), self.checkpoints.keep_from)
        vector = vector_of(self.program, record.positions)
        lineage = {"by": self.program.name, "epoch": epoch, "vector": vector}
        entries = self._links.entries(self._record, record, messages, epoch, controls)
        with committing(self.meta, self.lease, epoch) as transaction:
            assert transaction.record(record, self.clock(), keep_from=keep_from)
            for entry in entries:
                self.footprints.placed(entry.stream.name, transaction.append(entry.stream, entry.entry), entry.controls)
            self._links.release(transaction, self.checkpoints.positions)
            if controls or record.footings:
                self.footprints.write(transaction, controls, lineage)
        self._links.written(entries, facts.read)

    def _keep(self, epoch: int, facts: EpochFacts, messages: list[Message]) -> None:
        story = self.story
        assert epoch not in story.read, "no epoch is committed twice"
        story.read[epoch] = facts.read
        story.outputs[epoch] = {}
        for name in self._rows:
            frames = rows_for(messages, name)
            if frames:
                story.outputs[epoch][name] = pl.concat(frames)

    def _end(self) -> None:
        record = self.checkpoints.end(self.committed, self._record)
        if record is not None:
            assert self._links is not None
            with committing(self.meta, self.lease, self.committed) as transaction:
                transaction.record_again(record, keep_from=self.committed)
                self._links.release(transaction, self.checkpoints.positions)
            self.retention.keep_only(self.committed)
            self.retention.sweep()
            self._record = record
        self.checkpoints.forget_volatile()
