"""The HA controller on a host: what it makes of rates, and how a host has it, feeds it and lets it go."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_host_deployments import no_pipeline

from holdfast.laar.descriptor import read_descriptor
from holdfast.laar.host_strategy import ActivationPlan, Feed, planned
from holdfast.meta import ReplicaMeta, StreamMeta
from holdfast.plan.cuts import FragmentLinks
from holdfast.replica.deployment import Deployment
from holdfast.replica.host import Host, HostSettings
from holdfast.replica.host_events import ConfigurationChosen, HostEvent
from holdfast.replica.schemes.active_replication import ACTIVE_REPLICATION
from holdfast.threads import SystemThreads

FIRST, SECOND = "app.middle", "app.out"
STREAM = "app.pushed"
HOSTS = ("a", "b")


def plan(source: str = "numbers", streams: int = 0) -> ActivationPlan:
    """Both replicas of both fragments up to 4 rows/s, and one of each above."""
    said = read_descriptor(
        {
            "format": "laar-instance-1", "name": "app", "sources": [source], "pes": [FIRST, SECOND],
            "configs": [{"name": "Low", "prob": 0.8, "rates": [4]}, {"name": "High", "prob": 0.2, "rates": [8]}],
            "edges": [{"from": source, "to": FIRST, "selectivity": 1, "cost": 0.1},
                      {"from": FIRST, "to": SECOND, "selectivity": 1, "cost": 0.1}],
            "n_hosts": 2, "K": 1, "k": 2, "placement": [[0, 1], [0, 1]], "T": 1, "ic_target": 0.6,
        }
    )  # fmt: skip
    return planned(said, 0.6, HOSTS, (FIRST, SECOND), {source: Feed(FIRST, streams)}, "by hand")


DEPLOYED = Deployment(
    pipeline="app", target="f.py", fragments={FIRST: FragmentLinks(), SECOND: FragmentLinks((FIRST,), inner=True)},
    settings={}, scheme=ACTIVE_REPLICATION, hosts=HOSTS,
)  # fmt: skip


class Report:
    """As much of a report as the host looks at."""

    def __init__(self, lag: int | None) -> None:
        self.fragment, self.epoch, self.rows, self.cpu, self.lag = FIRST, 1, 4, {"0-0": 0.4}, lag
        self.started, self.committed = 0.0, 0.1


class OwnClock(SystemThreads):
    """The time is the test's."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.monotonic = clock  # type: ignore[method-assign]


class World:
    """A host without Spark that has the first seats of both fragments, and a clock of its own."""

    def __init__(self, tmp_path: Path, made: ActivationPlan) -> None:
        self.events: list[HostEvent] = []
        self.clock = 1_000.0
        settings = HostSettings(name="a", store=tmp_path, sync=False)
        self.threads = OwnClock(lambda: self.clock)
        self.host = Host(settings, no_pipeline, self.events.append, self.threads)
        self.deploy(replace(DEPLOYED, activation=made))
        for fragment in DEPLOYED.fragments:
            self.host.member.agreement.open(fragment, ACTIVE_REPLICATION)
        self.host.member.sessions = True
        self.host._look()
        self.host.member.beat()
        self.host.member.beat()

    def deploy(self, deployment: Deployment) -> None:
        ReplicaMeta(self.host._meta).deploy("app", deployment.encode())

    def pass_by(self, seconds: int, taken: int, lag: int | None = None, grows: int = 0) -> None:
        """An epoch per second, and two looks at the rates."""
        for at in range(seconds):
            self.clock += 0.5
            self.host._took("app", FIRST, taken, 0)
            self.host._run_controllers()
            self.clock += 0.5
            self.host._processed("app", Report(None if lag is None else lag + at * grows))  # type: ignore[arg-type]
            self.host._run_controllers()
            self.host.member.beat()

    def configuration(self) -> str:
        agreed = self.host.member.agreement.look([FIRST])[FIRST]
        assert agreed.notes.configuration is not None
        return agreed.notes.configuration.name

    def active(self) -> list[tuple[str, ...] | None]:
        return [agreed.seats.active for agreed in self.host.member.agreement.look([FIRST, SECOND]).values()]


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[Any]:
    made: list[World] = []

    def make(which: ActivationPlan) -> World:
        made.append(World(tmp_path, which))
        return made[-1]

    yield make
    for world in made:
        world.host._meta.close()


def test_a_host_commands_by_the_rates_of_its_epochs(worlds: Any) -> None:
    world = worlds(plan())
    world.pass_by(20, taken=4)
    assert (world.configuration(), world.active()) == ("Low", [HOSTS, HOSTS])
    world.pass_by(6, taken=8)
    assert world.configuration() == "High"
    assert sorted(len(active or ()) for active in world.active()) == [1, 1]
    assert [event.to for event in world.events if isinstance(event, ConfigurationChosen)] == ["Low", "High"]


def test_a_decision_comes_also_where_command_moves_from_host_to_host(worlds: Any) -> None:
    """As when the host that commanded is killed, started again, and gets its seat back. Each has the first seat for six
    seconds, and ten are needed to be sure that rates are low."""
    world = worlds(plan())
    other = Host(
        replace(world.host.settings, name="b"),
        no_pipeline,
        world.events.append,
        world.threads,
    )
    other.member.sessions = True
    other._look()
    for _ in range(3):
        other.member.beat(), world.host.member.beat()
    first, second = world.host, other
    for _ in range(4):
        assert first.member.places[FIRST].keeper.is_primary
        for _ in range(6):
            world.clock += 1.0
            for host in (first, second):
                host._took("app", FIRST, 4, 0)
                host.member.beat()
                host._run_controllers()
        first.member.resign(FIRST)
        second.member.beat(), first.member.beat()
        first, second = second, first
    assert world.configuration() == "Low"
    assert [event.to for event in world.events if isinstance(event, ConfigurationChosen)] == ["Low"]
    other._meta.close()


def test_an_overload_that_hides_the_rate_leads_to_higher_rates(worlds: Any) -> None:
    """Hosts that are full take 4.1 rows/s of 8; that is within what is taken for noise."""
    world = worlds(plan())
    world.pass_by(20, taken=4, lag=4)
    assert world.configuration() == "Low"
    world.pass_by(8, taken=4, lag=8, grows=4)
    assert world.configuration() == "High"


def test_what_clients_push_is_seen_whatever_is_read_of_it(worlds: Any) -> None:
    world = worlds(plan(STREAM, 2))
    streams, pushed = StreamMeta(world.host._meta), 0
    streams.declare(STREAM, "{}")
    written: dict[str, int] = {STREAM: 0}
    world.host._activation["app"].written = written.__getitem__
    assert world.host._written(STREAM) == 0
    for rate, expected in ((2, "Low"), (4, "High")):  # of each half of a second
        for _ in range(40):
            pushed += rate
            written[STREAM] = pushed
            world.clock += 0.5
            world.host._took("app", FIRST, 0, 500)
            world.host._run_controllers()
            world.host.member.beat()
        assert world.configuration() == expected


def test_the_same_plan_told_again_changes_nothing_and_one_of_before_has_no_room(worlds: Any) -> None:
    world = worlds(plan())
    before = world.host._activation["app"]
    told = json.loads(replace(DEPLOYED, activation=plan()).encode())
    old = {name: each for name, each in told["activation"].items() if name != "room"}
    for stored in (told["activation"], old):
        ReplicaMeta(world.host._meta).deploy("app", json.dumps({**told, "activation": stored}))
        world.host._look()
        world.host._look()
        assert world.host._activation["app"] is before
    world.deploy(replace(DEPLOYED, activation=replace(plan(), origin="other")))
    world.host._look()
    assert world.host._activation["app"] is not before


def test_a_plan_that_is_dropped_releases_what_it_commanded(worlds: Any) -> None:
    world = worlds(plan())
    world.pass_by(6, taken=8)
    assert all(active is not None for active in world.active())
    world.deploy(DEPLOYED)
    world.host._look()
    assert world.host._activation == {}
    world.host.member.beat()
    world.host._run_controllers()
    assert world.active() == [None, None]
    world.host._took("app", FIRST, 4, 0)
    world.host._processed("app", Report(4))  # type: ignore[arg-type]
