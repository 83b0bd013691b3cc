"""Running a pipeline without Spark: the engine's own tasks, called one after the other in this process.

`run` does what the driver does (plan, stage after stage, merge the commits, hand over) and takes what Spark does (move
messages to the task of their part) upon itself. Heads and plans go through JSON, frames through Arrow, the program
through pickle, as they would between processes.
"""

from __future__ import annotations

import itertools
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import polars.selectors as cs

from holdfast.engine.epoch_input import new_plan, take_input
from holdfast.engine.fragment_runs import open_cuts
from holdfast.engine.stream_links import StreamLinks, bind_streams
from holdfast.epoch.facts import EpochFacts, merge_commits
from holdfast.epoch.messages import Message, commits_of, raise_errors, rows_for, unpack
from holdfast.epoch.plan import EpochPlan, TaskSettings
from holdfast.epoch.record import EpochRecord, new_record
from holdfast.epoch.transaction import Transaction
from holdfast.graph.pipeline import Pipeline
from holdfast.meta import Lease, MetaStore, StreamMeta
from holdfast.plan.cuts import cut_pipeline
from holdfast.plan.program import Program, compile_program
from holdfast.plan.watermarks import operator_watermark
from holdfast.pstream.description import Placement
from holdfast.state.levels import next_merge
from holdfast.state.manifest import Manifest, Piece
from holdfast.state.routing import Routing
from holdfast.store import Tiers
from holdfast.task.assembly_task import AssemblyTask
from holdfast.task.fragment_task import FragmentTask
from holdfast.task.merge_process import Order, carry_out
from holdfast.task.spark_task import sending_errors
from holdfast.task.work_directory import WorkDirectory, load_program


@dataclass(frozen=True, slots=True)
class Cut:
    """How a run is cut: rows per epoch and source, reading tasks, partitions of stateful operators."""

    rows: int = 1_000_000
    tasks: int = 1
    partitions: int = 1
    scales: tuple[int, ...] = ()
    """Partitions of keyed operators from epoch to epoch, over and over; `partitions` where there are none."""
    merges: tuple[int, ...] = ()
    """Merges beside the epochs: how many epochs each lasts, over and over; none where there are none."""


WHOLE = Cut()
"""Everything in one epoch, one task, one partition: the plainest run there is."""


@dataclass(slots=True)
class Outcome:
    """What a run left: rows by sink, counters, and the record after each epoch."""

    program: Program
    sinks: dict[str, pl.DataFrame]
    records: list[EpochRecord] = field(default_factory=list)
    facts: list[EpochFacts] = field(default_factory=list)
    late: Counter[str] = field(default_factory=Counter)
    plans: list[EpochPlan] = field(default_factory=list)

    @property
    def totals(self) -> dict[str, int]:
        return dict(self.records[-1].totals)

    @property
    def epochs(self) -> int:
        return len(self.facts)

    def rows(self, sink: str = "out") -> list[tuple[Any, ...]]:
        return plain_rows(self.sinks[sink])

    def watermark_after(self, operator: str, epoch: int) -> int | None:
        """The operator's watermark after an epoch; epoch 0 is before the first."""
        record = self.records[epoch]
        return operator_watermark(self.program, operator, record.greatest, record.done)


def plain_rows(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    """Rows as tuples; dates and times as the integers behind them."""
    return frame.with_columns(cs.temporal().to_physical()).rows()


def run(pipeline: Pipeline, cut: Cut = WHOLE, *, most_epochs: int = 10_000, now: float = 0.0) -> Outcome:
    """Run until the sources end. All epochs are planned at the time `now`."""
    with tempfile.TemporaryDirectory(prefix="hf-", dir=_fast_directory()) as directory:
        return _Run(pipeline, cut, Path(directory), now=now).run(most_epochs)


def rerun(pipeline: Pipeline, outcome: Outcome, base: int, *, after: int, sink: str = "out") -> pl.DataFrame:
    """What the epochs behind `after` put out when the run is begun again with empty state after epoch `base`, and
    those up to `after` are run for their state only."""
    with tempfile.TemporaryDirectory(prefix="hf-", dir=_fast_directory()) as directory:
        again = _Run(pipeline, WHOLE, Path(directory))
        again._record = again._begin = outcome.records[base].emptied()
        for epoch in range(base + 1, outcome.epochs + 1):
            again._run_epoch(epoch, outcome.plans[epoch - 1], TaskSettings(silent=epoch <= after))
        frames = again._rows[sink]
        schema = next(node.schema for node in again._program.sinks if node.name == sink)
        rows = pl.concat(frames) if frames else pl.DataFrame(schema=schema)
        return rows.sort(rows.columns)


def _fast_directory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def run_fragments(
    pipeline: Pipeline, cut: Cut, *more: Cut, placements: dict[str, Placement] | None = None, most_epochs: int = 10_000
) -> dict[str, Outcome]:
    """Run a pipeline that p-streams cut, one fragment after the other, each cut into epochs in its own way.

    The p-streams are real, and so are their entries in a meta store. Without `placements` they are where they would be
    put for real.
    """
    with tempfile.TemporaryDirectory(prefix="hf-", dir=_fast_directory()) as directory:
        root = Path(directory)
        meta = MetaStore(root, sync=False)
        try:
            if placements is not None:
                made = cut_pipeline(pipeline, placements)
                for plan in made.streams:
                    StreamMeta(meta).declare(plan.name, plan.description().encode())
            made = open_cuts(pipeline, meta)
            outcomes = {}
            cuts = itertools.cycle((cut, *more))
            for fragment, own in zip(made.fragments, cuts, strict=False):
                place = root / fragment.name
                outcomes[fragment.name] = _Run(fragment.pipeline, own, place, meta, root).run(most_epochs)
            for stream in made.streams:
                assert StreamMeta(meta).retained(stream.name) == (0, 0, 0), "what all readers have read is released"
                assert not list((root / "streams" / stream.name).glob("*"))
            return outcomes
        finally:
            meta.close()


class _Run:
    def __init__(
        self,
        pipeline: Pipeline,
        cut: Cut,
        root: Path,
        meta: MetaStore | None = None,
        store: Path | None = None,
        now: float = 0.0,
    ) -> None:
        self._cut = cut
        self._now = now
        self._meta = meta
        self._tiers = Tiers(root / "state", root / "volatile", sync=False)
        self._work = WorkDirectory(root / "work", uuid.uuid4().hex)
        program = compile_program(pipeline)
        self._links = None
        if meta is not None and store is not None:
            program = bind_streams(program, meta, store, False)
            self._links = StreamLinks(program, meta, store, False)
        self._work.write_program(program)
        self._program = load_program(self._work)
        self._given = program  # the sources of tasks have no handle on the meta store
        self._record = new_record(program, cut.partitions)
        self._positions: dict[str, Any] = dict(self._record.positions)
        self._done: dict[str, bool] = dict(self._record.done)
        self._rows: dict[str, list[pl.DataFrame]] = {node.name: [] for node in self._program.sinks}
        self._outcome = Outcome(self._program, {}, [self._record])
        self._begin = self._record
        self._merges = itertools.cycle(cut.merges or (0,))
        self._merging: tuple[int, Order, list[Piece]] | None = None

    def run(self, most_epochs: int) -> Outcome:
        epoch = 1
        while (plan := self._plan()) is not None:
            assert epoch <= most_epochs, "the sources do not end"
            self._run_epoch(epoch, plan)
            epoch += 1
        for node in self._program.sinks:
            frames = self._rows[node.name]
            self._outcome.sinks[node.name] = pl.concat(frames) if frames else pl.DataFrame(schema=node.schema)
        return self._outcome

    def _plan(self) -> EpochPlan | None:
        tasks, number = self._cut.tasks, len(self._outcome.plans)
        rows = self._cut.rows * len(self._given.sources)
        taken = take_input(self._given, self._positions, self._done, rows, tasks, number + 1)
        if taken is None:
            return None
        self._positions, self._done = taken.positions, taken.done
        routing = dict(self._record.routing)
        if self._cut.scales:
            wide = self._cut.scales[number % len(self._cut.scales)]
            routing |= {node.name: Routing.even(wide) for node in self._program.stateful if node.keys}
        return new_plan(self._program, taken, tasks, routing, self._now)

    def _run_epoch(self, epoch: int, plan: EpochPlan, settings: TaskSettings | None = None) -> None:
        self._work.write_plan(epoch, plan, settings)
        self._work.write_handover(epoch, self._begin.handover(plan))
        plan, _ = self._work.read_plan(epoch)
        fragment = FragmentTask(self._work, epoch)
        messages = []
        for task in range(plan.tasks[0]):
            messages += _sent(partial(fragment.run, self._program, task))
        for stage, count in enumerate(plan.tasks[1:], start=1):
            assembly = AssemblyTask(self._work, epoch, stage, self._tiers)
            inboxes: list[list[Message]] = [[] for _ in range(count)]
            for message in messages:
                inboxes[message.part % count].append(message)
            messages = []
            # Spark promises no order of arrival: give the tasks the worst there is.
            for task, inbox in reversed(list(enumerate(inboxes))):
                arrived = list(reversed(inbox))
                messages += _sent(partial(assembly.run, self._program, task, iter(arrived)))
        self._commit(epoch, plan, messages)

    def _commit(self, epoch: int, plan: EpochPlan, messages: list[Message]) -> None:
        record, facts = merge_commits(self._record, plan, messages)
        if self._links is not None and self._meta is not None:
            entries = self._links.entries(self._record, record, messages, epoch, {})
            with self._meta.writing() as connection:
                transaction = Transaction(self._meta, connection, Lease(self._program.name, "harness", 0), epoch)
                for entry in entries:
                    transaction.append(entry.stream, entry.entry)
                self._links.release(transaction, record.positions)
            self._links.written(entries, facts.read)
            self._links.committed(last=True)
        self._record = EpochRecord.decode(record.encode())
        self._outcome.records.append(self._record)
        self._outcome.facts.append(facts)
        self._outcome.plans.append(plan)
        for commit in commits_of(messages):
            self._outcome.late.update(commit.late)
        for name, frames in self._rows.items():
            frames += rows_for(messages, name)
        self._work.forget(epoch)
        self._check_intervals()
        self._begin = self._compacted(epoch) if self._cut.merges else self._record

    def _compacted(self, epoch: int) -> EpochRecord:
        """The record with a merge that has ended in it, and the next merge begun: as small as there are any."""
        begin, store = self._record, self._tiers.at("stable")
        if self._merging is not None and self._merging[0] <= epoch:
            _, order, pieces = self._merging
            self._merging = None
            begin = begin.spliced(order.target, order.merge.pieces, pieces) or begin
        found = next_merge(begin.state, most=2, small=1, target=800) if self._merging is None else None
        if found is not None:
            mark = operator_watermark(self._program, found[0].operator, begin.greatest, begin.done)
            order = Order(*found, mark, f"merged-{epoch}")
            order = Order.decode(order.encode())
            self._merging = (epoch + next(self._merges), order, carry_out(self._program, order, store))
        return begin

    def _check_intervals(self) -> None:
        """The state of each partition lies in the partition's own interval of key positions."""
        for name, parts in self._record.state.items():
            for part, manifest in enumerate(parts):
                assert isinstance(manifest, Manifest)
                assert manifest.interval == self._record.routing[name].interval(part)


def _sent(messages: Callable[[], Iterator[Message]]) -> list[Message]:
    """The messages of a task as the next one gets them; a typed error is raised, as the driver would."""
    received = list(unpack(sending_errors(messages)))
    raise_errors(received)
    return received
