"""What hosts tell, as events of the store: the same facts as in a host's own log."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from msgspec import structs

from holdfast.replica.host_events import (
    CommandGiven,
    ConfigurationChosen,
    Emit,
    FragmentTakenOver,
    HostEnded,
    HostEvent,
    HostLeft,
    HostReady,
    HostStarted,
    OutputGap,
    ReplicaPrepared,
    ReplicaTrouble,
    SchemeDecided,
)
from holdfast.watch.event_kinds import (
    DecisionMade,
    ErrorSeen,
    GapMeasured,
    HostChanged,
    LoggedEvent,
    TakeoverDone,
)
from holdfast.watch.event_log import EventLog
from holdfast.watch.pipeline_description import kept_descriptions

__all__ = ["also_logged", "logged_event"]


def also_logged(emit: Emit, log: EventLog, store: Path, host: str, clock: Callable[[], float] = time.time) -> Emit:
    """What a host does with its events: what it did, and into the log of the store. Whose a fragment is stands in the
    descriptions of the pipelines."""
    owners: dict[str, str] = {}

    def told(event: HostEvent) -> None:
        emit(event)
        fragment = getattr(event, "fragment", "")
        made = logged_event(event, host, clock(), owners.get(fragment, fragment))
        if made is None:
            return
        if fragment and fragment not in owners:
            known = kept_descriptions(store).items()
            owners.update({part: pipeline for pipeline, described in known for part in described.fragments})
            made = structs.replace(made, pipeline=owners.get(fragment, fragment))
        log.put(made)

    return told


def logged_event(event: HostEvent, host: str, at: float, pipeline: str = "") -> LoggedEvent | None:
    """An event of a host as one of the store; None for what the observers of its replicas tell."""
    fragment = getattr(event, "fragment", "")
    match event:
        case HostStarted():
            return HostChanged(at=at, host=host, state="started")
        case HostReady():
            return HostChanged(at=at, host=host, state="is ready")
        case HostLeft(reason=reason):
            return HostChanged(at=at, host=host, state="leaves", reason=reason)
        case HostEnded():
            return HostChanged(at=at, host=host, state="ended")
        case ReplicaPrepared(scheme=scheme):
            return HostChanged(
                at=at, host=host, pipeline=pipeline, fragment=fragment, state="is prepared", reason=scheme
            )
        case ReplicaTrouble(text=text):
            return ErrorSeen(at=at, host=host, pipeline=pipeline, fragment=fragment, message=text)
        case FragmentTakenOver(seconds=seconds, replayed=replayed, scheme=scheme):
            return TakeoverDone(
                at=at, host=host, pipeline=pipeline, fragment=fragment, seconds=seconds, replayed=replayed,
                scheme=scheme,
            )  # fmt: skip
        case OutputGap(scheme=scheme, seconds=seconds, noticed=noticed):
            return GapMeasured(
                at=at, host=host, pipeline=pipeline, fragment=fragment, scheme=scheme, seconds=seconds,
                noticed=noticed,
            )  # fmt: skip
        case SchemeDecided(to=to, reason=reason):
            return DecisionMade(
                at=at, host=host, pipeline=pipeline, fragment=fragment, about="scheme", to=to or "", reason=reason
            )
        case ConfigurationChosen(to=to, reason=reason):
            return DecisionMade(at=at, host=host, about="activation", to=to, reason=reason)
        case CommandGiven(active=active):
            return DecisionMade(
                at=at, host=host, pipeline=pipeline, fragment=fragment, about="activation", to=active,
                reason="the input configuration asks for these replicas",
            )  # fmt: skip
        case _:
            return None
