"""Commits: what happens to a finished epoch, in every role.

A leader commits an epoch with everything that belongs to it in one transaction, then publishes it. A secondary that
shares does so unless the primary was first. Whoever was not first adopts the committed epoch, if outputs are equal.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from holdfast.connect.base import Position
from holdfast.durability.retention import Retention
from holdfast.engine.chores import Chores
from holdfast.engine.commit_part import CommitPart, LedEpoch, part_of
from holdfast.engine.delivery import SinkDelivery
from holdfast.engine.events import EpochCommitted, LookedUp
from holdfast.engine.instructions import How
from holdfast.engine.inventory import check_written, sync_places
from holdfast.engine.planner import Planner, left_behind
from holdfast.engine.replica_history import all_stable, base_ahead, cannot_go_on, check_history, inherited, is_stable
from holdfast.engine.run_context import RunContext
from holdfast.engine.shadow_following import copy_state, look_at
from holdfast.engine.stream_links import lineage_of, vector_of
from holdfast.engine.upkeep import Controls, Upkeep
from holdfast.epoch.digest import difference
from holdfast.epoch.epoch_times import EpochStopwatch
from holdfast.epoch.execution import Execution
from holdfast.epoch.facts import EpochFacts, merge_commits
from holdfast.epoch.plan import EpochPlan
from holdfast.epoch.record import EpochRecord, made_again, start_positions
from holdfast.epoch.record_change import RecordChain, record_of
from holdfast.epoch.report import EpochReport, make_report
from holdfast.epoch.transaction import committing
from holdfast.errors import LeaseLostError
from holdfast.graph.policies import tier_of
from holdfast.meta import Commit
from holdfast.store import Private, of_one_epoch, remove_tree

__all__ = ["Committer"]

_KEPT_EPOCHS = 3
_SECONDS_TO_FINISH = 2.0
_HERE = Private("in the memory of this host")
_SUPERSEDED = Private("written by this replica for an epoch whose record names what another one wrote")


@dataclass(slots=True)
class Committer:
    run: RunContext
    planner: Planner
    delivery: SinkDelivery
    upkeep: Upkeep
    fresh: int = 0
    """Epochs that were committed here, without those that were made again."""
    chores: Chores = field(default_factory=Chores)
    _stopwatch: EpochStopwatch = field(default_factory=EpochStopwatch)
    _own: Retention = field(init=False)
    """The state in this host's memory of the last epochs, while it does not lead."""
    _chain: RecordChain = field(default_factory=RecordChain)
    _lasting: set[Path] = field(default_factory=set)
    """Directories whose names are durable, whoever has made them."""

    def __post_init__(self) -> None:
        self._own = Retention(self.run.tiers.at("volatile").alone, _KEPT_EPOCHS, _HERE)

    @property
    def _part(self) -> CommitPart:
        """The part that this run has in commits now."""
        return part_of(self.run.machine.seat, leading=self.run.machine.leading)

    def commit(self, epoch: int, how: How) -> bool:
        """Commit an epoch that has finished. False if nothing was written, because another host was first or this one
        may not commit now."""
        self.chores.do()
        execution = self.run.executor.execution(epoch)
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
        """What the store has of an epoch that was run here. Raises if it is not the epoch that was run."""
        found = self.run.meta.look_up(self.run.program.name, epoch)
        if found is None:
            raise left_behind(self.run.program.name, epoch)
        if EpochPlan.decode(found.plan).generation != self.run.executor.execution(epoch).plan.generation:
            raise LeaseLostError(
                f"epoch {epoch} of '{self.run.program.name}' was planned again after this replica began it",
                cure="nothing to do: it restarts from the last commit",
                epoch=epoch,
            )
        return LookedUp(epoch, isinstance(found, Commit))

    def _winner(self, epoch: int) -> EpochRecord:
        """The record that was committed."""
        found = self.run.meta.look_up(self.run.program.name, epoch)
        if not isinstance(found, Commit):
            raise left_behind(self.run.program.name, epoch)
        return record_of(found)

    # as the leader

    def _lead(self, epoch: int, execution: Execution) -> None:
        """Commit an epoch and publish it; if a secondary was first, continue with what it has committed."""
        self._check_written(epoch, execution)
        before, busy = self.run.progress.record, execution.busy(self.run.machine.overlap)
        record, facts = merge_commits(self.run.progress.begin, execution.plan, execution.outcome)
        record, controls = self.upkeep.completed(epoch, record, before, facts, busy)
        vector = vector_of(self.run.program, record.positions)
        delivered = self.delivery.before_commit(epoch, execution.outcome, vector)
        forget, durable = self.upkeep.to_forget(epoch), self.upkeep.checkpoints.positions
        record = replace(record, times=self._stopwatch.ended(execution))
        first = self._commit(epoch, before, record, execution, facts, durable, controls, forget=forget)
        execution.committed = self.run.clock()
        self._stopwatch.committed(execution.committed)
        kept = record if first else self._outrun(epoch, record)
        self._go_on(epoch, kept)
        if first:
            self.delivery.publication.publish(alone=self._part.alone)
            self.delivery.after_commit(epoch, delivered)
        self._stopwatch.published(self.run.clock())
        self.planner.measured(facts.read, busy, execution.reading())
        self.chores.put_off(partial(self._clean_up, LedEpoch(epoch, kept, facts, execution, busy, first)))

    def _clean_up(self, led: LedEpoch) -> None:
        """What can wait until the next epoch runs. Writers wait for room: that is first."""
        self.run.streams.committed()
        self._led(led.epoch, led.record, led.facts, led.busy, set() if led.first else self._base_ahead(led.epoch))
        self._report(led.epoch, led.record, led.facts, led.execution, first=led.first)

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
        forget: Collection[int] = (),
        stable: bool = True,
    ) -> bool:
        """All that is written with an epoch, in one transaction; False if another was first, and nothing is written.
        What sources gave before `durable` is not needed again. `stable` says whether the state of a secondary is."""
        self.upkeep.merges.committing()
        entries = self.run.streams.entries(before, record, execution.outcome, epoch, controls)
        lineage = lineage_of(self.run.program, record, epoch)
        with committing(self.run.meta, self.run.authority.lease, epoch) as transaction:
            if not self._part.leads and (last := transaction.last_record()) is not None:
                record = inherited(self.run.program.name, epoch, record, *last, stable=stable)
            chain = self._chain if self._part.alone else RecordChain()  # a follower reads every record
            if (text := transaction.record(record, now := self.run.clock(), chain=chain, forget=forget)) is None:
                return False
            placed = self.run.streams.append(transaction, entries)
            self.run.streams.release(transaction, durable)
            if controls or record.footings:
                placed = self.upkeep.footprints.write(transaction, placed, controls, lineage)
            self.delivery.publication.gather(transaction, record.receipts)
        chain.wrote(epoch, record, text, now)
        if controls or record.footings:
            self.upkeep.footprints.wrote(placed)
        self.run.streams.written(entries, facts.read)
        self.upkeep.retained.forget(forget)
        return True

    def _make_again(self, epoch: int, execution: Execution) -> None:
        """The epoch was committed before it was run here. If its state was lost, or lies in the memory of another host,
        its record names what was made now; else it stays, for what was committed since may begin again from it."""
        self._check_written(epoch, execution)
        busy, winner = execution.busy(self.run.machine.overlap), self.run.progress.lost[epoch]
        made, facts = merge_commits(self.run.progress.begin, execution.plan, execution.outcome)
        name, ahead = self.run.program.name, epoch in self.run.progress.ahead
        kept = self._reconciled(epoch, winner, made, silent=True) if ahead else made_again(winner, made, epoch, name)
        record = self.upkeep.based(epoch, kept)
        self.upkeep.merges.committing()
        self._record_again(epoch, record)
        self._go_on(epoch, record)
        self._led(epoch, record, facts, busy, self._base_ahead(epoch))
        self.run.streams.committed()
        self.planner.measured(facts.read, busy, execution.reading())

    def _record_again(self, epoch: int, record: EpochRecord) -> None:
        self._chain.end()
        with committing(self.run.meta, self.run.authority.lease, epoch) as transaction:
            transaction.record_again(record)

    def _led(
        self, epoch: int, record: EpochRecord, facts: EpochFacts, busy: float, pinned: Collection[int] = ()
    ) -> None:
        if self.run.progress.lost:  # until all that was lost is made again, another start begins where this one did
            pinned = {self.run.machine.began, *pinned}
        whole = self._chain.whole in (None, epoch)
        self.upkeep.committed(epoch, record, facts, busy, pinned, whole=whole)
        self.run.executor.forget(epoch)

    def _outrun(self, epoch: int, record: EpochRecord) -> EpochRecord:
        """The secondary was first. Checkpoints are the primary's: what the store has gets its base, and the state that
        it copies, where that of the winner is in the memory of another host."""
        winner = self._winner(epoch)
        kept = replace(
            self._reconciled(epoch, winner, record), base=record.base, policy=record.policy, reason=record.reason,
            other_places=record.other_places,
        )  # fmt: skip
        if (kept.base, kept.state) != (winner.base, winner.state):
            self._record_again(epoch, kept)
        self.delivery.publication.publish()
        return kept

    def _base_ahead(self, epoch: int) -> set[int]:
        return set() if self._part.alone else base_ahead(self.run.meta, self.run.program.name, epoch)

    # as a secondary

    def _adopt(self, epoch: int, execution: Execution, winner: EpochRecord) -> None:
        """The other one has committed the epoch that was run here, too."""
        mine, facts = merge_commits(self.run.progress.begin, execution.plan, execution.outcome)
        behind = epoch in self.run.progress.lost  # it was committed before it was begun here
        if self.run.shadow is None:
            kept = self._reconciled(epoch, winner, mine, silent=behind)
        else:
            kept = look_at(self.run, self.delivery, epoch, winner, mine, silent=behind)
        self._follow(epoch, kept, behind=behind)
        if self._part.publishes_adopted:
            self.delivery.publication.publish()
        self.planner.measured(facts.read, execution.busy(self.run.machine.overlap))
        if not behind:
            self.run.observer.epoch_processed(self._reported(epoch, mine, facts, execution))

    def keep_own(self, epoch: int, record: EpochRecord) -> None:
        """The state that a shadow begins with becomes its own."""
        copy_state(self.run.tiers, record)
        self._own.add(epoch, record.files())

    def _share(self, epoch: int, execution: Execution) -> bool:
        """Commit as the secondary, unless the primary is first. What is in memory here cannot be the base of any other
        run."""
        before = self.run.progress.record
        self._check_written(epoch, execution)
        record, facts = merge_commits(self.run.progress.begin, execution.plan, execution.outcome)
        stable = all_stable(self.run.tiers, record)
        if tier_of(before.policy) == "stable" and not stable:
            return False
        durable = record.positions if stable else before.positions
        if before.base is not None:
            base = before.base.epoch  # where the sources stood then: what is behind may have to be replayed
            durable = self._winner(base).positions if base else start_positions(self.run.program)
        try:
            self.run.meta.confirm(self.run.authority.lease)  # before users' sinks are called, for an epoch that counts
            if isinstance(found := self.run.meta.look_up(self.run.program.name, epoch - 1), Commit):
                check_history(self.run.program.name, epoch, record_of(found), before)
            vector = vector_of(self.run.program, record.positions)
            delivered = self.delivery.before_commit(epoch, execution.outcome, vector)
            if self._commit(epoch, before, record, execution, facts, durable, {}, stable=stable):
                self.delivery.publication.publish()
                self.delivery.after_commit(epoch, delivered)
                self._follow(epoch, replace(self._winner(epoch), state=record.state))
                self._report(epoch, record, facts, execution, first=True)
                return True
        except LeaseLostError:  # the right may go while it is used: what is left of the seat is seen in the next step
            self.run.authority.renew()
        return False

    def _follow(self, epoch: int, record: EpochRecord, *, behind: bool = False) -> None:
        self.run.authority.ready(None if behind else self.run.machine.seat.role)
        self._own.add(epoch, record.files())
        self._go_on(epoch, record)
        self.run.executor.forget(epoch)

    def _reconciled(self, epoch: int, winner: EpochRecord, mine: EpochRecord, *, silent: bool = False) -> EpochRecord:
        """What to continue with, where `winner` was committed and `mine` was made here; what nothing refers to is
        removed. An epoch that was left out has no output to compare, and running it makes a different state."""
        begin, before = self.run.progress.begin, self.run.progress.record
        left_out = winner.gap is not None
        if not left_out:
            check_history(self.run.program.name, epoch, winner, mine)
        what = None if silent or left_out else difference(winner.digest, mine.digest)
        if what is not None:
            self.run.authority.differs(epoch, what)
        if is_stable(self.run.tiers, winner):
            kept = winner
        elif what is None and not left_out:
            kept = made_again(winner, mine, epoch, self.run.program.name)
        else:
            raise cannot_go_on(self.run.program.name, epoch, what or "the epoch was left out")
        if kept is winner:
            # Nothing refers any longer to merges that only this one began from.
            merged = begin.files() - before.files()
            made = (mine.files() - begin.files() | merged) - winner.files()
            self.run.tiers.at("stable").remove(of_one_epoch(made), _SUPERSEDED)
        if not silent and (mine.receipts, mine.streamed) != (winner.receipts, winner.streamed):
            self.delivery.discard(epoch, mine)
        return kept

    # from epoch to epoch

    def _check_written(self, epoch: int, execution: Execution) -> None:
        state, known = self.run.tiers.at("stable"), self.run.progress.begin.files()
        check_written(self.run.program, epoch, execution.outcome, state, known, self.run.deadlines.threads)
        if state.sync:
            sync_places(self.run.program, execution.outcome, state, known, self._lasting)

    def _go_on(self, epoch: int, record: EpochRecord) -> None:
        """The next epoch begins from this record; merges are begun by the run that keeps the state for good."""
        keeps = self._part.commits or self.run.shadow is not None
        begin = self.upkeep.merges.between_epochs(record) if keeps else record
        self.run.progress.committed(epoch, record, begin)
        self.run.machine.on(EpochCommitted(epoch))
        self.hand_over(epoch + 1)

    def hand_over(self, epoch: int) -> None:
        """Give the tasks of an epoch the state to begin with, if the epoch is planned and the one before committed."""
        plan = self.run.progress.plans.get(epoch)
        if plan is None or epoch != self.run.machine.committed + 1:
            return
        replayed = self.run.progress.lost[epoch].footings if epoch in self.run.progress.lost else {}
        rules = self.upkeep.checkpoints.policy.footprints
        orders = self.upkeep.footprints.orders(epoch, rules, plan.routing, replayed=replayed)
        tier = self._part.tier(self.upkeep.checkpoints.tier, self.run.progress.record.policy)
        self.run.executor.hand_over(epoch, self.run.progress.begin.handover(plan, tier, orders))

    def _report(self, epoch: int, record: EpochRecord, facts: EpochFacts, execution: Execution, *, first: bool) -> None:
        """Of an epoch that was run here; the run that was `first` has committed it."""
        report = self._reported(epoch, record, facts, execution)
        if not self._part.alone:
            self.run.observer.epoch_processed(report)
        if first:
            self.fresh += 1
            self.run.observer.epoch_committed(report)
        if self._part.leads:
            self.planner.committed(epoch, facts)

    def _reported(self, epoch: int, record: EpochRecord, facts: EpochFacts, execution: Execution) -> EpochReport:
        committed = execution.committed or self.run.clock()
        times = {"started": execution.started, "ended": execution.ended, "committed": committed}
        lags, taken = self.planner.lags_behind(epoch), self._stopwatch.last if self._part.leads else None
        return make_report(self.run.program, epoch, record, facts, lags=lags, times=taken, **times)

    # while nothing comes, and the end

    def publish_due(self) -> None:
        """Publish what was gathered for long enough."""
        self.delivery.publication.publish_due(self.run.authority.lease)

    def publish_all(self) -> None:
        if self._part.leads:
            self.delivery.publication.publish_all(self.run.authority.lease)

    def idle(self) -> None:
        """While nothing comes in, the last epoch is made durable when it is time."""
        record = self.upkeep.checkpoints.idle(self.run.machine.committed, self.run.progress.record)
        if record is not None:
            self._save(record)

    def finish(self) -> None:
        """A clean end: all state goes to the stable tier, so that nothing has to be replayed at the next start."""
        self.run.deadlines.rest()
        self.publish_all()
        self.upkeep.end(self.run.machine.committed, self.run.progress.record, self._save)
        self.run.streams.committed(last=True)

    def _save(self, record: EpochRecord, forget: bool = False) -> None:
        """Write the last record again, whose state has become durable, and release what was kept to replay it; with
        `forget` also the epochs before it, whose state was not made durable."""
        epoch = self.run.machine.committed
        gone = self.upkeep.retained.before(epoch) if forget else ()
        self._chain.end()
        with committing(self.run.meta, self.run.authority.lease, epoch) as transaction:
            transaction.record_again(record, forget=gone)
            self.run.streams.release(transaction, self.upkeep.checkpoints.positions)
        self.upkeep.retained.forget(gone)
        self.run.progress.record = record

    def discard(self) -> None:
        """This replica has a lesser role now. What is in flight is committed by another; nothing refers to what was
        prepared for it here."""
        self.run.authority.ready(None)
        for epoch, execution in sorted(self.run.executor.finished_within(_SECONDS_TO_FINISH).items()):
            mine, _ = merge_commits(self.run.progress.begin, execution.plan, execution.outcome)
            made = mine.files() - self.run.progress.begin.files() - self.run.progress.record.files()
            self.run.tiers.at("stable").remove(of_one_epoch(made), _SUPERSEDED)
            self.delivery.discard(epoch, mine)
        remove_tree(self.run.tiers.volatile, _HERE)
