"""What hosts tell is among the events of the store, under the pipeline that a fragment is of."""

from __future__ import annotations

from pathlib import Path

from holdfast.replica.host_events import (
    EpochRun,
    FragmentTakenOver,
    HostEvent,
    HostReady,
    OutputGap,
    ReplicaTrouble,
    SchemeDecided,
)
from holdfast.replica.host_watch import also_logged
from holdfast.watch.event_log import EventLog
from holdfast.watch.event_reader import read_events
from holdfast.watch.pipeline_description import DescribedPipeline, keep_description


def test_events_of_hosts_are_kept_in_the_store(tmp_path: Path) -> None:
    keep_description(tmp_path, DescribedPipeline(pipeline="shop.eu", at=1.0, fragments=("shop.eu.paid", "shop.eu.out")))
    own: list[HostEvent] = []
    told: list[HostEvent] = [
        HostReady(3),
        SchemeDecided("shop.eu.paid", "active standby", "it would take too long"),
        FragmentTakenOver("shop.eu.out", 0.7, 2, "active standby"),
        OutputGap("shop.eu.out", "active standby", 1.5, 1.0),
        ReplicaTrouble("shop.eu.paid", "the disk is full"),
        EpochRun("shop.eu.paid", 4, 10, 0.1),
    ]
    with EventLog(tmp_path, "host-a") as log:
        emit = also_logged(own.append, log, tmp_path, "a", lambda: 5.0)
        for event in told:
            emit(event)
    assert own == told
    found = [(event.kind, event.pipeline, event.fragment, event.host) for event in read_events(tmp_path)]
    assert found == [
        ("host", "", "", "a"),
        ("decision", "shop.eu", "shop.eu.paid", "a"),
        ("takeover", "shop.eu", "shop.eu.out", "a"),
        ("gap", "shop.eu", "shop.eu.out", "a"),
        ("error", "shop.eu", "shop.eu.paid", "a"),
    ]
