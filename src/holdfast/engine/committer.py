"""Commits: what a finished epoch comes to, in every role.

A leader commits an epoch with all that belongs to it in one transaction, and lets it be seen. A secondary that shares
does so unless the primary was first. Whoever was not first goes on with what was committed, if the outputs are equal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from holdfast.connect.base import Position
from holdfast.durability.retention import Retention
from holdfast.engine.authority import Authority
from holdfast.engine.delivery import SinkDelivery
from holdfast.engine.events import EpochCommitted, LookedUp
from holdfast.engine.instructions import How
from holdfast.engine.inventory import check_written, sync_places
from holdfast.engine.machine import Machine
from holdfast.engine.observer import Observer
from holdfast.engine.planner import Planner, left_behind
from holdfast.engine.progress import FragmentProgress
from holdfast.engine.roles import Role
from holdfast.engine.stream_links import StreamLinks, lineage_of, vector_of
from holdfast.engine.upkeep import Controls, Upkeep
from holdfast.epoch.deadline import Deadlines
from holdfast.epoch.digest import difference
from holdfast.epoch.execution import Execution, Executor
from holdfast.epoch.facts import EpochFacts, merge_commits
from holdfast.epoch.plan import EpochPlan
from holdfast.epoch.record import Base, EpochRecord, made_again
from holdfast.epoch.report import EpochReport, make_report
from holdfast.epoch.transaction import committing
from holdfast.errors import EpochFailedError, LeaseLostError
from holdfast.graph.policies import tier_of
from holdfast.meta import Commit, MetaStore
from holdfast.plan.program import Program
from holdfast.store import Private, Tier, Tiers, remove_tree

__all__ = ["Committer"]

_KEPT_EPOCHS = 3
_SECONDS_TO_FINISH = 2.0
_HERE = Private("in the memory of this host")
_IN_VAIN = Private("made by this replica for an epoch whose record names what another has made")


@dataclass(slots=True)
class Committer:
    program: Program
    meta: MetaStore
    tiers: Tiers
    authority: Authority
    machine: Machine
    executor: Executor
    planner: Planner
    delivery: SinkDelivery
    streams: StreamLinks
    upkeep: Upkeep
    observer: Observer
    deadlines: Deadlines
    clock: Callable[[], float]
    progress: FragmentProgress
    fresh: int = 0
    """Epochs that were committed here, without those that were made again."""
    _own: Retention = field(init=False)
    """The state in this host's memory of the last epochs, while it does not lead."""
    _lasting: set[Path] = field(default_factory=set)
    """Directories whose names are durable, whoever has made them."""

    def __post_init__(self) -> None:
        self._own = Retention(self.tiers.at("volatile").alone, _KEPT_EPOCHS, _HERE)

    def commit(self, epoch: int, how: How) -> bool:
        """Commit an epoch that has finished. False if nothing was written, because another host was first or this one
        may not commit now."""
        execution = self.executor.execution(epoch)
        match how:
            case How.OWN:
                self._lead(epoch, execution)
            case How.AGAIN:
                self._make_again(epoch, execution)
            case How.ADOPTED:
                self._adopt(epoch, execution, self._winner(epoch))
            case How.SHARED:
                return self._share(epoch, execution)
        return True

    def look_up(self, epoch: int) -> LookedUp:
        """What the store has of an epoch that was run here. Raises if that is not the epoch that was run."""
        found = self.meta.look_up(self.program.name, epoch)
        if found is None:
            raise left_behind(self.program.name, epoch)
        if EpochPlan.decode(found.plan).generation != self.executor.execution(epoch).plan.generation:
            raise LeaseLostError(
                f"epoch {epoch} of '{self.program.name}' was planned again after this replica began it",
                cure="nothing to do: it begins again from the last commit",
                epoch=epoch,
            )
        return LookedUp(epoch, isinstance(found, Commit))

    def _winner(self, epoch: int) -> EpochRecord:
        """The record that was committed."""
        found = self.meta.look_up(self.program.name, epoch)
        if not isinstance(found, Commit):
            raise left_behind(self.program.name, epoch)
        return EpochRecord.decode(found.record)

    # as the leader

    def _lead(self, epoch: int, execution: Execution) -> None:
        """Commit an epoch and let it be seen; if a secondary was first, go on with what it has committed."""
        self._check_written(epoch, execution)
        before, busy = self.progress.record, execution.busy(self.machine.overlap)
        record, facts = merge_commits(before, execution.plan, execution.outcome)
        record, controls = self.upkeep.completed(epoch, record, before, facts, busy)
        vector = vector_of(self.program, record.positions)
        delivered = self.delivery.before_commit(epoch, execution.outcome, vector)
        keep_from, durable = self.upkeep.keep_from(epoch), self.upkeep.checkpoints.positions
        first = self._commit(epoch, before, record, execution, facts, durable, controls, keep_from=keep_from)
        kept = record if first else self._outrun(epoch, record)
        self._go_on(epoch, kept)
        if first:
            self.delivery.publication.publish()
            self.delivery.after_commit(epoch, delivered)
        self._led(epoch, kept, facts, execution, busy, set() if first else self._base_ahead(epoch))
        self._report(epoch, kept, facts, execution, first=first)

    def _commit(
        self,
        epoch: int,
        before: EpochRecord,
        record: EpochRecord,
        execution: Execution,
        facts: EpochFacts,
        durable: Mapping[str, Position],
        controls: Controls,
        *,
        keep_from: int = 0,
        inherit: Callable[[int, EpochRecord], EpochRecord] | None = None,
    ) -> bool:
        """All that is written with an epoch, in one transaction. What sources have given before the positions `durable`
        is not needed again. False if another was first: then nothing is written."""
        self.upkeep.compacting.committing()
        entries = self.streams.entries(before, record, execution.outcome, epoch, controls)
        lineage = lineage_of(self.program, record, epoch)
        with committing(self.meta, self.authority.lease, epoch) as transaction:
            if not transaction.record(record, self.clock(), keep_from=keep_from, inherit=inherit):
                return False
            for entry in entries:
                made = transaction.append(entry.stream, entry.entry)
                self.upkeep.footprints.placed(entry.stream.name, made, entry.controls)
            self.streams.release(transaction, durable)
            if controls or record.footings:
                self.upkeep.footprints.write(transaction, controls, lineage)
            self.delivery.publication.gather(transaction, record.receipts)
        self.streams.written(entries, facts.read)
        return True

    def _make_again(self, epoch: int, execution: Execution) -> None:
        """The epoch was committed before and its state was lost: its record names the state that was made now."""
        self._check_written(epoch, execution)
        busy = execution.busy(self.machine.overlap)
        made, facts = merge_commits(self.progress.record, execution.plan, execution.outcome)
        record = self.upkeep.based(epoch, made_again(self.progress.lost[epoch], made, epoch, self.program.name))
        self.upkeep.compacting.committing()
        self.meta.recommit(self.authority.lease, epoch, record.encode())
        self._go_on(epoch, record)
        self._led(epoch, record, facts, execution, busy)

    def _led(
        self,
        epoch: int,
        record: EpochRecord,
        facts: EpochFacts,
        execution: Execution,
        busy: float,
        pinned: Collection[int] = (),
    ) -> None:
        if self.progress.lost:  # until all that was lost is made again, another start begins where this one did
            pinned = {self.machine.began, *pinned}
        self.upkeep.committed(epoch, record, facts, busy, pinned)
        self.streams.committed()
        self.executor.forget(epoch)
        self.planner.measured(facts.read, busy, execution.reading())

    def _outrun(self, epoch: int, record: EpochRecord) -> EpochRecord:
        """The secondary was first. Checkpoints are the primary's: what the store has gets its base, and the state that
        it copies, where that of the winner lies in the memory of another host."""
        winner = self._winner(epoch)
        kept = replace(
            self._reconciled(epoch, winner, record), base=record.base, policy=record.policy, reason=record.reason,
            beside=record.beside,
        )  # fmt: skip
        if (kept.base, kept.state) != (winner.base, winner.state):
            self.meta.recommit(self.authority.lease, epoch, kept.encode())
        self.delivery.publication.publish()
        return kept

    def _base_ahead(self, epoch: int) -> set[int]:
        """Where the last commit would begin again, if the secondary is ahead: it has that from the commits before it,
        as they were then, and nothing of it may go until they are behind."""
        last = self.meta.last_commit(self.program.name)
        base = None if last is None or last.epoch <= epoch else EpochRecord.decode(last.record).base
        return set() if base is None else {base.epoch}

    # as a secondary

    def _adopt(self, epoch: int, execution: Execution, winner: EpochRecord) -> None:
        """The other one has committed the epoch that was run here, too."""
        mine, facts = merge_commits(self.progress.record, execution.plan, execution.outcome)
        behind = epoch in self.progress.lost  # it was committed before it was begun here
        self._follow(epoch, self._reconciled(epoch, winner, mine, silent=behind), behind=behind)
        if self.machine.seat.shared:
            self.delivery.publication.publish()
        self.planner.measured(facts.read, execution.busy(self.machine.overlap))
        if not behind:
            self.observer.epoch_processed(self._reported(epoch, mine, facts, execution))

    def _share(self, epoch: int, execution: Execution) -> bool:
        """Commit as the secondary, unless the primary is first. What lies in memory here is no base for anybody."""
        before = self.progress.record
        self._check_written(epoch, execution)
        record, facts = merge_commits(before, execution.plan, execution.outcome)
        stable = self._all_stable(record)
        if tier_of(before.policy) == "stable" and not stable:
            return False
        durable = record.positions if stable else before.positions
        if before.base is not None:
            durable = self._positions_at(before.base.epoch)
        with self._unless_fenced():
            self.meta.confirm(self.authority.lease)  # before users' sinks are called, for an epoch that counts
            delivered = self.delivery.before_commit(epoch, execution.outcome, vector_of(self.program, record.positions))
            inherit = partial(_inheriting, record, stable=stable)
            if self._commit(epoch, before, record, execution, facts, durable, {}, inherit=inherit):
                self.delivery.publication.publish()
                self.delivery.after_commit(epoch, delivered)
                self._follow(epoch, replace(self._winner(epoch), state=record.state))
                self._report(epoch, record, facts, execution, first=True)
                return True
        return False

    def _follow(self, epoch: int, record: EpochRecord, *, behind: bool = False) -> None:
        self.authority.ready(None if behind else self.machine.seat.role)
        self._own.add(epoch, record.files())
        self._go_on(epoch, record)
        self.executor.forget(epoch)

    def _positions_at(self, epoch: int) -> Mapping[str, Position]:
        """Where the sources stood after an epoch: what is behind may have to be replayed."""
        if epoch == 0:
            return {node.name: dict(node.source.start()) for node in self.program.sources}  # type: ignore[union-attr]
        found = self.meta.look_up(self.program.name, epoch)
        if not isinstance(found, Commit):
            raise left_behind(self.program.name, epoch)
        return EpochRecord.decode(found.record).positions

    @contextlib.contextmanager
    def _unless_fenced(self) -> Iterator[None]:
        """The right to commit may go while it is used: what is left of the seat is seen in the next step."""
        try:
            yield
        except LeaseLostError:
            if self.machine.leading:
                raise
            self.authority.renew()

    def _reconciled(self, epoch: int, winner: EpochRecord, mine: EpochRecord, *, silent: bool = False) -> EpochRecord:
        """What to go on with, where `winner` was committed and `mine` was made here; what of that is in vain goes. An
        epoch that was left out has no output to compare with, and its state is not what is made by running it."""
        begin, before = self.progress.begin, self.progress.record
        left_out = winner.gap is not None
        what = None if silent or left_out else difference(winner.digest, mine.digest)
        if what is not None:
            self.authority.differs(epoch, what)
        if self._is_stable(winner):
            kept = winner
        elif what is None and not left_out:
            kept = made_again(winner, mine, epoch, self.program.name)
        else:
            raise EpochFailedError(
                f"this replica of '{self.program.name}' cannot go on: {what or 'the epoch was left out'}",
                cure="it begins again from the last checkpoint",
                epoch=epoch,
            )
        if kept is winner:
            # Merges that only this one began from are named by nobody now.
            merged = begin.files() - before.files()
            made = (mine.files() - begin.files() | merged) - winner.files()
            self.tiers.at("stable").remove(made, _IN_VAIN)
        if not silent and (mine.receipts, mine.streamed) != (winner.receipts, winner.streamed):
            self.delivery.discard(epoch, mine)
        return kept

    def _is_stable(self, record: EpochRecord) -> bool:
        """Whether others find the state of a record."""
        if record.base is None and tier_of(record.policy) == "stable":
            return True
        return self._all_stable(record)

    def _all_stable(self, record: EpochRecord) -> bool:
        return all(self.tiers.stable_only.path(name).exists() for name in record.files())

    # from epoch to epoch

    def _check_written(self, epoch: int, execution: Execution) -> None:
        state, known = self.tiers.at("stable"), self.progress.begin.files()
        check_written(self.program, epoch, execution.outcome, state, known, self.deadlines.threads)
        if self.machine.seat.replica and state.sync:
            sync_places(self.program, execution.outcome, state, known, self._lasting)

    def _go_on(self, epoch: int, record: EpochRecord) -> None:
        """The next epoch begins from this record; merges are begun by who commits."""
        commits = self.machine.leading or self.machine.seat.role is Role.SHARE
        begin = self.upkeep.compacting.between_epochs(record) if commits else record
        self.progress.committed(epoch, record, begin)
        self.machine.on(EpochCommitted(epoch))
        self.hand_over(epoch + 1)

    def hand_over(self, epoch: int) -> None:
        """Give the tasks of an epoch the state to begin with, if the epoch is planned and the one before committed."""
        plan = self.progress.plans.get(epoch)
        if plan is None or epoch != self.machine.committed + 1:
            return
        replayed = self.progress.lost[epoch].footings if epoch in self.progress.lost else {}
        rules = self.upkeep.checkpoints.policy.footprints
        orders = self.upkeep.footprints.orders(epoch, rules, plan.routing, replayed=replayed)
        self.executor.hand_over(epoch, self.progress.begin.handover(plan, self._tier(), orders))

    def _tier(self) -> Tier:
        if self.machine.leading:
            return self.upkeep.checkpoints.tier
        return tier_of(self.progress.record.policy) if self.machine.seat.role is Role.SHARE else "volatile"

    def _report(self, epoch: int, record: EpochRecord, facts: EpochFacts, execution: Execution, *, first: bool) -> None:
        """Of an epoch that was run here; who was `first` has committed it."""
        report = self._reported(epoch, record, facts, execution)
        if self.machine.seat.replica:
            self.observer.epoch_processed(report)
        if first:
            self.fresh += 1
            self.observer.epoch_committed(report)
        if self.machine.leading:
            self.planner.notices.committed(self.authority.lease, epoch, facts)

    def _reported(self, epoch: int, record: EpochRecord, facts: EpochFacts, execution: Execution) -> EpochReport:
        times = {"started": execution.started, "ended": execution.ended, "committed": self.clock()}
        return make_report(self.program, epoch, record, facts, self.deadlines, **times)

    # while nothing comes, and the end

    def publish_due(self) -> None:
        """Let readers see what was gathered for long enough."""
        self.delivery.publication.publish_due(self.authority.lease)

    def publish_all(self) -> None:
        if self.machine.leading:
            self.delivery.publication.publish_all(self.authority.lease)

    def idle(self) -> None:
        """While nothing comes in, the last epoch is made durable when that is due."""
        record = self.upkeep.checkpoints.idle(self.machine.committed, self.progress.record)
        if record is not None:
            self._save(record)

    def finish(self) -> None:
        """A clean end: all state goes to the stable tier, so that nothing has to be replayed at the next start."""
        self.deadlines.rest()
        self.publish_all()
        self.upkeep.end(self.machine.committed, self.progress.record, self._save)
        self.streams.committed(last=True)

    def _save(self, record: EpochRecord, forget: bool = False) -> None:
        """Write the last record again, whose state has become durable, and let go what was kept to replay it; with
        `forget` also the epochs before it, whose state was not made durable."""
        epoch = self.machine.committed
        with committing(self.meta, self.authority.lease, epoch) as transaction:
            transaction.record_again(record, keep_from=epoch if forget else 0)
            self.streams.release(transaction, self.upkeep.checkpoints.positions)
        self.progress.record = record

    def discard(self) -> None:
        """Less is wanted of this replica. What is in flight is committed by another; of what was prepared for it here
        nobody knows."""
        self.authority.ready(None)
        for epoch, execution in sorted(self.executor.finished_within(_SECONDS_TO_FINISH).items()):
            mine, _ = merge_commits(self.progress.record, execution.plan, execution.outcome)
            made = mine.files() - self.progress.begin.files() - self.progress.record.files()
            self.tiers.at("stable").remove(made, _IN_VAIN)
            self.delivery.discard(epoch, mine)
        remove_tree(self.tiers.volatile, _HERE)


def _inheriting(record: EpochRecord, epoch: int, before: EpochRecord, *, stable: bool) -> EpochRecord:
    """Of a secondary's commit. Checkpoints are the primary's: what lies in memory is made again from them."""
    base = Base(epoch) if before.base is None and not stable else before.base
    return replace(record, base=base, policy=before.policy, reason=before.reason, beside=before.beside)
