"""Killing a run at chosen epochs and following it: from what it tells to the steps of each recovery.

`KillTimeline` is made of the events alone, in their order, so that it can be tested without a process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from holdfast.errors import EpochFailedError

if TYPE_CHECKING:
    from holdfast_lab.experiment.scabbard.killed_run import KilledProcess

__all__ = ["CommitTime", "Kill", "KillTimeline", "StruckRun", "run_with_kills"]

_POLL = 0.002
_PATIENCE = 120.0
_USUAL = 2.0
"""A run has caught up when rows wait no longer than so many times what they waited before the kill."""


@dataclass(frozen=True, slots=True)
class Kill:
    """So many seconds after the rows of an epoch were taken: of the first from `epoch` on at which the run keeps up
    with its input, that is, the last rows waited no longer than `waited`; of `latest` in any case."""

    epoch: int
    latest: int
    seconds: float
    waited: float

    def due(self, told: KillTimeline) -> bool:
        keeps_up = bool(told.commits) and told.commits[-1].waited <= self.waited
        return told.up and told.taken >= (self.epoch if keeps_up else self.latest)


@dataclass(frozen=True, slots=True)
class CommitTime:
    epoch: int
    rows: int
    committed: float
    waited: float
    """Seconds from the arrival of the epoch's rows to the commit."""


@dataclass(slots=True)
class StruckRun:
    """A kill and the times of what came after it, each in seconds of the wall clock."""

    killed_at: float
    started_at: float
    imported_at: float = 0.0
    session_at: float = 0.0
    warm_at: float = 0.0
    recovered_at: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    replayed: int = 0
    units: int = 0
    bytes: int = 0
    caught_up: float | None = None

    @property
    def start(self) -> float:
        """The process, Java and the session with warm workers."""
        return self.warm_at - self.started_at

    @property
    def recovery(self) -> float:
        """All that is not the start."""
        return self.recovered_at - self.warm_at

    def steps(self, phases: Sequence[str]) -> list[float]:
        """Python, session, warm-up; opening the run; then the phases of the recovery."""
        start = [self.imported_at - self.started_at, self.session_at - self.imported_at, self.warm_at - self.session_at]
        recovery = [self.phases.get(phase, 0.0) for phase in phases]
        return [*start, self.recovery - sum(recovery), *recovery]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "start": self.start, "recovery": self.recovery}


@dataclass(slots=True)
class KillTimeline:
    """What a run told from its first start to its end."""

    commits: list[CommitTime] = field(default_factory=list)
    struck: list[StruckRun] = field(default_factory=list)
    taken: int = 0
    _arrived: dict[int, float] = field(default_factory=dict)
    _usual: float | None = None

    def on_kill(self, killed_at: float, started_at: float) -> None:
        """The process was killed, and started again."""
        since = self.struck[-1].recovered_at if self.struck else 0.0
        waited = [commit.waited for commit in self.commits[3:] if commit.committed > since]
        if self._usual is None and waited:
            self._usual = median(waited)
        self.struck.append(StruckRun(killed_at, started_at))

    def on_event(self, event: dict[str, Any]) -> None:
        kind, struck = event["event"], self.struck[-1] if self.struck else None
        if kind == "taken":
            self.taken = event["number"]
            self._arrived[event["number"]] = event["arrived"]
        elif kind == "commit":
            waited = event["committed"] - self._arrived.get(event["epoch"], event["started"])
            self.commits.append(CommitTime(event["epoch"], event["rows"], event["committed"], waited))
            if struck is not None and struck.caught_up is None and waited <= _USUAL * (self._usual or 0.0):
                struck.caught_up = event["committed"] - struck.killed_at
        elif struck is not None and kind == "recovered":
            struck.recovered_at, struck.phases = event["at"], event["seconds"]
            struck.replayed, struck.units, struck.bytes = event["replayed"], event["units"], event["bytes"]
        elif struck is not None and kind in ("imported", "session", "warm"):
            setattr(struck, f"{kind}_at", event["at"])

    @property
    def up(self) -> bool:
        """Whether the process runs as usual: never killed, or recovered."""
        return not self.struck or self.struck[-1].recovered_at > 0

    def throughput(self) -> tuple[float | None, float | None]:
        """Rows per second before the first kill, and from its recovery to the next kill or the end."""
        first = self.struck[0]
        until = self.struck[1].killed_at if len(self.struck) > 1 else float("inf")
        before = [commit for commit in self.commits if commit.committed <= first.killed_at]
        after = [commit for commit in self.commits if first.recovered_at <= commit.committed <= until]
        return _rate(before[2:]), _rate(after)


def _rate(commits: Sequence[CommitTime]) -> float | None:
    if len(commits) < 2:
        return None
    return sum(commit.rows for commit in commits[1:]) / (commits[-1].committed - commits[0].committed)


def run_with_kills(
    process: KilledProcess, kills: Sequence[Kill], say: Callable[[str], None] = lambda text: None
) -> KillTimeline:
    """Run to the end of the input, killed when it is due and started again. Leaves no process behind."""
    told = KillTimeline()
    waiting = list(kills)
    process.start()
    progress = time.monotonic()
    try:
        while True:
            ended = process.ended()
            events = process.events()
            for event in events:
                told.on_event(event)
            if events:
                progress = time.monotonic()
            if ended:
                return told
            taken = any(event["event"] == "taken" for event in events)
            if waiting and taken and waiting[0].due(told):
                time.sleep(waiting.pop(0).seconds)
                _strike(process, told, say)
            if time.monotonic() - progress > _PATIENCE:
                raise EpochFailedError(
                    f"nothing has happened for {_PATIENCE:.0f} s:\n{process.log_tail()}",
                    cure="run it again; the machine may be too busy",
                )
            time.sleep(_POLL)
    finally:
        process.kill_all()


def _strike(process: KilledProcess, told: KillTimeline, say: Callable[[str], None]) -> None:
    killed_at = time.time()
    process.kill_all()
    for event in process.events():  # what it told before it died belongs to the time before
        told.on_event(event)
    say(f"  kill -9 in epoch {told.taken}")
    process.start()
    told.on_kill(killed_at, process.started_at)
