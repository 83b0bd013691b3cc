"""Figures over time, for curves: from the events of epochs, in at most some hundred steps. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.dashboard.store_watch import Snapshot
from holdfast.watch.event_kinds import EpochsDone

__all__ = ["Series", "series_of"]

_STEPS = 240
_LEAST_SECONDS = 60.0
_LEAD_SECONDS = 5.0
_BRIDGED = 3
"""Events come about once a second: so many steps without one are no gap."""
Curve = list[float | None]


@dataclass(frozen=True, slots=True)
class Series:
    """One value for each step, None where nothing was committed. Rows and bytes are per second, times in seconds."""

    step: float
    at: list[float]
    rows: Curve
    output_rows: Curve
    p50: Curve
    p99: Curve
    lag_rows: Curve
    state_bytes: Curve
    written_bytes: Curve
    phases: dict[str, Curve] = field(default_factory=dict)
    marks: list[tuple[float, str, str]] = field(default_factory=list)
    """What happened beside: when, which kind, and the text."""


_MARKED = ("started", "ended", "recovery", "takeover", "gap", "scale", "error", "drill", "action")


def series_of(snapshot: Snapshot, pipeline: str, seconds: float) -> Series:
    """The last `seconds` of a pipeline, all its fragments together: latency is that of the slowest of them."""
    epochs, end = snapshot.epochs(pipeline, seconds), snapshot.now
    if epochs and epochs[0].at > end - 0.9 * seconds:  # it began meanwhile
        seconds = max(_LEAST_SECONDS, end - epochs[0].since + _LEAD_SECONDS)
    step = max(1.0, seconds / _STEPS)
    steps = int(seconds / step)
    begin = end - steps * step
    found: list[list[EpochsDone]] = [[] for _ in range(steps)]
    for event in epochs:
        found[min(steps - 1, max(0, int((event.at - begin) / step)))].append(event)
    outside = any(event.entered for events in found for event in events)
    names = dict.fromkeys(name for events in found for event in events for name in event.phases)
    return Series(
        step=step,
        at=[begin + (number + 1) * step for number in range(steps)],
        rows=_bridged([_sum(events, "entered" if outside else "rows", step) for events in found], 0.0),
        output_rows=_bridged([_sum(events, "output_rows", step) for events in found], 0.0),
        p50=_bridged([max((event.p50 for event in events), default=None) for events in found]),
        p99=_bridged([max((event.p99 for event in events), default=None) for events in found]),
        lag_rows=_bridged([sum(_last(events, "lag")) if events else None for events in found]),
        state_bytes=_carried([_state(events) for events in found]),
        written_bytes=_bridged([_sum(events, "written_bytes", step) for events in found], 0.0),
        phases={name: _bridged([_mean(events, name) for events in found]) for name in names},
        marks=[(event.at, event.kind, event.text) for event in snapshot.of(pipeline, _MARKED) if event.at >= begin],
    )


def _bridged(curve: Curve, value: float | None = None) -> Curve:
    """Without gaps of a few steps: there is `value`, or what was before."""
    made = list(curve)
    last: int | None = None
    for number, known in enumerate(curve):
        if known is None:
            continue
        if last is not None and 1 < number - last <= _BRIDGED:
            made[last + 1 : number] = [curve[last] if value is None else value] * (number - last - 1)
        last = number
    return made


def _sum(events: list[EpochsDone], name: str, step: float) -> float | None:
    return sum(getattr(event, name) for event in events) / step if events else None


def _last(events: list[EpochsDone], name: str) -> list[int]:
    last = {event.fragment: event for event in events}
    return [rows for event in last.values() for rows in getattr(event, name).values()]


def _state(events: list[EpochsDone]) -> dict[str, int]:
    return {event.fragment: event.state_bytes for event in events}


def _carried(states: list[dict[str, int]]) -> Curve:
    """A fragment that commits nothing still has its state."""
    known: dict[str, int] = {}
    curve: Curve = []
    for state in states:
        known |= state
        curve.append(float(sum(known.values())) if known else None)
    return curve


def _mean(events: list[EpochsDone], phase: str) -> float | None:
    """Of one epoch, the fragments one after the other: that is how long a row takes."""
    by_fragment: dict[str, list[EpochsDone]] = {}
    for event in events:
        by_fragment.setdefault(event.fragment, []).append(event)
    if not by_fragment:
        return None
    return sum(
        sum(event.phases.get(phase, 0.0) * event.count for event in own) / sum(event.count for event in own)
        for own in by_fragment.values()
    )
