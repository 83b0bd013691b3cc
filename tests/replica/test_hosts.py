"""Hosts that are processes: killed with all they have started, stopped and woken up, while the wheel turns.

The tests share one run, on which each leaves its mark; the last one lets its input end and looks at the output.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from holdfast.chaos.fleet import Fleet
from holdfast.chaos.gate import Gate
from holdfast.chaos.host_view import HostView
from holdfast.chaos.hosted import GATE
from holdfast.chaos.victim import PIPELINE, VictimSettings, bounded_input
from holdfast.connect.base import Slice
from holdfast.connect.file_sink import read_output
from holdfast.errors import InvalidTransitionError
from holdfast.replica.schemes import Scheme, path
from holdfast.store import volatile_parent
from holdfast.workloads.oracle import first_difference, oracle
from holdfast.workloads.queries import query

QUERY, ROWS = "keyed", 500
DETECTION = 2.0
PATIENCE = 300.0
LONG = pytest.mark.skipif(not os.environ.get("HOLDFAST_FUZZ"), reason="long; test_replica_runs.py has its core")


@dataclass
class Hosts:
    """The run that tests share."""

    fleet: Fleet
    view: HostView
    dead: dict[str, int] = field(default_factory=dict)

    def until(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            self.fleet.ended()  # raises what it failed with
            assert time.monotonic() < deadline, f"no {what}:\n{self.fleet.log_tail()}"
            time.sleep(0.02)

    def until_whole(self) -> None:
        self.until(lambda: self.view.whole(self.dead), "hosts that are ready")

    def until_committed(self, more: int = 2) -> None:
        wanted = self.view.committed() + more
        self.until(lambda: self.view.committed() >= wanted, "commit")

    def be(self, scheme: Scheme) -> None:
        self.until_whole()
        self.view.turn(list(path(self.view.scheme, scheme)))
        self.until_whole()
        self.until_committed()

    def kill(self, host: str) -> None:
        self.dead |= {host: self.view.incarnations()[host]}
        self.fleet.kill([host], lose=True)

    def notes(self) -> Mapping[str, Any]:
        return self.view.agreed()[PIPELINE].notes

    def gate(self) -> Path:
        return Path(self.fleet.settings.home) / GATE


@contextmanager
def serving(place: Path, target: str | None = None) -> Iterator[Hosts]:
    """Two hosts of a pipeline; nothing of them is left at the end."""
    settings = VictimSettings(
        query=query(QUERY).name, rows=0, epoch_rows=ROWS, pause=0.0, home=str(place / "run"), input=str(place / "input")
    )
    volatile = volatile_parent() / f"hf-hosts-{uuid.uuid4().hex}"
    arguments = ["--detection", str(DETECTION), "--no-durable"]
    fleet = Fleet(settings, volatile, place / "t", arguments, *([] if target is None else [target]))
    view = HostView(settings.store, PIPELINE)
    run = Hosts(fleet, view)
    Gate(0.1).write(run.gate())
    try:
        fleet.start(Scheme.ACTIVE_STANDBY.value)
        run.until(lambda: bool(view.agreed()), "seats")
        yield run
    finally:
        fleet.kill_all()
        view.close()


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with serving(tmp_path_factory.mktemp("hosts")) as run:
        yield run


MORE = [Scheme.ACTIVE_REPLICATION, Scheme.PASSIVE_REPLICATION]
KILLED = [Scheme.ACTIVE_STANDBY, *(MORE if os.environ.get("HOLDFAST_FUZZ") else [])]


@pytest.mark.parametrize("scheme", KILLED, ids=lambda each: each.name)
def test_the_other_host_goes_on_when_the_primary_is_killed(hosts: Hosts, scheme: Scheme) -> None:
    hosts.be(scheme)
    first = hosts.view.primary()
    assert first is not None
    hosts.kill(first)
    hosts.until_committed()
    hosts.until(lambda: hosts.view.primary() not in (None, first), "another primary")
    other = hosts.view.primary()
    hosts.until_whole()
    assert hosts.view.primary() == other, "who comes back is the secondary"


def test_a_primary_that_was_stopped_commits_nothing_when_it_wakes_up(hosts: Hosts) -> None:
    hosts.be(Scheme.ACTIVE_STANDBY)
    first, token = hosts.view.primary(), hosts.view.token()
    assert first is not None
    assert hosts.fleet.signal(first, signal.SIGSTOP)
    try:
        hosts.until(lambda: hosts.view.token() > token, "takeover")
        hosts.until_committed()
    finally:
        hosts.fleet.signal(first, signal.SIGCONT)
    hosts.until_committed()
    assert hosts.view.primary() != first
    hosts.until_whole()


@LONG
def test_hosts_go_on_without_a_supervisor_and_the_next_one_finds_them(hosts: Hosts) -> None:
    hosts.be(Scheme.ACTIVE_STANDBY)
    before = hosts.view.incarnations()
    hosts.fleet.kill_supervisor()
    hosts.until_committed()
    hosts.fleet.start(hosts.view.scheme.value)
    hosts.until(hosts.fleet.looks_after, "supervisor")
    hosts.until_committed()
    assert hosts.view.incarnations() == before
    first = hosts.view.primary()
    assert first is not None
    hosts.kill(first)
    hosts.until_whole()


def test_an_impossible_step_of_the_wheel_is_an_error_that_names_the_way(hosts: Hosts) -> None:
    hosts.be(Scheme.ACTIVE_STANDBY)
    with pytest.raises(InvalidTransitionError, match="no step from active standby to deployed") as caught:
        hosts.view.turn([Scheme.DEPLOYED])
    assert "passive standby hot → passive standby cold → deployed" in caught.value.cure
    assert hosts.view.agreed()[PIPELINE].seats.scheme is Scheme.ACTIVE_STANDBY


@LONG
def test_the_wheel_turns_all_the_way_down_and_up_again(hosts: Hosts) -> None:
    hosts.be(Scheme.ACTIVE_REPLICATION)
    for scheme in [*list(Scheme)[1:], *list(Scheme)[-2::-1]]:
        hosts.be(scheme)


def test_the_output_is_as_if_nothing_had_happened(hosts: Hosts) -> None:
    hosts.until_whole()
    rows = (hosts.view.furthest() + 10) * ROWS
    Gate(0.0, rows).write(hosts.gate())
    hosts.until(hosts.fleet.ended, "end")
    settings = hosts.fleet.settings
    source = bounded_input(query(QUERY), rows, Path(settings.input))
    time_column = pl.col(query(QUERY).dataset.event_time)
    whole = source.read(Slice(base=0, rows=rows, where={"start": 0, "stop": rows}))
    expected = oracle(QUERY, pl.concat([chunk.frame.with_columns(time_column + chunk.shift) for chunk in whole]))
    actual = read_output(settings.output, "parquet")
    assert first_difference(actual.select(expected.columns), expected) is None
    assert not hosts.fleet.running()


ODD = """
import random
from pathlib import Path

import polars as pl

import holdfast as hf
from holdfast.chaos.gate import GatedSource
from holdfast.chaos.victim import PIPELINE, endless_input
from holdfast.workloads.queries import query

data = query("{query}").dataset


def anything(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(value=pl.Series([random.random() for _ in range(rows.height)], dtype=pl.Float64))


def build() -> hf.Pipeline:
    pipeline = hf.Pipeline(PIPELINE)
    source = GatedSource(endless_input(query("{query}"), Path("{place}")), Path("{place}/run/{gate}"), {rows})
    events = pipeline.source("events", source, event_time=data.event_time, time_unit=data.time_unit)
    schema = {{**source.schema, "value": pl.Float64}}
    events.map(anything, schema=schema).sink("out", hf.parquet("{place}/out"))
    return pipeline
"""


@LONG
def test_a_replica_that_computes_something_else_is_stopped_and_named(tmp_path: Path) -> None:
    file = tmp_path / "odd.py"
    file.write_text(ODD.format(query=QUERY, place=tmp_path, gate=GATE, rows=ROWS))
    with serving(tmp_path, f"{file}:build") as run:
        run.until(lambda: "diverged" in run.notes(), "difference")
        told = run.notes()["diverged"]
        assert told["host"] != run.view.primary()
        assert "'out'" in told["what"]
        run.until_committed(5)
        rows = (run.view.furthest() + 10) * ROWS
        Gate(0.0, rows).write(run.gate())
        run.until(run.fleet.ended, "end")
    assert read_output(tmp_path / "out", "parquet").height == rows
