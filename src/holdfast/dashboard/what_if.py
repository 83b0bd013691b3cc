"""What would happen: this process, a host or a worker dies now, or twice as much comes in. Pure.

Where hosts run a fragment, the figures are the controller's own predictions. Where one process does, they are reckoned
from the last commits: what was planned and not committed, or not durable yet, is run again as fast as it ran. The loss
of a worker is predicted by the last drills of the fragment, if there were any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.dashboard.fleet_view import RECENT_SECONDS, recent_figures
from holdfast.dashboard.store_watch import Snapshot
from holdfast.plurals import counted
from holdfast.replica.prediction import Prices
from holdfast.spans import duration
from holdfast.watch.event_kinds import DrillDone, EpochsDone, RecoveryDone

__all__ = ["Outlook", "outlooks"]

_STEP_IN_SECONDS = 0.25
"""Until a spare stands in for a lost worker, where no drill has measured it."""
_DRILLS = 3


@dataclass(frozen=True, slots=True)
class Outlook:
    """A thing that may happen: what is predicted, and what that rests on. `seconds` is the gap or the recovery,
    `busy` the part of the time that epochs would take, `cost` what it costs to run rows again. A drill can `kill` a
    worker or a host to see."""

    what: str
    fragment: str
    seconds: float | None
    epochs: int | None
    rows: int | None
    busy: float | None
    kept: bool | None
    text: str
    cost: float | None = None
    kill: str = ""


def outlooks(snapshot: Snapshot, pipeline: str) -> list[Outlook]:
    """For each fragment, the loss of who runs it, that of a worker, and twice the load."""
    described = snapshot.descriptions.get(pipeline)
    bound = None if described is None else described.guarantee.recovery
    found = []
    for part in snapshot.pipelines.get(pipeline, ()):
        if part in snapshot.statuses:
            found.append(_loss(snapshot, pipeline, part, bound))
            found.append(_worker_loss(snapshot, pipeline, part, bound))
            found.append(_doubled(snapshot, pipeline, part))
    return found


def _loss(snapshot: Snapshot, pipeline: str, fragment: str, bound: float | None) -> Outlook:
    status, agreed = snapshot.statuses[fragment], snapshot.agreed.get(fragment)
    own = [event for event in snapshot.epochs(pipeline, 60.0) if event.fragment == fragment]
    again = len(status.planned) + (status.epoch - status.replay_from if status.replay_from is not None else 0)
    rows, cost = _again(own, again)
    if agreed is not None and not agreed.ended:
        scheme = agreed.seats.scheme.name
        seconds = agreed.notes.predicted.get(scheme)
        host = agreed.seats.primary.host if agreed.seats.primary is not None else "the primary"
        text = f"under {scheme}, from what its controller has measured"
        return Outlook(
            f"host {host} dies", fragment, seconds, again, rows, None, _within(seconds, bound),
            text if seconds is not None else f"{scheme}: the controller has measured nothing yet", cost, "host",
        )  # fmt: skip
    last = next((event for event in snapshot.of(fragment, ("recovery",)) if isinstance(event, RecoveryDone)), None)
    replay = again * (sum(event.p50 for event in own) / len(own)) if own else None
    rest = sum(seconds for name, seconds in last.phases.items() if name != "replay") if last is not None else 0.0
    seconds = None if replay is None else replay + rest
    ground = "and the other phases as in its last recovery" if last is not None else "state is read on top of that"
    return Outlook(
        "the process dies", fragment, seconds, again, rows, None, _within(seconds, bound),
        f"{counted(again, 'epoch')} would run again, as fast as epochs ran in the last minute, {ground}; once the"
        " process is restarted",
        cost,
    )  # fmt: skip


def _again(own: Sequence[EpochsDone], epochs: int) -> tuple[int, float]:
    """The rows of so many epochs, and what it costs to run them, by those of the last minute."""
    rows = sum(event.rows for event in own)
    cpu = sum(share.cpu for event in own for shares in (event.reading, *event.work.values()) for share in shares)
    part = epochs / max(1, sum(event.count for event in own))
    return round(part * rows), part * cpu * Prices().cpu_hour / 3600


def _worker_loss(snapshot: Snapshot, pipeline: str, fragment: str, bound: float | None) -> Outlook:
    status = snapshot.statuses[fragment]
    own = [event for event in snapshot.epochs(pipeline, 60.0) if event.fragment == fragment]
    again = max(1, len(status.planned))
    rows, cost = _again(own, again)
    drills = [
        event.seconds
        for event in snapshot.of(fragment, ("drill",))
        if isinstance(event, DrillDone) and event.kill == "worker" and event.fragment == fragment
    ][:_DRILLS]
    if drills:
        seconds, ground = sum(drills) / len(drills), "as in its last drill" + ("s" if len(drills) > 1 else "")
    elif own:
        p50 = sum(event.p50 for event in own) / len(own)
        seconds = again * p50 + _STEP_IN_SECONDS
        ground = f"as fast as epochs ran in the last minute; a spare is assumed to take over after {_STEP_IN_SECONDS} s"
    else:
        return Outlook("a worker dies", fragment, None, None, None, None, None, "nothing ran in the last minute",
                       kill="worker")  # fmt: skip
    return Outlook(
        "a worker dies", fragment, seconds, again, rows, None, _within(seconds, bound),
        f"{counted(again, 'epoch')} in flight would run again, {ground}", cost, "worker",
    )  # fmt: skip


def _doubled(snapshot: Snapshot, pipeline: str, fragment: str) -> Outlook:
    own = [event for event in snapshot.epochs(pipeline, RECENT_SECONDS) if event.fragment == fragment]
    recent = recent_figures(own, snapshot.now)
    cpu = [
        max((part.cpu for part in parts), default=0.0)
        for event in own
        for parts in (event.reading, *event.work.values())
    ]
    seconds = max(1.0, min(RECENT_SECONDS, snapshot.now - min((event.since for event in own), default=0.0)))
    busy = 2 * sum(cpu) / seconds if own else None
    agreed, predicted = snapshot.agreed.get(fragment), None
    if agreed is not None and agreed.notes.metrics is not None:
        predicted = agreed.notes.calibration.seconds(agreed.notes.metrics)[agreed.seats.scheme].at(2.0)
    kept = None if busy is None else busy < 1
    text = "nothing was read in the last seconds"
    if busy is not None:
        verdict = "it keeps up" if kept else "it falls behind: give it more partitions"
        text = f"at {2 * recent.rows:,.0f} rows/s its busiest partitions use {busy:.0%} of a CPU: {verdict}"
        text += "" if predicted is None else f"; a takeover would take {duration(predicted)}"
    return Outlook("twice the input", fragment, predicted, None, None, busy, kept, text)


def _within(seconds: float | None, bound: float | None) -> bool | None:
    return None if seconds is None or bound is None else seconds <= bound
