"""The real part of the experiment `controller`: minutes of changing load on two hosts that are killed now and then.

Nothing is turned by hand: the controller of the primary's host measures, predicts and turns the wheel. The tide of the
input goes through low and high water, and users come who were not there before, so that the state grows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from holdfast.replica.fragment_notes import Decision, FragmentNotes, RecoveryNote
from holdfast.replica.prediction import Prices, recovery_cost
from holdfast.replica.schemes import wheel
from holdfast.replica.schemes.active_replication import ACTIVE_REPLICATION
from holdfast_lab.experiment.definition import Bar, Settings, at_least, at_most
from holdfast_lab.experiment.plots import COLOURS
from holdfast_lab.experiment.streammine3g.controller_parts import ControllerPart, SubFigure
from holdfast_lab.experiment.streammine3g.supervised_hosts import SupervisedHosts, SupervisedSettings, supervised
from holdfast_lab.experiment.streammine3g.tidal_visits import Visits, write_blocks, write_pipeline
from holdfast_lab.experiment.tide import Tide

__all__ = ["HostsTimeline", "PrimaryKill", "SchemeSample", "draw", "figures", "judged", "real"]

_NAME = "real"
_MINUTES = 10.0
_CALM = 45.0
_KILL_EVERY = 70.0
_USERS, _FRESH = 100_000, 10_000
_STEPS = ((80.0, 4_000.0), (70.0, 40_000.0), (60.0, 12_000.0), (70.0, 60_000.0))
_TICK = 0.5
_CHECKPOINT = "interval(3s)"
_DETECTION = 0.7
_COMMITS_AFTER = 3


@dataclass(frozen=True, slots=True)
class SchemeSample:
    """One look: seconds since the beginning, the scheme, what it is predicted to take at worst, what it costs by the
    hour, and what active replication would."""

    at: float
    rate: float
    scheme: str
    predicted: float | None
    state_bytes: float | None
    money: float | None
    active_money: float | None


@dataclass(frozen=True, slots=True)
class PrimaryKill:
    """A kill of the primary, and for how long there was no output."""

    at: float
    scheme: str
    seconds: float
    predicted: float | None
    at_worst: float | None
    replayed: int


@dataclass(slots=True)
class HostsTimeline:
    samples: list[SchemeSample] = field(default_factory=list)
    hits: list[PrimaryKill] = field(default_factory=list)
    decisions: list[dict[str, Any]] = field(default_factory=list)

    @property
    def moves(self) -> int:
        return sum(before.scheme != after.scheme for before, after in pairwise(self.samples))

    def note(self, decisions: Sequence[Decision], began: float) -> None:
        """Decisions come again and again, the last twenty of them."""
        last = self.decisions[-1]["at"] if self.decisions else -1.0
        self.decisions += [
            {**asdict(decision), "at": decision.at - began}
            for decision in decisions
            if decision.at - began > max(0.0, last)
        ]


def real(settings: Settings, minutes: float = _MINUTES) -> ControllerPart:
    """Run for so many minutes under the recovery time that is asked for."""

    blocks = settings.work / "blocks"
    write_blocks(blocks, _USERS, settings.seed)
    bound = settings.recovery
    asked = Visits(
        str(blocks), str(settings.work / "out"), _STEPS, _TICK, fresh=_FRESH, recovery=f"{round(bound * 1e3)}ms"
    )
    hosts = SupervisedSettings(
        pipeline=write_pipeline(settings.work / "visits.py", asked),
        work=settings.work / "hosts",
        scheme=None,
        checkpoint=_CHECKPOINT,
        detection=_DETECTION,
        calm=_CALM,
    )
    settings.say(f"real hosts for {minutes:g} min, to recover within {bound:g} s")
    with supervised(hosts, lambda text: None) as running:
        running.until(lambda: bool(running.hear().commits), "a beginning")
        log = _watch(running, asked.tide, 60 * minutes, settings)
    return ControllerPart(
        name=_NAME,
        rows=[figures(log, bound)],
        bars=judged(log, bound),
        notes=_notes(minutes, bound),
        draw=lambda figure: draw(figure, log, bound),
        also={
            "samples": [asdict(sample) for sample in log.samples],
            "kills": [asdict(kill) for kill in log.hits],
            "decisions": log.decisions,
        },
    )


def _watch(running: SupervisedHosts, tide: Tide, seconds: float, settings: Settings) -> HostsTimeline:
    """Look once a second, and kill the primary now and then, when there is a secondary that is ready."""
    log, began, next_kill = HostsTimeline(), time.time(), _KILL_EVERY
    shown = ""
    while (at := time.time() - began) < seconds:
        agreed = running.look()
        log.samples.append(_sample(agreed.notes, agreed.seats.scheme.name, at, tide))
        log.note(agreed.notes.decisions, began)
        if log.samples[-1].scheme != shown:
            shown = log.samples[-1].scheme
            settings.say(f"{at:.0f} s: {shown}, {tide.rate(at):,.0f} visits/s")
        if at >= next_kill and running.settled(agreed.seats.scheme):
            log.hits.append(_hit(running, began))
            settings.say(f"{at:.0f} s: kill -9, no output for {log.hits[-1].seconds:.2f} s")
            next_kill = at + _KILL_EVERY
        time.sleep(1.0)
    return log


def _sample(notes: FragmentNotes, scheme: str, at: float, tide: Tide) -> SchemeSample:

    predicted, state, money, active = notes.predicted.get(scheme), None, None, None
    if (metrics := notes.metrics) is not None:
        state = metrics.state_bytes
        money, active = (
            recovery_cost(candidate, metrics, Prices()).money
            for candidate in (wheel.scheme_of(scheme), ACTIVE_REPLICATION)
        )
    return SchemeSample(at, tide.rate(at), scheme, predicted, state, money, active)


def _hit(running: SupervisedHosts, began: float) -> PrimaryKill:
    killed = running.kill_primary()

    def noted() -> RecoveryNote | None:
        return next((note for note in running.look().notes.recoveries if note.at > killed), None)

    running.until(lambda: noted() is not None, "a recovery")
    running.until(lambda: running.hear().commits_after(killed) >= _COMMITS_AFTER, "output")
    recovery, tale = noted(), running.tale
    assert recovery is not None
    gap = tale.gap(killed, tale.commits[-1]) or recovery.seconds
    running.bring_back()
    return PrimaryKill(killed - began, recovery.scheme, gap, recovery.predicted, recovery.at_worst, recovery.replayed)


def figures(log: HostsTimeline, bound: float) -> dict[str, Any]:
    """The row of the run."""
    spent = [(sample.money, sample.active_money) for sample in log.samples if sample.money and sample.active_money]
    seconds = {sample.scheme: 0 for sample in log.samples}
    for sample in log.samples:
        seconds[sample.scheme] += 1
    off = sorted(abs(kill.predicted / kill.seconds - 1) for kill in log.hits if kill.predicted)
    return {
        "load": "tide",
        "guarantee": f"{bound:g} s",
        "recovery_s": bound,
        "moves": log.moves,
        "kills": len(log.hits),
        "broken": sum(kill.seconds > bound for kill in log.hits),
        "worst_recovery_s": max((kill.seconds for kill in log.hits), default=None),
        "predicted_off": off[len(off) // 2] if off else None,
        "money_per_h": sum(own for own, _ in spent) / len(spent) if spent else None,
        "cost_over_active": sum(own for own, _ in spent) / sum(other for _, other in spent) if spent else None,
        "mostly": max(seconds, key=lambda name: seconds[name]) if seconds else None,
        "seconds": seconds,
    }


def judged(log: HostsTimeline, bound: float) -> list[Bar]:
    row = figures(log, bound)
    return [
        at_most(
            f"real hosts: kills of {row['kills']} after which there was no output for more than {bound:g} s",
            row["broken"],
            0,
        ),
        at_least("real hosts: kills that were recovered from", row["kills"], 1),
        at_least("real hosts: moves along the wheel", row["moves"], 1),
        at_most("real hosts: money over that of active replication all the time", row["cost_over_active"], 1.0),
    ]


def _notes(minutes: float, bound: float) -> list[str]:
    low, high = min(rate for _, rate in _STEPS), max(rate for _, rate in _STEPS)
    return [
        f"Real: two hosts for {minutes:g} min at {low:,.0f} to {high:,.0f} visits/s, with users who come anew, and kill"
        f" -9 of the primary about every {_KILL_EVERY:g} s, as soon as a secondary is ready; {bound:g} s are asked for,"
        f" and a slower scheme is taken after {_CALM:g} s of safety. `broken` counts kills after which there was no"
        " output for longer than that, noticing them included. Both hosts share the cores of this machine, and a"
        " host that is started again takes them from the other.",
    ]


def draw(figure: SubFigure, log: HostsTimeline, bound: float) -> None:

    load, scheme, recovery = figure.subplots(3, 1, sharex=True)
    times = [sample.at / 60 for sample in log.samples]
    load.plot(times, [sample.rate / 1e3 for sample in log.samples], color=COLOURS[0])
    load.set_ylabel("thousand rows/s")
    state = load.twinx()
    state.plot(times, [None if sample.state_bytes is None else sample.state_bytes / 1e6 for sample in log.samples],
               color=COLOURS[1])  # fmt: skip
    state.set_ylabel("state, MB")
    state.grid(visible=False)
    names = [known.name for known in wheel.SCHEMES]
    scheme.step(times, [names.index(sample.scheme) for sample in log.samples], where="post", color=COLOURS[2])
    scheme.set_yticks(range(len(names)), names, fontsize=7)
    scheme.set_ylim(len(names) - 0.5, -0.5)
    recovery.plot(times, [sample.predicted for sample in log.samples], color=COLOURS[1], linewidth=1, label="at worst")
    hits = [kill.at / 60 for kill in log.hits]
    recovery.scatter(hits, [kill.seconds for kill in log.hits], color=COLOURS[0], zorder=3, label="measured")
    recovery.scatter(hits, [kill.predicted for kill in log.hits], marker="_", s=120, color="black", zorder=3,
                     label="predicted")  # fmt: skip
    recovery.axhline(bound, color=COLOURS[3], linestyle="--", label="guaranteed")
    for axes in (scheme, recovery):
        for at in hits:
            axes.axvline(at, color="red", linestyle=":", linewidth=0.8)
    recovery.set_ylabel("recovery, s")
    recovery.set_xlabel("minutes; red: kill -9")
    recovery.set_ylim(bottom=0)
    recovery.legend(fontsize=7, ncols=2)
