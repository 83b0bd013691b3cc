"""The upkeep of a fragment between its epochs: checkpoints and footprints to restart from, merges of state, and the
removal of files that are no longer needed.

A run reports its start, every commit and its end to it. In return, the upkeep says what each record must contain about
all this.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from msgspec.structs import replace

from holdfast.durability.checkpoints import Checkpoints, CheckpointSettings
from holdfast.durability.footprint_log import FootprintLogs
from holdfast.durability.policy_choice import Amounts
from holdfast.durability.retained_epochs import RetainedEpochs
from holdfast.durability.retention import Retention
from holdfast.engine.authority import HeldAuthority
from holdfast.engine.background_merges import BackgroundMerges
from holdfast.engine.observer import Observer
from holdfast.engine.options import RunOptions
from holdfast.engine.restart import Restart
from holdfast.epoch.facts import EpochFacts
from holdfast.epoch.record import EpochRecord
from holdfast.meta import FollowerNeeds, MetaStore
from holdfast.plan.program import Program
from holdfast.pstream import Control
from holdfast.store import SEGMENT_EPOCHS, Right, Tiers
from holdfast.task.work_directory import WorkDirectory
from holdfast.threads import SYSTEM, Threads

__all__ = ["Controls", "Upkeep"]

Controls = Mapping[str, Mapping[str, Control]]
_SWEPT_EPOCHS = 4 * SEGMENT_EPOCHS
"""After so many epochs, segments are removed in which no commit has come to name anything: those of workers that were
lost. Where there are other hosts, that is left to the next start: they may have state that no commit names yet."""
_MOST_FOLLOWED = 20_000
"""Who is so many epochs behind begins again from the last commit."""


class Upkeep:
    """The upkeep of one run. `shared` is whether all tasks see the same volatile tier."""

    def __init__(
        self,
        program: Program,
        meta: MetaStore,
        options: RunOptions,
        tiers: Tiers,
        work: WorkDirectory,
        merges: BackgroundMerges,
        right: HeldAuthority,
        clock: Callable[[], float],
        ticks: Callable[[], float],
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
        self.checkpoints = Checkpoints(program, tiers, settings, right, ticks, observer.checkpoint_copied, threads)
        self.footprints = FootprintLogs(program, meta, root, options.durable, right, clock, ticks=ticks)
        self.retained = RetainedEpochs(options.retention)
        self.retention = Retention(self._state, options.retention.epochs, right, clock)
        self._clock = clock
        self._name = program.name
        self._needs = FollowerNeeds(meta, threads)
        self.merges = merges

    def swept_before(self, committed: int) -> int | None:
        """Files of which epochs may be swept: all, unless other hosts may be at work for the epochs to come."""
        return None if self._alone else committed + 1

    def begin(self, restart: Restart, record: EpochRecord) -> None:
        """Go on with what is retained and checkpointed, with a record whose state is here."""
        for epoch, known in restart.records.items():
            commit = restart.commits.get(epoch)
            at = self._clock() if commit is None else commit.committed_at
            self.retained.add(epoch, at, whole=commit is None or not commit.since)
            self.retention.add(epoch, known.files(), pinned=range(epoch + 1))
        if record is not restart.last:
            self.retention.forget(restart.began)
            # A replica continues with state of its own, and another start with what the store names: both must stay.
            stored = restart.records.get(restart.began, record)
            self.retention.add(restart.began, record.files() | stored.files(), pinned=range(restart.began))
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
            record = replace(record, footings=footings)  # nothing goes back to older ones
        return record, controls

    def based(self, epoch: int, record: EpochRecord) -> EpochRecord:
        """The record with the base and the directories that its state is found from."""
        others = tuple(str(place) for place in self._state.other_places)
        return replace(record, base=self.checkpoints.base_of(epoch, record), other_places=others)

    def to_forget(self, epoch: int) -> list[int]:
        """The epochs that the store need not know when `epoch` is committed."""
        needed, after = self.checkpoints.keep_from, None if self._alone else self._needs.after(self._name)
        if after is not None:
            needed = min(needed, max(after + 1, epoch - _MOST_FOLLOWED))
        return self.retained.to_forget(epoch, needed)

    def committed(
        self, epoch: int, record: EpochRecord, facts: EpochFacts, busy: float, pinned: Collection[int], *, whole: bool
    ) -> None:
        """After a commit, whose record was written `whole` or as a change: release what is not needed, and begin what
        is due."""
        self.retained.add(epoch, self._clock(), whole=whole)
        self.retention.add(epoch, record.files(), {*self.checkpoints.pinned(), *pinned, *self.retained.kept})
        self.checkpoints.committed(epoch, record, Amounts(facts.read, facts.written, facts.left, busy))
        rules = self.checkpoints.policy.footprints
        self.footprints.calibrate(record, rules, self._work.scratch)
        self.footprints.trim(left=rules is None and not record.footings)
        if self._alone and epoch % _SWEPT_EPOCHS == 0:
            self.retention.sweep(epoch + 1)

    # the end

    def end(self, committed: int, record: EpochRecord, save: Callable[[EpochRecord, bool], None]) -> None:
        """All state goes to the stable tier. `save` writes the record that has changed by that, and forgets the epochs
        before it if the second argument says so: other hosts may have committed since, and need them."""
        durable = self.checkpoints.end(committed, record)
        if durable is None and self._alone and any(map(self._is_volatile, self.retention.names())):
            durable = record  # its state is on the stable tier, that of epochs before it only was in memory
        if durable is not None:
            last = replace(durable, footings={})
            self.merges.close()
            if self._alone:
                self.retention.keep_only(committed)
            leftovers = self.retention.leftovers(self.swept_before(committed))
            save(last, self._alone)  # what is found after this may be of the next run
            self.retention.remove(leftovers)
        self.footprints.end(committed)
        self.checkpoints.forget_volatile()

    def _is_volatile(self, name: str) -> bool:
        return self._stable_only.found(name) is None

    def close(self) -> None:
        self.checkpoints.close()
        self.footprints.close()
        self.merges.close()
