"""Replicas that are activated and deactivated by command while they run, on two hosts in one process: the output is
that of one process, and who is not active has nothing loaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from pyspark.sql import SparkSession
from replica_harness import Pair, pair
from test_replica_runs import Paced, faultless

import holdfast as hf
from holdfast.graph.policies import DELTA
from holdfast.laar.descriptor import read_descriptor
from holdfast.laar.host_strategy import ActivationPlan, Feed, planned
from holdfast.replica.activation_controller import ActivationController
from holdfast.replica.activation_rules import settled
from holdfast.replica.host_events import CommandGiven, HostEvent
from holdfast.replica.rates import EpochIntake
from holdfast.replica.schemes.active_replication import ACTIVE_REPLICATION
from holdfast.replica.seats import Activate

HOSTS = ("one", "two")
EPOCHS = 48


def cut(sink: hf.sink.Sink) -> hf.Pipeline:
    pipeline = hf.Pipeline("cut")
    rows = pipeline.source("events", Paced(EPOCHS), event_time="ts", time_unit="ms").filter(pl.col("key") != 3)
    rows = rows.persist("kept", push_up=False).key_by("key")
    rows.window(hf.window.tumbling("4s"), name="totals").agg(n=hf.count(), total=hf.sum("value")).sink("out", sink)
    return pipeline


@pytest.fixture(scope="module")
def expected(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    return faultless(cut, spark, tmp_path_factory.mktemp("expected"))


@pytest.fixture(autouse=True)
def held(expected: list[object]) -> Iterator[None]:
    """The input does not end before what a test does with it is done."""
    Paced.held = True
    yield
    Paced.held = False


def until_end(made: Pair) -> None:
    Paced.held = False
    made.until_end()


def command(made: Pair, fragment: str, active: tuple[str, ...]) -> None:
    orders = made.look(fragment).seats.orders
    assert made.agreement.ask({fragment: [Activate(orders, active, HOSTS)]})[fragment].done == (True,)


def until_settled(made: Pair) -> None:
    made.until(lambda: all(made.look(name).ended or settled(made.look(name).seats) for name in made.fragments), "order")


def test_any_replica_can_be_the_only_active_one_while_the_other_has_nothing_loaded(
    spark: SparkSession, tmp_path: Path, expected: list[object]
) -> None:
    with pair(cut, spark, tmp_path, ACTIVE_REPLICATION, checkpoint=DELTA) as made:
        first, second = made.fragments
        for here, there in ((("one",), ("two",)), (("two",), ("one",)), (HOSTS, HOSTS)):
            command(made, first, here)
            command(made, second, there)
            until_settled(made)
            ended = [name for name in made.fragments if made.look(name).ended]
            assert not ended, "the input was too short for this"
            for fragment, active in ((first, here), (second, there)):
                for host in HOSTS:
                    loaded = made.hosts[host].replicas[fragment].run is not None
                    made.until(lambda host=host, fragment=fragment, active=active:  # type: ignore[misc]
                               (made.hosts[host].replicas[fragment].run is not None) == (host in active),
                               f"{fragment} on {host}, {loaded}")  # fmt: skip
        until_end(made)
    assert sorted(hf.read_output(tmp_path / "out", "parquet").rows()) == expected


def test_a_host_that_fails_is_replaced_by_one_that_was_not_active(
    spark: SparkSession, tmp_path: Path, expected: list[object]
) -> None:
    with pair(cut, spark, tmp_path, ACTIVE_REPLICATION, checkpoint=DELTA) as made:
        for fragment in made.fragments:
            command(made, fragment, ("one",))
        until_settled(made)
        made.hosts["one"].lose()
        until_end(made)
        assert all(made.look(name).seats.primary.host == "two" for name in made.fragments)  # type: ignore[union-attr]
    assert sorted(hf.read_output(tmp_path / "out", "parquet").rows()) == expected


def plan(fragments: list[str]) -> ActivationPlan:
    """Both replicas of both fragments below 4 rows/s, and one of each above."""
    first, second = fragments
    said = read_descriptor(
        {
            "format": "laar-instance-1", "name": "cut", "sources": ["events"], "pes": [first, second],
            "configs": [{"name": "Low", "prob": 0.8, "rates": [4]}, {"name": "High", "prob": 0.2, "rates": [8]}],
            "edges": [{"from": "events", "to": first, "selectivity": 1, "cost": 0.1},
                      {"from": first, "to": second, "selectivity": 1, "cost": 0.1}],
            "n_hosts": 2, "K": 1, "k": 2, "placement": [[0, 1], [0, 1]], "T": 1, "ic_target": 0.6,
        }
    )  # fmt: skip
    return planned(said, 0.6, HOSTS, fragments, {"events": Feed(first)}, "by hand")


def noted(made: Pair, fragment: str) -> str | None:
    """The input configuration in use."""
    note = made.look(fragment).notes.configuration
    return None if note is None else note.name


def test_the_controller_follows_the_rates(spark: SparkSession, tmp_path: Path, expected: list[object]) -> None:
    events: list[HostEvent] = []
    with pair(cut, spark, tmp_path, ACTIVE_REPLICATION, checkpoint=DELTA) as made:
        first, _ = made.fragments
        both = {
            name: ActivationController(plan(made.fragments), host.member, events.append, lambda stream: 0)
            for name, host in made.hosts.items()
        }

        def rate(per_second: int, ticks: int) -> None:
            """As a replica that runs would tell it, and a controller on each host that looks twice a second."""
            nonlocal clock
            for _ in range(ticks):
                clock += 0.5
                for controller in both.values():
                    controller.took(first, EpochIntake(clock, per_second // 2, 0))
                    controller.tick(clock)

        clock = 0.0
        made.until(lambda: all(made.look(name).seats.primary is not None for name in made.fragments))
        rate(4, 40)
        made.until(lambda: noted(made, first) == "Low")
        assert all(made.look(name).seats.active == HOSTS for name in made.fragments)
        until_settled(made)
        rate(8, 8)
        assert noted(made, first) == "High"
        alone = [made.look(name).seats.active for name in made.fragments]
        assert sorted(len(active or ()) for active in alone) == [1, 1]
        assert alone[0] != alone[1], "one on each host, or a host is overloaded"
        until_settled(made)
        rate(4, 40)
        assert noted(made, first) == "Low"
        until_settled(made)
        until_end(made)
    assert sorted(hf.read_output(tmp_path / "out", "parquet").rows()) == expected
    orders = [event for event in events if isinstance(event, CommandGiven)]
    assert len(orders) == len({(order.fragment, order.order) for order in orders}), "each was given once"
