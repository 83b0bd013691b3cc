"""How a run begins: state is brought back, and a leader takes over the store.

A leader first does what was asked for since the last run (changed code, repairs). Then the state from which to go on is
loaded. Who leads publishes what was committed and sweeps what nobody knows; who follows leaves that to the primary. A
recovery with a gap leaves out what would have to be replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from holdfast.engine.authority import Authority
from holdfast.engine.code_changes import take_changes
from holdfast.engine.committer import Committer
from holdfast.engine.events import Began, Leads, LookedBack
from holdfast.engine.observer import Observer
from holdfast.engine.options import RunOptions
from holdfast.engine.planner import Planner
from holdfast.engine.progress import FragmentProgress
from holdfast.engine.recovery import Recovery
from holdfast.engine.repair import repair
from holdfast.engine.restart import Restart
from holdfast.engine.standby import Standby
from holdfast.engine.stream_links import StreamLinks
from holdfast.engine.upkeep import Upkeep
from holdfast.epoch.deadline import Deadlines
from holdfast.epoch.execution import Executor
from holdfast.epoch.record import EpochRecord
from holdfast.meta import Lease, MetaStore
from holdfast.plan.program import Program
from holdfast.state.primitives import checkpoint_state, persist_state
from holdfast.store import Tiers

__all__ = ["Start"]


@dataclass(slots=True)
class Start:
    program: Program
    meta: MetaStore
    options: RunOptions
    tiers: Tiers
    authority: Authority
    executor: Executor
    standby: Standby
    planner: Planner
    committer: Committer
    streams: StreamLinks
    upkeep: Upkeep
    observer: Observer
    deadlines: Deadlines
    clock: Callable[[], float]
    remove_leftovers: Callable[[Lease], None]
    """Removes what runs that were killed have left in the work directory."""
    _recovery: Recovery | None = None
    _restart: Restart | None = None

    def begin(self, *, lead: bool, gap: bool) -> Began:
        """Go on from the last commit, or from where its state can be made again."""
        self.deadlines.rest()
        self._recovery = recovery = Recovery(self.clock)
        recovery.enter("progress")
        lease = self.authority.lease if lead else None
        if lease is not None:
            self._obey(lease)
        self._restart = restart = Restart(self.program, self.meta, self.options)
        recovery.enter("upstream request")
        restart.sound = self.standby.sound
        recovery.enter("data")
        restart.load(recovery, self.tiers)
        if lease is not None and gap and restart.planned and not self._delivered(restart):
            self.committer.delivery.check()  # before anything is published
            self._leave_gap(restart, lease)
        self.committer.progress = self.planner.progress = FragmentProgress.at(restart)
        if lease is not None:
            self._take_over_store(restart, restart.record, lease)
            self.remove_leftovers(lease)
        self.planner.use_inbox(self.standby.inbox)
        self.executor.open(self.program)
        recovery.enter("replay")
        # A batch of Structured Streaming comes again by itself, and finds its plan then.
        planned = restart.committed + (restart.fresh if self.program.spark_input is None else 0)
        return Began(restart.began, restart.committed, planned, frozenset(restart.lost))

    def _obey(self, lease: Lease) -> None:
        """Changes of the pipeline's code, and repairs that people have asked for."""
        partitions, now = self.options.partitions, self.clock()
        take_changes(self.program, self.meta, lease, partitions, now)
        repair(self.program, self.meta, lease, self.committer.delivery, partitions, self.options.tasks, now)

    def look_back(self) -> LookedBack:
        """How far the primary before this one has come."""
        self._restart = restart = Restart(self.program, self.meta, self.options)
        return LookedBack(restart.committed, restart.committed + restart.fresh)

    def lead(self) -> Leads | LookedBack:
        """All that was committed is adopted: the store is this run's from now on. Unless another host that shares has
        committed since: then that is to be adopted first."""
        assert self._restart is not None
        lease, committed = self.authority.lease, self._restart.committed
        again = self.look_back()
        if again.committed > committed:
            return again
        self._take_over_store(self._restart, self.committer.progress.record, lease)
        return Leads()

    def _take_over_store(self, restart: Restart, record: EpochRecord, lease: Lease) -> None:
        """Take over what is retained and checkpointed, with a record whose state is here; publish what was committed,
        and sweep what nobody knows, if the lease of before `restart` still holds: loading may have taken long."""
        committed, right = restart.committed, self.meta.right(lease)
        publication = self.committer.delivery.publication
        self.deadlines.rest()
        self.upkeep.begin(restart, record)
        self.committer.delivery.check()
        publication.publish_all(lease)
        publication.sweep(committed + 1, right)
        self.streams.recover(right, self.upkeep.swept_before(committed))
        self.upkeep.sweep(committed, right)

    def recovered(self, after: int, replayed: int) -> None:
        """All that was planned before is committed: the fragment is where it was."""
        assert self._recovery is not None
        assert self._restart is not None
        self.planner.use_inbox(None)
        self.standby.inbox.forget()
        if after or replayed:
            positions, gathered = self.committer.progress.record.positions, self._restart.gathered
            self.observer.recovered(self._recovery.done(self.program.name, after, replayed, positions, gathered))

    def _delivered(self, restart: Restart) -> bool:
        """Whether a sink has the next epoch for good, which was not committed: then it is run, and not left out."""
        return self.committer.delivery.delivered(restart.committed + 1) is not None

    def _leave_gap(self, restart: Restart, lease: Lease) -> None:
        """Leave out what would have to be replayed, and what was planned: the state is as old as it is. It becomes
        durable: who began before the gap would run what was left out, and have another state."""
        last = restart.last
        self.committer.delivery.publication.publish_all(lease)
        record = restart.record.routed(last.routing)
        record = replace(last, state=record.state, gap=restart.began, receipts={}, streamed={}, digest={}, base=None)
        stable = frozenset(name for name in record.files() if self.tiers.stable_only.path(name).exists())
        persist_state(checkpoint_state(restart.began, record.state, record.positions), self.tiers, stable)
        if restart.lost:
            self.meta.recommit(lease, restart.committed, record.encode())
        for epoch in range(restart.committed + 1, restart.committed + restart.fresh + 1):
            plan = restart.planned[epoch]
            record = replace(
                record.routed(plan.routing), positions=plan.positions, done=plan.done, generation=plan.generation,
            )  # fmt: skip
            self.meta.commit(lease, epoch, record.encode(), self.clock())
        restart.left_out(record)
