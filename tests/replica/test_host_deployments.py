"""What a host runs is what it was last told to: nothing is run twice at a time, and nothing as it was before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.engine.options import RunOptions
from holdfast.meta import ReplicaMeta
from holdfast.plan.cuts import FragmentLinks
from holdfast.replica.deployment import DeployedOptions, Deployment
from holdfast.replica.host import Host, HostSettings
from holdfast.replica.schemes.active_standby import ACTIVE_STANDBY

DEPLOYED = Deployment(pipeline="f", target="f.py", fragments={"f": FragmentLinks()}, settings={"tasks": 1})


class Replica:
    """One that ends when the test says so."""

    def __init__(self) -> None:
        self.stopped, self.alive, self.ended = False, True, False

    def stop(self) -> None:
        self.stopped = True

    def is_alive(self) -> bool:
        return self.alive


def no_pipeline(target: str) -> Any:
    raise AssertionError("nothing is loaded here")


def test_another_deployment_is_run_when_the_one_before_has_ended(tmp_path: Path) -> None:
    host = Host(HostSettings(name="a", store=tmp_path, sync=False), no_pipeline, lambda event: None)
    told, replica = ReplicaMeta(host._meta), Replica()
    told.deploy("f", DEPLOYED.encode())
    host._look()
    host.replicas["f"], host.loops["f"] = replica, object()  # type: ignore[assignment]
    host._look()
    assert not replica.stopped, "nothing has changed"
    told.deploy("f", replace(DEPLOYED, settings={"tasks": 2}).encode())
    for _ in range(2):
        host._look()
        assert replica.stopped
        assert "f" in host.replicas, "a second one beside it would have the same seat"
    replica.alive = False
    host._look()
    assert "f" not in host.replicas
    assert "f" not in host.loops
    told.withdraw("f")
    host._look()
    assert "f" not in host.member.places
    host._meta.close()


def test_what_hosts_are_told_is_read_as_it_was_written() -> None:
    settings: DeployedOptions = {"tasks": 2, "deadline": 60, "trigger": "1 min", "memory": "2 GB", "max_epochs": None}
    told = replace(DEPLOYED, settings=settings, scheme=ACTIVE_STANDBY, recovery=2.0, hosts=("a", "b"), since=1.5)
    assert Deployment.decode(told.encode()) == told
    assert Deployment.decode(told.encode()).scheme is ACTIVE_STANDBY


def test_what_runs_epochs_is_told_to_hosts_and_a_host_may_ask_for_something_else(tmp_path: Path) -> None:
    told = Deployment.decode(replace(DEPLOYED, settings={"executor": "jobs"}).encode())
    assert told.options("f", tmp_path, None, "a", None).executor == "jobs"
    assert told.options("f", tmp_path, None, "a", None, "crew").executor == "crew"
    before = Deployment.decode(DEPLOYED.encode())
    assert before.options("f", tmp_path, None, "a", None).executor is None
    asked = Deployment.of(RunOptions(executor="jobs"), pipeline="f", target="f.py", fragments={})
    assert asked.settings["executor"] == "jobs"
