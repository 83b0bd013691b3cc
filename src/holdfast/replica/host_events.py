"""Events that a host reports about itself and its replicas while it runs.

An event is a line in the host's log, and a line of JSON if the host was started with `--events FILE`; programs that
watch hosts read the latter. So the tag and the fields of an event are its names in that file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeAlias

import msgspec

__all__ = [
    "CommandGiven",
    "ConfigurationChosen",
    "Emit",
    "EpochRun",
    "FragmentTakenOver",
    "HostEnded",
    "HostEvent",
    "HostLeft",
    "HostReady",
    "HostStarted",
    "OutputGap",
    "ReplicaCommitted",
    "ReplicaLoaded",
    "ReplicaPrepared",
    "ReplicaRecovered",
    "ReplicaTrouble",
    "SchemeDecided",
    "SessionOpened",
    "event_json",
    "event_text",
]


class _HostEvent(msgspec.Struct, frozen=True, tag_field="event"):
    """The base of all events."""


class HostStarted(_HostEvent, frozen=True, tag="started"):
    """The process runs; it has no session yet."""


class SessionOpened(_HostEvent, frozen=True, tag="session"):
    """The host has a Spark session."""


class HostReady(_HostEvent, frozen=True, tag="ready"):
    """The host can run replicas."""

    incarnation: int


class HostLeft(_HostEvent, frozen=True, tag="exit"):
    """The host leaves: it is no longer needed, or may not continue."""

    reason: str


class HostEnded(_HostEvent, frozen=True, tag="ended"):
    """The host has ended its epochs and closed its session."""


class ReplicaLoaded(_HostEvent, frozen=True, tag="loaded"):
    """A replica was built from its pipeline's file, which took these seconds."""

    fragment: str
    seconds: float
    role: str


class ReplicaRecovered(_HostEvent, frozen=True, tag="recovered"):
    """A replica has its state again. `loading` are the seconds of the phases that went into reading p-units."""

    fragment: str
    role: str
    phases: dict[str, float]
    loading: float
    replayed: int


class ReplicaTrouble(_HostEvent, frozen=True, tag="trouble"):
    """A replica has failed, and begins again."""

    fragment: str
    text: str


class EpochRun(_HostEvent, frozen=True, tag="processed"):
    """A replica has run an epoch, whoever has committed it. `rows` are those it has read."""

    fragment: str
    epoch: int
    rows: int
    cpu: float


class ReplicaCommitted(_HostEvent, frozen=True, tag="commit"):
    """A replica has committed an epoch. `rows` are those of its output."""

    fragment: str
    epoch: int
    started: float
    committed: float
    rows: int


class FragmentTakenOver(_HostEvent, frozen=True, tag="takeover"):
    """A replica has taken over the fragment from another host's."""

    fragment: str
    seconds: float
    replayed: int
    scheme: str


class OutputGap(_HostEvent, frozen=True, tag="gap"):
    """For how long readers have seen no output in a takeover; `noticed` of it until the failure was noticed."""

    fragment: str
    scheme: str
    seconds: float
    noticed: float


class ReplicaPrepared(_HostEvent, frozen=True, tag="prepared"):
    """A replica has what a scheme asks for."""

    fragment: str
    scheme: str


class SchemeDecided(_HostEvent, frozen=True, tag="decision"):
    """The controller of a fragment's scheme has decided; `to` is None where it only gives notice."""

    fragment: str
    to: str | None
    reason: str


class ConfigurationChosen(_HostEvent, frozen=True, tag="configuration"):
    """The input rates of a pipeline are now those of another input configuration."""

    to: str
    reason: str
    seconds: float


class CommandGiven(_HostEvent, frozen=True, tag="command"):
    """From now on these hosts (their names, with commas between them) run active replicas of the fragment."""

    fragment: str
    order: int
    active: str


HostEvent: TypeAlias = (
    HostStarted
    | SessionOpened
    | HostReady
    | HostLeft
    | HostEnded
    | ReplicaLoaded
    | ReplicaRecovered
    | ReplicaTrouble
    | EpochRun
    | ReplicaCommitted
    | FragmentTakenOver
    | OutputGap
    | ReplicaPrepared
    | SchemeDecided
    | ConfigurationChosen
    | CommandGiven
)
Emit: TypeAlias = Callable[[HostEvent], None]


def event_json(event: HostEvent, host: str, pid: int, at: float) -> str:
    """An event as a line of the file, with the host, its process and the time."""
    facts = msgspec.to_builtins(event)
    return json.dumps({"event": facts.pop("event"), "host": host, "pid": pid, "at": at, **facts})


def event_text(event: HostEvent) -> str:
    """An event as a line of the log: its kind and its facts."""
    facts = msgspec.to_builtins(event)
    return " ".join([facts.pop("event"), *(f"{name}={value}" for name, value in facts.items())])
