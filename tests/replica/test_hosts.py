"""Hosts that are processes: killed with all they have started, stopped and woken up, while the wheel turns.

The tests share one run, on which each leaves its mark; the last one lets its input end and looks at the output.
"""

from __future__ import annotations

import signal
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pytest

from holdfast.connect.base import Slice
from holdfast.connect.sinks.file_sink import read_output
from holdfast.errors import InvalidTransitionError
from holdfast.meta import Commit
from holdfast.meta.engine import FILE
from holdfast.replica.fragment_notes import FragmentNotes
from holdfast.replica.output_gap import CommitTimes
from holdfast.replica.schemes import Scheme, wheel
from holdfast.replica.schemes.active_replication import ACTIVE_REPLICATION
from holdfast.replica.schemes.active_standby import ACTIVE_STANDBY
from holdfast.replica.schemes.deployed import DEPLOYED
from holdfast.replica.schemes.passive_replication import PASSIVE_REPLICATION
from holdfast.store import volatile_parent
from holdfast_lab.chaos.fleet import Fleet
from holdfast_lab.chaos.gate import Gate
from holdfast_lab.chaos.host_view import HostView
from holdfast_lab.chaos.hosted_pipeline import GATE
from holdfast_lab.chaos.victim import PIPELINE, VictimSettings, bounded_input
from holdfast_lab.workloads.oracle import first_difference, oracle
from holdfast_lab.workloads.queries import query
from strategies import long_cases

QUERY, ROWS = "keyed", 500
DETECTION = 2.0
PATIENCE = 300.0


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
        self.view.turn(list(wheel.path(self.view.scheme, scheme)))
        self.until_whole()
        self.until_committed()

    def kill(self, host: str) -> None:
        self.dead |= {host: self.view.incarnations()[host]}
        self.fleet.kill([host], lose=True)

    def stop(self, host: str) -> None:
        """SIGSTOP, but not in the middle of a transaction: whoever is stopped there keeps SQLite's lock, and nobody can
        take over (docs/replicas.md)."""
        for _ in range(100):
            assert self.fleet.signal(host, signal.SIGSTOP)
            with closing(sqlite3.connect(self.fleet.settings.store / FILE, timeout=2.0, isolation_level=None)) as meta:
                try:
                    meta.execute("BEGIN IMMEDIATE")
                    meta.execute("ROLLBACK")
                    return
                except sqlite3.OperationalError:
                    self.fleet.signal(host, signal.SIGCONT)
                    time.sleep(0.01)
        raise AssertionError("whenever it is stopped, the store is locked")

    def notes(self) -> FragmentNotes:
        return self.view.agreed()[PIPELINE].notes

    def gate(self) -> Path:
        return Path(self.fleet.settings.home) / GATE


@contextmanager
def serving(
    place: Path, target: str | None = None, scheme: Scheme | None = ACTIVE_STANDBY, detection: float = DETECTION
) -> Iterator[Hosts]:
    """Two hosts of a pipeline; nothing of them is left at the end. Without a scheme their controller chooses."""
    settings = VictimSettings(
        query=query(QUERY).name, rows=0, epoch_rows=ROWS, pause=0.0, home=str(place / "run"), input=str(place / "input")
    )
    volatile = volatile_parent() / f"hf-hosts-{uuid.uuid4().hex}"
    arguments = ["--detection", str(detection), "--no-durable"]
    fleet = Fleet(settings, volatile, place / "t", arguments, *([] if target is None else [target]))
    view = HostView(settings.store, PIPELINE)
    run = Hosts(fleet, view)
    Gate(0.1).write(run.gate())
    try:
        fleet.start(None if scheme is None else scheme.name)
        run.until(lambda: bool(view.agreed()), "seats")
        yield run
    finally:
        fleet.kill_all()
        view.close()


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with serving(tmp_path_factory.mktemp("hosts")) as run:
        yield run


MORE = [ACTIVE_REPLICATION, PASSIVE_REPLICATION]
KILLED = [ACTIVE_STANDBY, *long_cases(*MORE)]


@pytest.mark.parametrize("scheme", KILLED, ids=lambda scheme: scheme.name)
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
    hosts.be(ACTIVE_STANDBY)
    first, token = hosts.view.primary(), hosts.view.token()
    assert first is not None
    hosts.stop(first)
    try:
        hosts.until(lambda: hosts.view.token() > token, "takeover")
        hosts.until_committed()
    finally:
        hosts.fleet.signal(first, signal.SIGCONT)
    hosts.until_committed()
    assert hosts.view.primary() != first
    hosts.until_whole()


@pytest.mark.long
def test_hosts_go_on_without_a_supervisor_and_the_next_one_finds_them(hosts: Hosts) -> None:
    hosts.be(ACTIVE_STANDBY)
    before = hosts.view.incarnations()
    hosts.fleet.kill_supervisor()
    hosts.until_committed()
    hosts.fleet.start(hosts.view.scheme.name)
    hosts.until(hosts.fleet.looks_after, "supervisor")
    hosts.until_committed()
    assert hosts.view.incarnations() == before
    first = hosts.view.primary()
    assert first is not None
    hosts.kill(first)
    hosts.until_whole()


def test_an_impossible_step_of_the_wheel_is_an_error_that_names_the_way(hosts: Hosts) -> None:
    hosts.be(ACTIVE_STANDBY)
    with pytest.raises(InvalidTransitionError, match="no step from active standby to deployed") as caught:
        hosts.view.turn([DEPLOYED])
    assert "passive standby hot → passive standby cold → deployed" in caught.value.cure
    assert hosts.view.agreed()[PIPELINE].seats.scheme is ACTIVE_STANDBY


@pytest.mark.long
def test_the_wheel_turns_all_the_way_down_and_up_again(hosts: Hosts) -> None:
    hosts.be(ACTIVE_REPLICATION)
    for scheme in [*list(wheel.SCHEMES)[1:], *list(wheel.SCHEMES)[-2::-1]]:
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
from holdfast_lab.chaos.gate import GatedSource
from holdfast_lab.chaos.victim import PIPELINE, endless_input
from holdfast_lab.workloads.queries import query

data = query("{query}").dataset


def anything(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(value=pl.Series([random.random() for _ in range(rows.height)], dtype=pl.Float64))


def build() -> hf.Pipeline:
    pipeline = hf.Pipeline(PIPELINE)
    source = GatedSource(endless_input(query("{query}"), Path("{place}")), Path("{place}/run/{gate}"), {rows})
    events = pipeline.source("events", source, event_time=data.event_time, time_unit=data.time_unit)
    schema = {{**source.schema, "value": pl.Float64}}
    events.map_batches(anything, schema=schema).sink("out", hf.sink.parquet("{place}/out"))
    return pipeline
"""


@pytest.mark.long
def test_a_replica_that_computes_something_else_is_stopped_and_named(tmp_path: Path) -> None:
    file = tmp_path / "odd.py"
    file.write_text(ODD.format(query=QUERY, place=tmp_path, gate=GATE, rows=ROWS))
    with serving(tmp_path, f"{file}:build") as run:
        run.until(lambda: run.notes().diverged is not None, "difference")
        divergence = run.notes().diverged
        assert divergence is not None
        assert divergence.host != run.view.primary()
        assert "'out'" in divergence.what
        run.until_committed(5)
        rows = (run.view.furthest() + 10) * ROWS
        Gate(0.0, rows).write(run.gate())
        run.until(run.fleet.ended, "end")
    assert read_output(tmp_path / "out", "parquet").height == rows


BOUNDED = """
import holdfast as hf
from holdfast_lab.chaos import hosted


def build() -> hf.Pipeline:
    pipeline = hosted.build()
    pipeline.guarantee = hf.Guarantee(recovery="{seconds} s")
    return pipeline
"""
RECOVERY_SECONDS, KILLS = 6.0, 4


@dataclass
class Output:
    """What a reader of the output sees: when which epoch was committed, by the clock that all hosts here share."""

    view: HostView
    times: CommitTimes = field(default_factory=CommitTimes)
    epoch: int = 0
    committed_at: float = 0.0

    def look(self) -> None:
        """Called so often that no epoch is forgotten in between. Input never ends, so no time between two commits is
        idle."""
        last = self.view.committed()
        self.epoch = self.epoch or last
        while self.epoch < last:
            self.epoch += 1
            found = self.view.meta.look_up(PIPELINE, self.epoch)
            assert isinstance(found, Commit)
            self.times.add(self.committed_at, found.committed_at)
            self.committed_at = found.committed_at


@pytest.mark.long
def test_a_recovery_bound_is_kept_while_primaries_are_killed_again_and_again(tmp_path: Path) -> None:
    file = tmp_path / "bounded.py"
    file.write_text(BOUNDED.format(seconds=RECOVERY_SECONDS))
    with serving(tmp_path, f"{file}:build", scheme=None, detection=1.0) as run:
        output = Output(run.view)

        def until(done: Callable[[], bool], what: str) -> None:
            run.until(lambda: output.look() or done(), what)

        def is_safe() -> bool:
            """Whether the controller has measured enough to say that the scheme it has keeps the bound."""
            whole, predicted = run.view.whole(run.dead), run.notes().predicted
            return whole and predicted.get(run.view.scheme.name, RECOVERY_SECONDS + 1) <= RECOVERY_SECONDS

        gaps: list[tuple[str, float]] = []
        for _ in range(KILLS):
            until(is_safe, "scheme that keeps the bound")
            first, scheme, began = run.view.primary(), run.view.scheme.name, time.time()
            assert first is not None
            run.kill(first)
            until(lambda first=first: run.view.primary() not in (None, first), "another primary")  # type: ignore[misc]
            after = run.view.committed() + 5
            until(lambda after=after: run.view.committed() >= after, "output")  # type: ignore[misc]
            gaps.append((scheme, output.times.longest(began)))
        until(lambda: len(run.notes().recoveries) >= KILLS, "account of every recovery")
        told = [(recovery.scheme, recovery.seconds) for recovery in run.notes().recoveries]
    assert all(seconds <= RECOVERY_SECONDS for _, seconds in gaps), f"seen: {gaps}; told: {told}"
    assert all(seconds > 0.1 for _, seconds in gaps), f"a kill leaves a gap: {gaps}"
    assert all(seconds <= RECOVERY_SECONDS for _, seconds in told), f"seen: {gaps}; told: {told}"
