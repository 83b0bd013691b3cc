"""Hosts that run in one process, without Spark: the same host, on another platform."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

import polars as pl

import holdfast as hf
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.engine.options import RunOptions
from holdfast.meta import MetaStore
from holdfast.replica.deployment import deploy, deployment_of
from holdfast.replica.host import Host, HostSettings
from holdfast.replica.host_events import (
    EpochRun,
    HostEvent,
    HostReady,
    ReplicaCommitted,
    ReplicaLoaded,
    ReplicaTrouble,
)
from holdfast.replica.keeper import Timing
from holdfast.replica.schemes.active_replication import ACTIVE_REPLICATION
from holdfast.replica.seat_store import Agreement

ROWS = pl.DataFrame({"ts": range(600), "k": [number % 7 for number in range(600)]})


def test_two_hosts_run_a_cut_pipeline_to_its_end(tmp_path: Path) -> None:
    check_hosts(tmp_path, ("a", "b"))


def test_a_fragment_on_a_host_is_woken_by_what_another_one_writes_there(tmp_path: Path) -> None:
    """It would look for that once an hour."""
    check_hosts(tmp_path, ("a",), poll="1 hour")


def check_hosts(tmp_path: Path, names: tuple[str, ...], **given: str) -> None:
    """All rows come through hosts of these names, which end."""
    out = tmp_path / "out"

    def build(target: str = "") -> hf.Pipeline:
        pipeline = hf.Pipeline("p")
        rows = pipeline.source("rows", hf.source.memory(ROWS), event_time="ts", time_unit="s")
        counts = rows.persist("kept").key_by("k").window(hf.window.tumbling("60s")).agg(n=hf.count())
        counts.sink("out", hf.sink.ndjson(out, every="0s"))
        return pipeline

    meta = MetaStore(tmp_path, sync=False)
    options = RunOptions(store=tmp_path, least_rows=50, most_rows=50, tasks=1, durable=False, until_idle=True, **given)
    deployment = deployment_of(build(), "p", options, meta, ACTIVE_REPLICATION, "delta", names)
    agreement = Agreement(meta, "somebody", time.time)
    deploy(deployment, agreement, meta)
    events: list[HostEvent] = []
    hosts = [
        Host(
            HostSettings(
                name=name, store=tmp_path, volatile=tmp_path / name, timing=Timing(beat=0.05, detection=5.0), sync=False
            ),
            build,
            events.append,
        )
        for name in names
    ]
    threads = [threading.Thread(target=host.run, args=(InProcessPlatform(),), daemon=True) for host in hosts]
    for host, thread in zip(hosts, threads, strict=True):
        host.beat()
        thread.start()
    until = time.monotonic() + 120.0
    fragments = list(deployment.fragments)
    while time.monotonic() < until and not all(seen.ended for seen in agreement.look(fragments).values()):
        time.sleep(0.05)
    for host, thread in zip(hosts, threads, strict=True):
        host.stop()
        thread.join(60.0)
        assert not thread.is_alive()
    meta.close()
    assert not [event for event in events if isinstance(event, ReplicaTrouble)]
    assert {type(event) for event in events} >= {HostReady, ReplicaLoaded, ReplicaCommitted, EpochRun}
    found = Counter(
        (row["k"], row["window_start"], row["n"])
        for place in out.glob("epoch=*/*.ndjson")
        for row in pl.read_ndjson(place.read_bytes()).to_dicts()
    )
    plain = ROWS.group_by("k", pl.col("ts") // 60 * 60).len().rows()
    assert found == Counter(plain)
