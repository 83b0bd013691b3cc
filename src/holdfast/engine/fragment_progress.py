"""The progress of a run: the record that it continues from, the plans that are not committed yet, and the positions of
the sources."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.connect.base import Position
from holdfast.engine.restart import Restart
from holdfast.epoch.plan import EpochPlan
from holdfast.epoch.record import EpochRecord
from holdfast.state.routing import Routing

__all__ = ["FragmentProgress"]


@dataclass(slots=True)
class FragmentProgress:
    """`record` is that of the last commit, `begin` what the next epoch begins from: the same rows, some of them merged.
    `positions`, `done` and `routing` are those after the last plan."""

    record: EpochRecord
    begin: EpochRecord
    plans: dict[int, EpochPlan] = field(default_factory=dict)
    lost: dict[int, EpochRecord] = field(default_factory=dict)
    """The records of epochs that were committed before they were run here."""
    ahead: set[int] = field(default_factory=set)
    """Those of them that another host has committed since this run began: their state is not lost."""
    positions: dict[str, Position] = field(default_factory=dict)
    done: dict[str, bool] = field(default_factory=dict)
    routing: dict[str, Routing] = field(default_factory=dict)

    @staticmethod
    def at(restart: Restart) -> FragmentProgress:
        """Where a restart has led to."""
        return FragmentProgress(
            restart.record, restart.record, dict(restart.planned), dict(restart.lost), set(),
            dict(restart.positions), dict(restart.done), dict(restart.routing),
        )  # fmt: skip

    @property
    def clock(self) -> float:
        """That of the last plan, or of the last commit."""
        known = [plan.now for plan in self.plans.values()]
        return max((now for now in (self.record.clock, *known) if now is not None), default=0.0)

    def planned(self, epoch: int, plan: EpochPlan) -> None:
        self.plans[epoch] = plan
        self.routing = dict(plan.routing)
        self.positions, self.done = dict(plan.positions), dict(plan.done)

    def outrun(self, epoch: int, record: EpochRecord) -> None:
        """Another host has committed an epoch that was not even planned here."""
        self.lost[epoch] = record
        self.ahead.add(epoch)

    def committed(self, epoch: int, record: EpochRecord, begin: EpochRecord) -> None:
        self.record, self.begin = record, begin
        self.plans.pop(epoch, None)
        self.lost.pop(epoch, None)
        self.ahead.discard(epoch)
