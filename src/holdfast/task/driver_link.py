"""What a task receives about its epoch, and reports: by files in the work directory, or by messages to a standing
worker."""

from __future__ import annotations

from typing import Protocol

from holdfast.epoch.handover import HandOver
from holdfast.epoch.plan import EpochPlan, TaskSettings

__all__ = ["DriverLink"]


class DriverLink(Protocol):
    """Where the tasks of a run find what the driver has decided."""

    def read_plan(self, epoch: int) -> tuple[EpochPlan, TaskSettings]:
        """The plan of an epoch that was launched."""

    def wait_handover(self, epoch: int) -> HandOver:
        """The hand-over, waited for if the epoch before is not committed yet."""

    def mark_fragment(self, epoch: int, task: int) -> None:
        """Tell the driver that a task of stage 0 has read its input."""
