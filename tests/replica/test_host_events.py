"""The lines of a host's events: programs that watch hosts read them by these names."""

from __future__ import annotations

import json
from typing import get_args

import msgspec
import pytest

from holdfast.replica.host_events import (
    CommandGiven,
    ConfigurationChosen,
    EpochRun,
    FragmentTakenOver,
    HostEnded,
    HostEvent,
    HostLeft,
    HostReady,
    HostStarted,
    OutputGap,
    ReplicaCommitted,
    ReplicaLoaded,
    ReplicaPrepared,
    ReplicaRecovered,
    ReplicaTrouble,
    SchemeDecided,
    SessionOpened,
    event_json,
    event_text,
)

LINES: dict[HostEvent, str] = {
    HostStarted(): '"started", %s',
    SessionOpened(): '"session", %s',
    HostReady(7): '"ready", %s, "incarnation": 7',
    HostLeft("nobody"): '"exit", %s, "reason": "nobody"',
    HostEnded(): '"ended", %s',
    ReplicaLoaded("f", 0.5, "LEAD"): '"loaded", %s, "fragment": "f", "seconds": 0.5, "role": "LEAD"',
    ReplicaTrouble("f", "no"): '"trouble", %s, "fragment": "f", "text": "no"',
    EpochRun("f", 3, 9, 0.1): '"processed", %s, "fragment": "f", "epoch": 3, "rows": 9, "cpu": 0.1',
    ReplicaCommitted("f", 3, 1.0, 2.0, 9): (
        '"commit", %s, "fragment": "f", "epoch": 3, "started": 1.0, "committed": 2.0, "rows": 9'
    ),
    FragmentTakenOver("f", 0.5, 2, "deployed"): (
        '"takeover", %s, "fragment": "f", "seconds": 0.5, "replayed": 2, "scheme": "deployed"'
    ),
    OutputGap("f", "deployed", 0.5, 0.25): (
        '"gap", %s, "fragment": "f", "scheme": "deployed", "seconds": 0.5, "noticed": 0.25'
    ),
    ReplicaPrepared("f", "deployed"): '"prepared", %s, "fragment": "f", "scheme": "deployed"',
    SchemeDecided("f", None, "why"): '"decision", %s, "fragment": "f", "to": null, "reason": "why"',
    ConfigurationChosen("High", "why", 0.5): '"configuration", %s, "to": "High", "reason": "why", "seconds": 0.5',
    CommandGiven("f", 4, "a, b"): '"command", %s, "fragment": "f", "order": 4, "active": "a, b"',
}
RECOVERED = ReplicaRecovered("f", "LEAD", {"load": 0.5}, 0.25, 2)
RECOVERED_LINE = (
    '"recovered", %s, "fragment": "f", "role": "LEAD", "phases": {"load": 0.5}, "loading": 0.25, "replayed": 2'
)


@pytest.mark.parametrize(("event", "line"), [*LINES.items(), (RECOVERED, RECOVERED_LINE)])
def test_an_event_is_a_line_with_the_host_its_process_and_the_time(event: HostEvent, line: str) -> None:
    written = event_json(event, "a", 12, 34.5)
    assert written == '{"event": ' + line % '"host": "a", "pid": 12, "at": 34.5' + "}"
    facts = {name: value for name, value in json.loads(written).items() if name not in ("host", "pid", "at")}
    assert msgspec.convert(facts, HostEvent) == event  # type: ignore[arg-type]


def test_every_event_has_a_line_that_is_tested() -> None:
    assert {type(event) for event in [*LINES, RECOVERED]} == set(get_args(HostEvent))


def test_the_log_has_the_kind_and_the_facts() -> None:
    text = "takeover fragment=f seconds=0.5 replayed=2 scheme=deployed"
    assert event_text(FragmentTakenOver("f", 0.5, 2, "deployed")) == text
    assert event_text(HostStarted()) == "started"
