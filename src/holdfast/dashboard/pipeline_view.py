"""Everything about one pipeline that its screens show, in one answer. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.dashboard.fleet_view import FleetRow, SourceFigures, fleet, source_figures
from holdfast.dashboard.graph_view import GraphView, graph_of
from holdfast.dashboard.guarantee_view import GuaranteeView, guarantee_of
from holdfast.dashboard.store_watch import Snapshot
from holdfast.dashboard.what_if import Outlook, outlooks
from holdfast.replica.schemes import wheel
from holdfast.replica.shadow_report import ShadowReport
from holdfast.ui.pipeline_status import PipelineStatus
from holdfast.ui.stream_status import StreamStatus
from holdfast.watch.event_kinds import EpochTrace, LoggedEvent, RecoveryDone, TakeoverDone
from holdfast.watch.event_table import KINDS, event_details

__all__ = [
    "HostLine", "PipelineView", "RecoveryLine", "ShadowLine", "ShownEvent", "WheelStep", "pipeline_view",
    "shown_events",
]  # fmt: skip

_MOST = 100
_FEW = 30
_TRACED_SECONDS = 3_600.0
_LOST = ("late", "dead")
_SHOWN = tuple(kind for kind in KINDS if kind != "epochs")


@dataclass(frozen=True, slots=True)
class ShownEvent:
    """An event with its sentence."""

    at: float
    kind: str
    pipeline: str
    fragment: str
    host: str
    epoch: int | None
    text: str
    details: str


@dataclass(frozen=True, slots=True)
class RecoveryLine:
    """A recovery by its phases."""

    at: float
    fragment: str
    host: str
    epoch: int | None
    seconds: float
    phases: dict[str, float]
    units: int
    bytes: int
    replayed: int


@dataclass(frozen=True, slots=True)
class HostLine:
    """A host and the fragment it serves: which seat it has, how often it has beaten, what it is ready for."""

    host: str
    fragment: str
    seat: str
    beats: int
    ready: str
    scheme: str


@dataclass(frozen=True, slots=True)
class ShadowLine:
    """New code that follows, or has followed, with its verdict in words."""

    report: ShadowReport
    verdict: str


@dataclass(frozen=True, slots=True)
class WheelStep:
    """A scheme: its neighbours on the wheel are one step away."""

    scheme: str
    summary: str


@dataclass(frozen=True, slots=True)
class PipelineView:
    """A pipeline as all its screens show it."""

    now: float
    row: FleetRow
    graph: GraphView
    sources: tuple[SourceFigures, ...]
    statuses: dict[str, PipelineStatus]
    streams: dict[str, StreamStatus]
    guarantee: GuaranteeView
    recoveries: tuple[RecoveryLine, ...]
    takeovers: tuple[ShownEvent, ...]
    scaling: tuple[ShownEvent, ...]
    hosts: tuple[HostLine, ...]
    what_if: tuple[Outlook, ...]
    drills: tuple[ShownEvent, ...]
    events: tuple[ShownEvent, ...]
    """All but those of epochs, and of late and dead rows."""
    lost: tuple[ShownEvent, ...]
    """Of late and dead rows."""
    traces: dict[str, tuple[EpochTrace, ...]]
    """By fragment, the slowest epochs of the last seconds that had any, newest first."""
    shadows: tuple[ShadowLine, ...]
    wheel: tuple[WheelStep, ...]
    """The six schemes in the order of the wheel."""


def pipeline_view(snapshot: Snapshot, pipeline: str) -> PipelineView | None:
    """None if the store does not know it."""
    row = next((row for row in fleet(snapshot) if row.pipeline == pipeline), None)
    if row is None:
        return None
    events = snapshot.of(pipeline, _SHOWN)
    recoveries = [event for event in events if isinstance(event, RecoveryDone)]
    return PipelineView(
        now=snapshot.now,
        row=row,
        graph=graph_of(snapshot, pipeline),
        sources=tuple(source_figures(snapshot, pipeline)),
        statuses={part: snapshot.statuses[part] for part in row.fragments if part in snapshot.statuses},
        streams={name: status for name, status in snapshot.streams.items() if name.startswith(f"{pipeline}.")},
        guarantee=guarantee_of(snapshot, pipeline),
        recoveries=tuple(
            RecoveryLine(
                event.at, event.fragment, event.host, event.epoch, event.seconds, dict(event.phases), event.units,
                event.bytes, event.replayed,
            )
            for event in recoveries[:_MOST]
        ),
        takeovers=shown_events([event for event in events if isinstance(event, TakeoverDone)][:_MOST]),
        scaling=shown_events([event for event in events if event.kind == "scale" or _about_scale(event)][:_MOST]),
        hosts=tuple(_hosts(snapshot, row.fragments)),
        what_if=tuple(outlooks(snapshot, pipeline)),
        drills=shown_events([event for event in events if event.kind == "drill"][:_MOST]),
        events=shown_events([event for event in events if event.kind not in _LOST][:_MOST]),
        lost=shown_events([event for event in events if event.kind in _LOST][:_FEW]),
        traces=_traces(snapshot, pipeline),
        shadows=tuple(ShadowLine(report, report.verdict) for report in snapshot.shadows.get(pipeline, ())[:_FEW]),
        wheel=tuple(WheelStep(scheme.name, scheme.summary) for scheme in wheel.SCHEMES),
    )  # fmt: skip


def shown_events(events: list[LoggedEvent] | list[TakeoverDone]) -> tuple[ShownEvent, ...]:
    """Events for people."""
    return tuple(
        ShownEvent(
            event.at, event.kind, event.pipeline, event.fragment, event.host, event.epoch, event.text,
            event_details(event),
        )
        for event in events
    )  # fmt: skip


def _traces(snapshot: Snapshot, pipeline: str) -> dict[str, tuple[EpochTrace, ...]]:
    found: dict[str, list[EpochTrace]] = {}
    for event in reversed(snapshot.epochs(pipeline, _TRACED_SECONDS)):
        if event.slowest is not None and len(found.setdefault(event.fragment, [])) < _FEW:
            found[event.fragment].append(event.slowest)
    return {fragment: tuple(traces) for fragment, traces in found.items()}


def _about_scale(event: LoggedEvent) -> bool:
    return event.kind == "action" or getattr(event, "about", "") == "scaling"


def _hosts(snapshot: Snapshot, fragments: tuple[str, ...]) -> list[HostLine]:
    found = []
    for fragment in fragments:
        agreed = snapshot.agreed.get(fragment)
        if agreed is None:
            continue
        seats = agreed.seats
        for host, member in sorted(seats.members.items()):
            first, second = seats.primary, seats.secondary
            seat = "primary" if first and first.host == host else "secondary" if second and second.host == host else ""
            ready = "" if member.ready is None else member.ready.name
            found.append(HostLine(host, fragment, seat, member.beats, ready, seats.scheme.name))
    return found
