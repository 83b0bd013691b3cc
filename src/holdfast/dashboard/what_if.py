"""What would happen: this process or host dies now, or twice as much comes in. Pure.

Where hosts run a fragment, the figures are the controller's own predictions. Where one process does, they are reckoned
from the last commits: what was planned and not committed, or not durable yet, is run again as fast as it ran.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.dashboard.fleet_view import RECENT_SECONDS, recent_figures
from holdfast.dashboard.store_watch import Snapshot
from holdfast.plurals import counted
from holdfast.spans import duration
from holdfast.watch.event_kinds import RecoveryDone

__all__ = ["Outlook", "outlooks"]


@dataclass(frozen=True, slots=True)
class Outlook:
    """A thing that may happen: what is predicted, and what that rests on. `seconds` is the gap or the recovery,
    `busy` the part of the time that epochs would take."""

    what: str
    fragment: str
    seconds: float | None
    epochs: int | None
    rows: int | None
    busy: float | None
    kept: bool | None
    text: str


def outlooks(snapshot: Snapshot, pipeline: str) -> list[Outlook]:
    """For each fragment, the loss of who runs it, and twice the load."""
    described = snapshot.descriptions.get(pipeline)
    bound = None if described is None else described.guarantee.recovery
    found = []
    for part in snapshot.pipelines.get(pipeline, ()):
        if part in snapshot.statuses:
            found += [_loss(snapshot, pipeline, part, bound), _doubled(snapshot, pipeline, part)]
    return found


def _loss(snapshot: Snapshot, pipeline: str, fragment: str, bound: float | None) -> Outlook:
    status, agreed = snapshot.statuses[fragment], snapshot.agreed.get(fragment)
    own = [event for event in snapshot.epochs(pipeline, 60.0) if event.fragment == fragment]
    again = len(status.planned) + (status.epoch - status.replay_from if status.replay_from is not None else 0)
    per_epoch = sum(event.rows for event in own) / max(1, sum(event.count for event in own))
    rows = round(again * per_epoch)
    if agreed is not None and not agreed.ended:
        scheme = agreed.seats.scheme.name
        seconds = agreed.notes.predicted.get(scheme)
        host = agreed.seats.primary.host if agreed.seats.primary is not None else "the primary"
        text = f"under {scheme}, by what its controller has measured"
        return Outlook(
            f"host {host} dies", fragment, seconds, again, rows, None, _within(seconds, bound),
            text if seconds is not None else f"{scheme}: the controller has measured nothing yet",
        )  # fmt: skip
    last = next((event for event in snapshot.of(fragment, ("recovery",)) if isinstance(event, RecoveryDone)), None)
    replay = again * (sum(event.p50 for event in own) / len(own)) if own else None
    rest = sum(seconds for name, seconds in last.phases.items() if name != "replay") if last is not None else 0.0
    seconds = None if replay is None else replay + rest
    ground = "and the other phases as in its last recovery" if last is not None else "state is read on top of that"
    return Outlook(
        "the process dies", fragment, seconds, again, rows, None, _within(seconds, bound),
        f"{counted(again, 'epoch')} would run again, as fast as epochs ran in the last minute, {ground}; from when the"
        " process is started again",
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
