"""LAAR on hosts that are processes: rates move the replicas, and kill -9 of the host that commands loses nothing."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from sqlalchemy.exc import SQLAlchemyError

from holdfast.errors import HoldfastError
from holdfast.laar.host_strategy import ActivationPlan
from holdfast.meta import MetaStore, ReplicaMeta
from holdfast.replica.deployment import Deployment
from holdfast_lab.experiment.laar.example_hosts import FRAGMENTS, events_of, example_descriptor, ran_on_hosts
from holdfast_lab.experiment.laar.example_pipeline import PIPELINE, Example

pytestmark = pytest.mark.long  # test_activated_runs.py has its core
LOW, HIGH = 8.0, 16.0


def test_the_host_that_commands_is_killed(tmp_path: Path) -> None:
    """The plan is that of the paper; the PEs have little to do, so that it is about commands and seats alone. It begins
    with the plan for High; who takes over goes to Low when the rate was low for a while, and back to High."""
    example = Example(str(tmp_path / "run" / "out"), ((40.0, LOW), (15.0, HIGH)), 0.001, 0.5, 0.6)
    killed: list[int] = []

    def strike(place: Path) -> None:
        events = events_of(place)
        told = [event for event in events if event["event"] == "command"]
        if told and not killed and sum(event["event"] == "commit" for event in events) > 4:
            killed.append(told[0]["pid"])
            root = psutil.Process(told[0]["pid"])
            for process in (root, *root.children(recursive=True)):
                os.kill(process.pid, signal.SIGKILL)

    run = ran_on_hosts(
        tmp_path / "run", example, example_descriptor(LOW, HIGH, 0.03, 0.6, 0.6), lambda text: None, strike
    )
    assert (run.tuples, run.total) == (560, 560), "nothing is lost, and nothing doubled"
    moves = [(decision["to"], decision["host"], decision["pid"]) for decision in run.decisions()]
    assert killed
    # By the other host or, if that one is up again before rates were low for long enough, by a new process of this one.
    others = [to for to, _, pid in moves if pid != killed[0]]
    assert others[:2] == ["Low", "High"], f"another process commands, and goes on: {moves}"
    for fragment in FRAGMENTS:
        commanded = [len(command["active"].split(", ")) for command in run.told("command", fragment)]
        assert {1, 2} <= set(commanded), "one was active at times, and both were"


def test_hosts_measure_what_they_need_for_a_plan_and_command_by_it(tmp_path: Path) -> None:
    """Without a descriptor all are active at first; when 30 s are measured there is a plan, and commands by it."""
    example = Example(str(tmp_path / "run" / "out"), ((75.0, LOW),), 0.001, 0.5, 0.4)
    plans: list[ActivationPlan] = []

    def look(place: Path) -> None:
        if (place / "store" / "meta.db").exists():
            meta = MetaStore(place / "store", sync=False)
            with suppress(SQLAlchemyError, HoldfastError):
                told = ReplicaMeta(meta).deployed().get(PIPELINE)
                plan = None if told is None else Deployment.decode(told).activation
                plans.extend([] if plan is None else [plan])
            meta.close()

    run = ran_on_hosts(tmp_path / "run", example, None, lambda text: None, look)
    assert (run.tuples, run.total) == (600, 600), "nothing is lost, and nothing doubled"
    assert run.idle_epochs() == 0, "what is deactivated does not process"
    assert plans, "there was one"
    assert plans[-1].ic >= 0.4
    assert all(0.1 <= float(capacity) < 1 for capacity in plans[-1].descriptor.capacities), "Spark has its part"
    commands = run.told("command")
    assert {command["fragment"] for command in commands} == set(FRAGMENTS)
    measured = min(command["at"] for command in commands) - run.began
    assert measured >= 30.0
