"""Manual repairs, carried out at a start: epochs that were planned but never committed are planned again or skipped.

Committed epochs are never changed, and nothing of an epoch that was not committed was visible: its p-units and
prepared output are orphans of lost attempts. So the holder of the lease may change the plans after the last commit.

- *replan*: the plans are discarded; the next ones take the input as it is now.
- *skip of an epoch*: its plan keeps the positions and loses its slices. It runs as an epoch without rows.
- *skip of a file*: the plans that name the file are discarded, and an epoch without rows moves the source past it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.connect.base import Position, Source
from holdfast.engine.delivery import SinkDelivery
from holdfast.engine.epoch_input import batch_taken, new_plan, nothing_taken
from holdfast.engine.options import RunOptions
from holdfast.epoch.lookup_version import LookupVersion
from holdfast.epoch.plan import EpochPlan, Slices
from holdfast.epoch.record import EpochRecord, new_record
from holdfast.epoch.record_change import record_of
from holdfast.epoch.repair_messages import FileSpan, RepairOutcome, Replan, Skip, asked_repair
from holdfast.epoch.transaction import committing
from holdfast.errors import HoldfastError, InputError, OperatorError
from holdfast.meta import Lease, MetaStore, Repair, Repairs
from holdfast.plan.program import Program
from holdfast.state.routing import Routing

__all__ = ["Mending", "advise", "repair"]

_MOST_FILES = 20


def repair(
    program: Program, meta: MetaStore, lease: Lease, sinks: SinkDelivery, partitions: int, tasks: int, now: float
) -> None:
    """Do what people have asked for since the last start, in one transaction."""
    asked = Repairs(meta).waiting(program.name)
    if not asked:
        return
    commits, planned = meta.history(program.name)
    record = record_of(commits[0]) if commits else new_record(program, partitions)
    plans = {epoch_plan.epoch: EpochPlan.decode(epoch_plan.plan) for epoch_plan in planned}
    tables = EpochPlan.decode(commits[0].plan).tables if commits else {}
    mending = Mending(program, commits[0].epoch if commits else 0, record, dict(plans), tasks, sinks.delivered, tables)
    # What is passed over stays so when the rest is planned again, in whichever order people asked for it.
    outcomes = {repair.number: mending.outcome(asked_repair(repair.what)) for repair in sorted(asked, key=_turn)}
    mending.keep_routing()
    forgotten = [epoch for epoch, plan in plans.items() if mending.plans.get(epoch) is not plan]
    written = {epoch: plan for epoch, plan in mending.plans.items() if plans.get(epoch) is not plan}
    with committing(meta, lease) as transaction:
        for number, outcome in outcomes.items():
            transaction.repaired(number, outcome, now)
        transaction.forget_plans(forgotten)
        for epoch, plan in written.items():
            transaction.plan(plan, now, epoch)


def advise(
    error: HoldfastError,
    fragment: str,
    planned: Collection[int],
    positions: Mapping[str, Position],
    options: RunOptions,
) -> None:
    """Add to the cure the commands that get a fragment going which its input has stopped."""
    if not isinstance(error, InputError | OperatorError):
        return
    where = f"--store {shlex.quote(str(options.store))}" + (" --meta URL" if options.meta is not None else "")
    skip = f"`holdfast skip {fragment} {error.epoch} {where}`"
    if isinstance(error, OperatorError):
        if error.epoch in planned:
            error.cure += f". To give up the input of epoch {error.epoch} instead: {skip}"
        return
    ways = []
    if planned or any(position.get("file") for position in positions.values()):
        ways.append(f"`holdfast replan {fragment} {where}` if you have changed the input")
    if error.file is not None:
        ways.append(f"`holdfast skip {fragment} {shlex.quote(error.file)} {where}` to continue without the file")
    if error.epoch in planned:
        ways.append(f"{skip} to continue without the input of epoch {error.epoch}")
    if ways:
        error.cure = "\n    ".join([f"{error.cure}. Before you start again:", *ways])


@dataclass(slots=True)
class Mending:
    """The plans behind the last commit, as repairs change them one after the other. `delivered` names a sink that has
    the rows of an epoch already, though the epoch was not committed."""

    program: Program
    committed: int
    record: EpochRecord
    plans: dict[int, EpochPlan]
    tasks: int
    delivered: Callable[[int], str | None]
    tables: Mapping[str, LookupVersion] = field(default_factory=dict)
    """The versions of lookup tables in the plan of the last commit."""
    _routing: dict[str, Routing] = field(init=False)
    """Of the last plan there was: a change of parallelism that was answered holds, whatever becomes of its plan."""

    def __post_init__(self) -> None:
        self._routing = self._routing_now()

    def outcome(self, asked: Replan | Skip) -> RepairOutcome:
        """Carry a repair out; what came of it, or the `problem` for which nothing was done."""
        if isinstance(asked, Replan):
            return self._replan(asked.epochs)
        return self._skip_epoch(asked.epoch) if asked.epoch is not None else self._skip_file(asked.file or "")

    def _replan(self, epochs: Sequence[int]) -> RepairOutcome:
        passed = [epoch for epoch, plan in self.plans.items() if plan.passed]
        due = [epoch for epoch in epochs if epoch in self.plans and epoch not in passed]
        if epochs and not due and not passed:
            return RepairOutcome(f"{_named(epochs)} committed meanwhile")
        if due and passed and max(passed) > min(due):
            return RepairOutcome(f"epoch {max(passed)} is skipped, so those before it must stay as planned")
        if due and (problem := self._kept(min(due))):
            return problem
        dropped = self._forget_from(min(due)) if due else ()
        moved, problems = {}, []
        for name, source in self._sources():
            position = self._positions()[name]
            try:
                found = source.resumed(position)
            except HoldfastError as error:  # the run says so again when it comes to it
                problems.append(error.problem)
                continue
            if found != position:
                moved[name] = found
        self._move(moved)
        if problems:
            return RepairOutcome("; ".join(problems), dropped)
        return RepairOutcome(None, dropped, tuple(sorted(moved)))

    def _skip_epoch(self, epoch: int) -> RepairOutcome:
        if epoch not in self.plans:
            return RepairOutcome(f"epoch {epoch} was committed, or is no longer planned")
        if problem := self._kept(epoch):
            return problem
        plan = self.plans[epoch]
        bare: Slices = {name: ((),) * len(groups) for name, groups in plan.slices.items()}
        self.plans[epoch] = replace(plan, slices=bare, passed=True)
        return _passed_over(epoch, plan)

    def _skip_file(self, file: str) -> RepairOutcome:
        readers = [(source, name) for source, reader in self._sources() if (name := reader.named(file)) is not None]
        if len(readers) != 1:
            who = ", ".join(f"'{source}'" for source, _ in readers)
            return RepairOutcome(f"{who} may all read {file}: give its full path" if who else f"no source reads {file}")
        source, name = readers[0]
        named = [
            number for number, plan in self.plans.items() if name in {part["name"] for part in _parts(plan, source)}
        ]
        if named and (problem := self._kept(min(named))):
            return problem
        dropped = self._forget_from(min(named)) if named else ()
        position = self._positions()[source]
        found = dict(self._sources())[source].without(position, name)
        if found == position and not dropped:
            return RepairOutcome(f"{file} does not exist, or was already read to its end or skipped")
        self._move({source: found} if found != position else {})
        begun = position.get("file") is not None and found.get("file") is None
        return RepairOutcome(epochs=dropped, source=source, file=file, since=position["at"] if begun else None)

    def _kept(self, epoch: int) -> RepairOutcome | None:
        """Why an epoch must stay as it was planned, if so."""
        for later in sorted(number for number in self.plans if number >= epoch):
            sink = self.delivered(later)
            if sink is not None:
                return RepairOutcome(
                    f"sink '{sink}' already has the rows of epoch {later}, which was not committed:"
                    " it must run as planned"
                )
        return None

    def _forget_from(self, epoch: int) -> tuple[int, ...]:
        dropped = tuple(sorted(number for number in self.plans if number >= epoch))
        for number in dropped:
            del self.plans[number]
        return dropped

    def _tail(self) -> EpochPlan | None:
        return self.plans[max(self.plans)] if self.plans else None

    def _positions(self) -> Mapping[str, Position]:
        """Where the sources stand behind all that is planned."""
        tail = self._tail()
        return self.record.positions if tail is None else tail.positions

    def _sources(self) -> list[tuple[str, Source]]:
        return [(node.name, node.source) for node in self.program.sources if isinstance(node.source, Source)]

    def _move(self, moved: Mapping[str, Position]) -> None:
        """Plan an epoch without rows, behind which sources stand elsewhere."""
        if moved:
            self._plan_bare(moved)

    def keep_routing(self) -> None:
        """If the plans that changed the parallelism were forgotten, an epoch without rows does it."""
        if self._routing != self._routing_now():
            self._plan_bare({})

    def _plan_bare(self, moved: Mapping[str, Position]) -> None:
        if (source := self.program.spark_input) is not None:
            # Its epochs are Spark's batches: the next one keeps its rows, and only gets the routing.
            epoch = max(self.plans, default=self.committed) + 1
            taken = batch_taken(source.name, epoch - 1)
            self.plans[epoch] = new_plan(self.program, taken, 1, self._routing, tables=self._tables())
            return
        tail = self._tail()
        done = self.record.done if tail is None else tail.done
        taken = nothing_taken(self.program, {**self._positions(), **moved}, done, self.tasks)
        epoch = max(self.plans, default=self.committed) + 1
        plan = new_plan(self.program, taken, self.tasks, self._routing, tables=self._tables())
        self.plans[epoch] = replace(plan, passed=True)

    def _tables(self) -> Mapping[str, LookupVersion]:
        tail = self._tail()
        return self.tables if tail is None else tail.tables

    def _routing_now(self) -> dict[str, Routing]:
        tail = self._tail()
        return dict(self.record.routing if tail is None else tail.routing)


def _parts(plan: EpochPlan, source: str) -> Iterator[Mapping[str, Any]]:
    """The parts of files that a plan has of a source, if it reads files."""
    for piece in plan.slices_of(source):
        yield from (part for part in piece.where.get("parts", ()) if "name" in part)


def _passed_over(epoch: int, plan: EpochPlan) -> RepairOutcome:
    """What the epoch would have read: about how many rows, and of which files."""
    rows = {source: plan.rows_of(source) for source in plan.slices}
    spans: dict[tuple[str, str], tuple[int, int]] = {}
    for source in plan.slices:
        for part in _parts(plan, source):
            low, high = spans.get((source, part["name"]), (part["start"], part["stop"]))
            spans[source, part["name"]] = (min(low, part["start"]), max(high, part["stop"]))
    files = tuple(FileSpan(*which, *span) for which, span in spans.items())
    more = max(0, len(files) - _MOST_FILES)
    return RepairOutcome(epoch=epoch, rows=rows, files=files[:_MOST_FILES], more_files=more)


def _turn(asked: Repair) -> tuple[int, int]:
    """Epochs are skipped first, then the others are planned again, and files are skipped behind all that is planned."""
    what = asked_repair(asked.what)
    return 1 if isinstance(what, Replan) else 0 if what.epoch is not None else 2, asked.number


def _named(epochs: Sequence[int]) -> str:
    return f"epoch {epochs[0]} was" if len(epochs) == 1 else f"epochs {epochs[0]} to {epochs[-1]} were"
