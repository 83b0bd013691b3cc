"""The upkeep of a fragment beside its epochs: checkpoints and footprints to begin again from, merges of state, and the
removal of files that nobody needs.

A run tells it of its start, of every commit and of its end; in between it says what a record is to hold of all this.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from holdfast.durability.checkpoints import Checkpoints, CheckpointSettings
from holdfast.durability.footprint_log import FootprintLogs
from holdfast.durability.policy_choice import Amounts
from holdfast.durability.retention import Retention
from holdfast.engine.authority import HeldAuthority
from holdfast.engine.background_merges import Compacting
from holdfast.engine.observer import Observer
from holdfast.engine.options import RunOptions
from holdfast.engine.restart import Restart
from holdfast.epoch.facts import EpochFacts
from holdfast.epoch.record import EpochRecord
from holdfast.meta import MetaStore
from holdfast.plan.program import Program
from holdfast.pstream import Control
from holdfast.store import Right, Tiers
from holdfast.task.work_directory import WorkDirectory
from holdfast.threads import SYSTEM, Threads

__all__ = ["Controls", "Upkeep"]

Controls = Mapping[str, Mapping[str, Control]]


class Upkeep:
    """The upkeep of one run. `shared` is whether all tasks see the same volatile tier."""

    def __init__(
        self,
        program: Program,
        meta: MetaStore,
        options: RunOptions,
        tiers: Tiers,
        work: WorkDirectory,
        compacting: Compacting,
        right: HeldAuthority,
        clock: Callable[[], float],
        *,
        shared: bool,
        observer: Observer,
        threads: Threads = SYSTEM,
    ) -> None:
        settings = CheckpointSettings(
            options.checkpoint,
            options.interval,
            options.memory_bytes,
            options.failures_per_hour,
            options.recovery_seconds or program.guarantee.recovery_seconds,
            shared,
        )
        root: Path = options.store.resolve()
        self._state = tiers.at("stable")
        self._stable_only = tiers.stable_only
        self._work = work
        self._alone = options.host is None
        self.checkpoints = Checkpoints(program, tiers, settings, right, clock, observer.checkpoint_copied, threads)
        self.footprints = FootprintLogs(program, meta, root, options.durable, right, clock)
        self.retention = Retention(self._state, options.retain, right, clock)
        self.compacting = compacting

    def swept_before(self, committed: int) -> int | None:
        """Files of which epochs may be swept: all, unless other hosts may be at work for the epochs to come."""
        return None if self._alone else committed + 1

    def begin(self, restart: Restart, record: EpochRecord) -> None:
        """Go on with what is retained and checkpointed, with a record whose state is here."""
        for epoch, known in restart.records.items():
            self.retention.add(epoch, known.files(), pinned=range(epoch + 1))
        if record is not restart.last:
            self.retention.forget(restart.began)
            self.retention.add(restart.began, record.files(), pinned=range(restart.began))
        self.checkpoints.begin(record, restart.base, restart.since_base(), restart.last.policy)
        damaged = {gathered.operator for gathered in restart.gathered if gathered.left_out}
        self.footprints.begin(restart.last, restart.committed, damaged)

    def sweep(self, committed: int, right: Right) -> None:
        """Remove what lost attempts have left. Only after the last commit was published."""
        self.retention.sweep(self.swept_before(committed), right)
        self.footprints.sweep(right)

    # a commit

    def completed(
        self, epoch: int, record: EpochRecord, before: EpochRecord, facts: EpochFacts, busy: float
    ) -> tuple[EpochRecord, Controls]:
        """The record of an epoch with where to begin again from, and the control records that go with it."""
        footings, controls = self.footprints.committed(epoch, facts.footprints, facts.read, busy)
        record = self.based(epoch, replace(record, footings=footings or before.footings))
        record = replace(record, policy=str(self.checkpoints.policy), reason=self.checkpoints.reason)
        if record.base is None or not record.base.eventual:
            record = replace(record, footings=footings)  # nobody would go back to older ones
        return record, controls

    def based(self, epoch: int, record: EpochRecord) -> EpochRecord:
        """The record with the base and the directories that its state is found from."""
        beside = tuple(str(place) for place in self._state.beside)
        return replace(record, base=self.checkpoints.base_of(epoch, record), beside=beside)

    def keep_from(self, epoch: int) -> int:
        """The oldest epoch that the store must know when `epoch` is committed."""
        return min(self.retention.keep_from(epoch), self.checkpoints.keep_from)

    def committed(
        self, epoch: int, record: EpochRecord, facts: EpochFacts, busy: float, pinned: Collection[int]
    ) -> None:
        """After a commit: let go what nobody needs, and begin what is due."""
        self.retention.add(epoch, record.files(), {*self.checkpoints.pinned(), *pinned})
        self.checkpoints.committed(epoch, record, Amounts(facts.read, facts.written, facts.left, busy))
        rules = self.checkpoints.policy.footprints
        self.footprints.calibrate(record, rules, self._work.scratch)
        self.footprints.trim(left=rules is None and not record.footings)

    # the end

    def end(self, committed: int, record: EpochRecord, save: Callable[[EpochRecord, bool], None]) -> None:
        """All state goes to the stable tier. `save` writes the record that has changed by that, and forgets the epochs
        before it if the second argument says so: other hosts may have committed since, and need them."""
        durable = self.checkpoints.end(committed, record)
        if durable is None and self._alone and not self.retention.names() <= set(self._stable_only.names()):
            durable = record  # its state is on the stable tier, that of epochs before it only was in memory
        if durable is not None:
            last = replace(durable, footings={})
            self.compacting.close()
            if self._alone:
                self.retention.keep_only(committed)
            leftovers = self.retention.leftovers(self.swept_before(committed))
            save(last, self._alone)  # what is found after this may be of the next run
            self.retention.remove(leftovers)
        self.footprints.end(committed)
        self.checkpoints.forget_volatile()

    def close(self) -> None:
        self.checkpoints.close()
        self.footprints.close()
        self.compacting.close()
