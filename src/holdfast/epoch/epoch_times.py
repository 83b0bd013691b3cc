"""Where the time of an epoch goes, from its plan until readers see it.

Tasks measure how long they work and wait for the disk, the driver measures the rest; clocks of different machines are
never compared. The times of consecutive stages add up; of tasks that run at the same time, the slowest counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from holdfast.epoch.execution import Execution
from holdfast.epoch.messages import commits_of

__all__ = ["EpochStopwatch", "EpochTimes", "mean_times"]


@dataclass(frozen=True, slots=True)
class EpochTimes:
    """Seconds. `wait`: from the plan to the launch, and for the epoch before to be committed. `read`: the slowest task
    that reads, with the operators before the first exchange. `exchange`: what is not in the others, as rows and
    messages are on their way. `assemble`: the slowest task of each later stage. `sync`: for the disk, in the tasks.
    `commit`: from the last task's end to the commit, sinks on the driver among it. `publish`: after the commit."""

    wait: float = 0.0
    read: float = 0.0
    exchange: float = 0.0
    assemble: float = 0.0
    sync: float = 0.0
    commit: float = 0.0
    publish: float = 0.0

    @property
    def total(self) -> float:
        return sum(self.parts().values())

    def parts(self) -> dict[str, float]:
        """By name, in the order in which they follow one another."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    def __str__(self) -> str:
        return ", ".join(f"{name} {1_000 * seconds:.1f} ms" for name, seconds in self.parts().items())


def mean_times(times: Iterable[EpochTimes]) -> EpochTimes | None:
    """Of several epochs."""
    known = list(times)
    if not known:
        return None
    names = EpochTimes().parts()
    return EpochTimes(**{name: sum(getattr(taken, name) for taken in known) / len(known) for name in names})


class EpochStopwatch:
    """Takes the times of one epoch after the other, as they are committed."""

    def __init__(self) -> None:
        self.last = EpochTimes()
        """Of the last epoch; until it is committed and published, with what that took for the one before."""
        self._since = 0.0

    def ended(self, execution: Execution) -> EpochTimes:
        """All tasks have ended. What commit and publication take is not known yet: it is that of the epoch before."""
        worked: dict[int, float] = {}
        synced: dict[int, float] = {}
        for commit in commits_of(execution.outcome):
            worked[commit.stage] = max(worked.get(commit.stage, 0.0), commit.seconds - commit.syncing)
            synced[commit.stage] = max(synced.get(commit.stage, 0.0), commit.syncing)
        begun = execution.started if execution.plan.now is None else execution.plan.now
        held_up = max(0.0, execution.handed_over - (execution.read_at or execution.started))
        times = replace(
            self.last,
            wait=max(0.0, execution.started - begun) + held_up,
            read=worked.pop(0, 0.0),
            assemble=sum(worked.values()),
            sync=sum(synced.values()),
        )
        known = times.read + times.assemble + times.sync + held_up
        self._since = execution.ended
        self.last = replace(times, exchange=max(0.0, execution.ended - execution.started - known))
        return self.last

    def committed(self, now: float) -> None:
        self.last, self._since = replace(self.last, commit=max(0.0, now - self._since)), now

    def published(self, now: float) -> None:
        self.last = replace(self.last, publish=max(0.0, now - self._since))
