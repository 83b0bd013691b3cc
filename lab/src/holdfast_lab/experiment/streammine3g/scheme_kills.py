"""The runs of the experiment `schemes`: two hosts go along the wheel, and in every scheme the primary is killed."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.replica.fragment_notes import RecoveryNote
from holdfast.replica.schemes import Scheme, wheel
from holdfast.replica.schemes.active_standby import ACTIVE_STANDBY
from holdfast.replica.schemes.passive_replication import PASSIVE_REPLICATION
from holdfast_lab.experiment.definition import Settings
from holdfast_lab.experiment.streammine3g.supervised_hosts import (
    HostUsage,
    SupervisedHosts,
    SupervisedSettings,
    supervised,
    usages,
)
from holdfast_lab.experiment.streammine3g.tidal_visits import Visits, write_blocks, write_pipeline

__all__ = ["SchemeKill", "struck"]

BLOCKS = "blocks"
USERS = 200_000
RATE = 10_000.0
TICK = 1.0
CHECKPOINT_SECONDS = 2.0
BEAT = 0.1
STATE_BYTES = 600
_OTHER_FIELDS = 20
_BEGUN_COMMITS = 12
_STEADY_COMMITS = 4
_COMMITS_AFTER = 3
_WARM_COMMITS = 10
_BEHIND = 1
"""How many epochs the last checkpoint is behind at each kill, the same for every scheme: with an epoch in flight, two
are replayed. More are only there when a checkpoint comes late, since it is written while nothing is to be read."""


@dataclass(frozen=True, slots=True)
class SchemeKill:
    """A kill -9 of the primary and what came of it, in seconds. `usual` is the time between two commits before, `epoch`
    what an epoch took. `predicted` is for as many epochs as were `replayed`, `at_worst` for as many as there could have
    been: both from what was known before the kill."""

    scheme: Scheme
    detection: float
    recovery: float
    gap: float
    usual: float
    epoch: float
    replayed: int
    predicted: float | None
    at_worst: float | None
    secondary: HostUsage
    primary: HostUsage

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "scheme": self.scheme.name}


def struck(settings: Settings, kills: int, seconds: float, detection: float) -> list[SchemeKill]:
    """Kill the primary so often in each scheme; before, watch for so many seconds what the hosts take."""
    blocks = settings.work / BLOCKS
    write_blocks(blocks, USERS, settings.seed, _OTHER_FIELDS)
    asked = Visits(str(blocks), str(settings.work / "out"), ((60.0, RATE),), TICK, padding=STATE_BYTES)
    hosts = SupervisedSettings(
        pipeline=write_pipeline(settings.work / "visits.py", asked),
        work=settings.work / "hosts",
        scheme=PASSIVE_REPLICATION,
        checkpoint=f"interval({CHECKPOINT_SECONDS:g}s)",
        detection=detection,
        beat=BEAT,
    )
    found = []
    with supervised(hosts, lambda text: None) as running:
        running.until(lambda: len(running.hear().commits) >= _BEGUN_COMMITS, "a beginning")
        for scheme in reversed(wheel.SCHEMES):
            running.turn(scheme)
            for number in range(kills):
                found.append(_strike(running, scheme, seconds, _BEHIND))
                settings.say(f"{_told(found[-1])} ({number + 1} of {kills})")
    return found


def _strike(running: SupervisedHosts, scheme: Scheme, seconds: float, behind: int) -> SchemeKill:
    """Kill the primary while an epoch is in flight and the last checkpoint is so many epochs behind."""
    running.bring_back()
    _warm(running, scheme)
    running.until(lambda: running.settled(scheme), f"a secondary in {scheme.name}")
    since = time.time()
    running.until(lambda: running.hear().commits_after(since) >= _STEADY_COMMITS, "progress")
    second, first = usages([running.secondary(), running.primary()], seconds)
    running.until(
        lambda: running.settled(scheme) and running.behind() == behind, f"a kill in {scheme.name}", often=True
    )
    killed = running.kill_primary()

    def noted() -> RecoveryNote | None:
        return next((note for note in running.look().notes.recoveries if note.at > killed), None)

    running.until(lambda: running.hear().takeover_after(killed) is not None, "a takeover")
    taken = running.tale.takeover_after(killed)
    assert taken is not None
    running.until(lambda: noted() is not None, "a note of the recovery")
    running.until(lambda: running.hear().commits_after(max(killed, taken.at)) >= _COMMITS_AFTER, "progress")
    recovery, tale = noted(), running.tale
    assert recovery is not None
    return SchemeKill(
        scheme=scheme,
        detection=max(0.0, taken.at - taken.seconds - killed),
        recovery=taken.seconds,
        gap=tale.gap(killed, tale.commits[-1]) or 0.0,
        usual=tale.usual(killed) or 0.0,
        epoch=tale.epoch(killed) or 0.0,
        replayed=taken.replayed,
        predicted=recovery.predicted,
        at_worst=recovery.at_worst,
        secondary=second,
        primary=first,
    )


def _warm(running: SupervisedHosts, scheme: Scheme) -> None:
    """Have the secondary process for a while, so that every scheme finds a Java that has run such epochs before: what
    one that was started a moment ago takes longer is no property of the scheme."""
    if not scheme.needs_secondary:
        return  # there is no process
    running.turn(ACTIVE_STANDBY)
    running.until(lambda: running.settled(ACTIVE_STANDBY), "a secondary that processes")
    since = time.time()
    running.until(lambda: running.hear().commits_after(since) >= _WARM_COMMITS, "epochs that both have processed")
    running.turn(scheme)


def _told(strike: SchemeKill) -> str:
    predicted = "nothing" if strike.predicted is None else f"{strike.predicted:.2f} s"
    return (
        f"{strike.scheme.name}: noticed after {strike.detection:.2f} s, recovered in {strike.recovery:.2f} s with"
        f" {strike.replayed} epochs replayed, predicted {predicted}; no output for {strike.gap:.2f} s"
    )
