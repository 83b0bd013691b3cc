"""Where a fragment continues when its process starts: after its last commit or, if that state was lost, before it.

The store has the records of the retained epochs, the plans of epochs that were not committed, and also the plans of
committed epochs after the base of the last record. If p-units of the last record were only on the volatile tier and are
lost, the fragment goes back to the base, and the epochs since then run again as they were planned. The state at the
base is that of its record, empty, or what the last footprints of all windows contain.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from holdfast.durability.footprint_recovery import Gathered, gather_state
from holdfast.engine.options import RunOptions
from holdfast.engine.recovery import Recovery, needed_units
from holdfast.epoch.plan import EpochPlan
from holdfast.epoch.record import Base, EpochRecord, new_record
from holdfast.epoch.record_change import records_of
from holdfast.errors import CorruptPUnitError
from holdfast.meta import MetaStore
from holdfast.plan.program import Program
from holdfast.plan.scaled_routing import assembly_tasks, spread
from holdfast.state.primitives import checkpoint_state, replay_buffer_state, restore_state
from holdfast.store import Tiers

__all__ = ["Restart"]


class Restart:
    """What the store knows of a fragment, and what it comes to.

    `record` is what to continue with after epoch `began`, `planned` the epochs to run first, of which the last `fresh`
    were never committed, and `lost` the records of those that were and have to be made again.
    """

    def __init__(self, program: Program, meta: MetaStore, options: RunOptions) -> None:
        self._program = program
        self._meta = meta
        self._options = options
        commits, planned = meta.history(program.name)
        self.committed = committed = commits[0].epoch if commits else 0
        self.records = records_of(commits)
        self.commits = {commit.epoch: commit for commit in reversed(commits)}
        self.began = committed
        self.record = self.records[committed] if commits else self._first()
        self.base = self.record.base or Base(committed)
        self.planned = {item.epoch: EpochPlan.decode(item.plan) for item in planned}
        self.fresh = len(self.planned)
        self.last = self.record
        """The last record, also where its state was lost."""
        self.sound: Collection[str] = ()
        """P-units that are known to be there and whole."""
        self.lost: dict[int, EpochRecord] = {}
        self.gathered: list[Gathered] = []
        tail = self.planned.get(committed + self.fresh)
        self.positions = dict(tail.positions if tail else self.record.positions)
        self.done = dict(tail.done if tail else self.record.done)
        self.routing = dict(self.record.routing)
        if tail is not None:
            self.routing |= tail.routing

    def load(self, recovery: Recovery, tiers: Tiers) -> None:
        """Bring back what is only in a backup, and check all that is needed to continue; rewind if it is lost."""
        try:
            self._load(recovery, tiers)
        except CorruptPUnitError:
            if self.record.base is None:
                raise
            self._rewind(self.record.base, tiers)
            self._load(recovery, tiers)

    def left_out(self, record: EpochRecord) -> None:
        """Nothing is replayed: what was planned counts as committed, with this record after it."""
        self.committed += self.fresh
        self.began, self.fresh = self.committed, 0
        self.record = self.last = record
        self.records[self.began] = record
        self.base = Base(self.began)
        self.planned, self.lost, self.gathered = {}, {}, []

    def since_base(self) -> dict[int, EpochRecord]:
        """The records from the base up to the one to continue from."""
        records = {epoch: record for epoch, record in self.records.items() if self.base.epoch <= epoch <= self.began}
        return records if self.base.epoch else {0: self._first(), **records}

    def _first(self) -> EpochRecord:
        return new_record(self._program, self._options.first_partitions)

    def _load(self, recovery: Recovery, tiers: Tiers) -> None:
        record = self.record
        others = (Path(place) for place in self.record.other_places)
        restore_state(checkpoint_state(self.began, record.state, record.positions), tiers, others)
        root, store = self._options.store.resolve(), tiers.at("stable")
        needed = needed_units(self._program, record, self.began, self.planned, store, root)
        recovery.load([one for one in needed if one.unit.name not in self.sound])

    def _rewind(self, base: Base, tiers: Tiers) -> None:
        """Go back to the base. The epochs since were committed before, so only their state is of interest: they may be
        run with other partitions than they had."""
        self.lost = {epoch: record for epoch, record in self.records.items() if epoch > base.epoch}
        known = {epoch: EpochPlan.decode(commit.plan) for epoch, commit in self.commits.items() if epoch > base.epoch}
        plans = replay_buffer_state(known, base.epoch, max(self.lost, default=base.epoch))
        wanted = self._options.recovery_partitions
        if wanted is not None and plans:
            plans = {epoch: self._spread(plan, wanted) for epoch, plan in plans.items()}
            self.routing |= plans[max(plans)].routing
        self.planned = {**plans, **self.planned}
        last = self.record
        record = self.records[base.epoch] if base.epoch else self._first()
        self.record = record.emptied() if base.empty else record
        if base.eventual:
            state, self.gathered = gather_state(
                self._program, last.footings, record.routing, self._meta, self._options.store.resolve(),
                tiers.at("volatile"), base.epoch,
            )  # fmt: skip
            self.record = structs.replace(record, state=state)
        self.began = base.epoch

    def _spread(self, plan: EpochPlan, partitions: int) -> EpochPlan:
        """The plan of an epoch with so many partitions of each operator that has a key: parallel recovery."""
        routing = spread(self._program, plan.routing, partitions)
        return replace(plan, routing=routing, tasks=(plan.tasks[0], *assembly_tasks(self._program, routing)))
