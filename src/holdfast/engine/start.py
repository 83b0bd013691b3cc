"""How a run begins: it restores its state, and a leader takes over the store.

A leader first does what was requested since the last run (changed code, repairs). Then the state to continue from is
loaded. A leader publishes what was committed and removes files that nothing refers to; a follower leaves that to the
primary. A recovery with a gap skips what would have to be replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from holdfast.engine.code_changes import take_changes
from holdfast.engine.committer import Committer
from holdfast.engine.events import Began, Leads, LookedBack
from holdfast.engine.fragment_progress import FragmentProgress
from holdfast.engine.planner import Planner
from holdfast.engine.recovery import Recovery
from holdfast.engine.repair import repair
from holdfast.engine.restart import Restart
from holdfast.engine.run_context import RunContext
from holdfast.engine.standby import Standby
from holdfast.engine.upkeep import Upkeep
from holdfast.epoch.record import EpochRecord
from holdfast.epoch.transaction import committing
from holdfast.meta import Lease
from holdfast.state.primitives import checkpoint_state, persist_state

__all__ = ["Start"]


@dataclass(slots=True)
class Start:
    run: RunContext
    standby: Standby
    planner: Planner
    committer: Committer
    upkeep: Upkeep
    remove_leftovers: Callable[[Lease], None]
    """Removes what runs that were killed have left in the work directory."""
    opened: bool = False
    """Whether the executor has the program, so that epochs can be launched."""
    _recovery: Recovery | None = None
    _restart: Restart | None = None

    def open_executor(self) -> None:
        """Once. A crew takes seconds to stand where its workers import their libraries first: who may have to take
        over at any moment has it stand before."""
        if not self.opened:
            self.opened = True
            self.run.executor.open(self.run.program)

    def begin(self, *, lead: bool, gap: bool) -> Began:
        """Go on from the last commit, or from where its state can be made again."""
        self.run.deadlines.rest()
        self._recovery = recovery = Recovery(self.run.clock)
        recovery.enter("progress")
        if self.run.shadow is not None:
            self.open_executor()  # epochs go on meanwhile: the sooner it stands, the less it is behind
        lease = self.run.authority.lease if lead else None
        if lease is not None:
            self._obey(lease)
        restart = self._load(recovery)
        while lease is not None and gap and restart.planned and not self._delivered(restart):
            self.committer.delivery.check()  # before anything is published
            if self._leave_gap(restart, lease):
                break
            restart = self._load(recovery)
        self.run.progress = FragmentProgress.at(restart)
        if self.run.shadow is not None:
            self.committer.keep_own(restart.began, restart.record)
        if lease is not None:
            self._take_over_store(restart, restart.record, lease)
            self.remove_leftovers(lease)
        self.planner.use_inbox(self.standby.inbox)
        self.open_executor()
        recovery.enter("replay")
        # A batch of Structured Streaming comes again by itself, and finds its plan then.
        planned = restart.committed + (restart.fresh if self.run.program.spark_input is None else 0)
        return Began(restart.began, restart.committed, planned, frozenset(restart.lost))

    def _load(self, recovery: Recovery) -> Restart:
        self._restart = restart = Restart(self.run.program, self.run.meta, self.run.options)
        recovery.enter("upstream request")
        restart.sound = self.standby.sound
        recovery.enter("data")
        restart.load(recovery, self.run.tiers)
        return restart

    def _obey(self, lease: Lease) -> None:
        """Changes of the pipeline's code, and repairs that people have asked for."""
        partitions, now = self.run.options.first_partitions, self.run.clock()
        take_changes(self.run.program, self.run.meta, lease, partitions, now)
        repair(self.run.program, self.run.meta, lease, self.committer.delivery, partitions, self.run.options.tasks, now)

    def look_back(self) -> LookedBack:
        """How far the primary before this one has come."""
        self._restart = restart = Restart(self.run.program, self.run.meta, self.run.options)
        return LookedBack(restart.committed, restart.committed + restart.fresh)

    def lead(self) -> Leads | LookedBack:
        """All that was committed is adopted: the store is this run's from now on. Unless another host that shares has
        committed since: then that is to be adopted first."""
        assert self._restart is not None
        lease, committed = self.run.authority.lease, self._restart.committed
        again = self.look_back()
        if again.committed > committed:
            return again
        self._take_over_store(self._restart, self.run.progress.record, lease)
        return Leads()

    def _take_over_store(self, restart: Restart, record: EpochRecord, lease: Lease) -> None:
        """Take over what is retained and checkpointed, with a record whose state is here; publish what was committed,
        and sweep what nobody knows, if the lease of before `restart` still holds: loading may have taken long."""
        committed, right = restart.committed, self.run.meta.right(lease)
        publication = self.committer.delivery.publication
        self.run.deadlines.rest()
        self.upkeep.begin(restart, record)
        self.committer.delivery.check()
        publication.publish_all(lease)
        publication.sweep(committed + 1, right)
        self.run.streams.recover(right, self.upkeep.swept_before(committed))
        self.upkeep.sweep(committed, right)

    def recovered(self, after: int, replayed: int) -> None:
        """All that was planned before is committed: the fragment is where it was."""
        assert self._recovery is not None
        assert self._restart is not None
        self.planner.use_inbox(None)
        self.standby.inbox.forget()
        if after or replayed:
            positions, gathered = self.run.progress.record.positions, self._restart.gathered
            self.run.observer.recovered(
                self._recovery.done(self.run.program.name, after, replayed, positions, gathered)
            )

    def _delivered(self, restart: Restart) -> bool:
        """Whether a sink has the next epoch for good, which was not committed: then it is run, and not left out. Where
        a secondary shares, it may be delivering that epoch just now, whatever the sinks say of themselves."""
        delivery = self.committer.delivery
        if restart.fresh and self.run.machine.seat.shared and delivery.before_commits:
            return True
        return delivery.delivered(restart.committed + 1) is not None

    def _leave_gap(self, restart: Restart, lease: Lease) -> bool:
        """Leave out what would have to be replayed, and what was planned: the state is as old as it is. It becomes
        durable: who began before the gap would run what was left out, and have another state. False if a secondary
        that shares has committed meanwhile: then nothing is left out of what it has."""
        last = restart.last
        self.committer.delivery.publication.publish_all(lease)
        record = restart.record.routed(last.routing)
        record = replace(
            last, state=record.state, gap=restart.began, gaps=last.gaps + 1, receipts={}, streamed={}, digest={},
            base=None,
        )  # fmt: skip
        stable = frozenset(name for name in record.files() if self.run.tiers.stable_only.found(name) is not None)
        persist_state(checkpoint_state(restart.began, record.state, record.positions), self.run.tiers, stable)
        with committing(self.run.meta, lease, restart.committed) as transaction:
            if not transaction.is_last():
                return False
            if restart.lost:
                transaction.record_again(record)
            for epoch in range(restart.committed + 1, restart.committed + restart.fresh + 1):
                transaction.epoch, plan = epoch, restart.planned[epoch]
                record = replace(
                    record.routed(plan.routing), positions=plan.positions, done=plan.done, generation=plan.generation,
                )  # fmt: skip
                transaction.record(record, self.run.clock())
        restart.left_out(record)
        return True
