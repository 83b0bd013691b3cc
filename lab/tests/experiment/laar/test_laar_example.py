"""LAAR's example: what its source gives, and what is made of the events of its hosts."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import DescriptorError
from holdfast.laar import Model, read_descriptor, solve
from holdfast_lab.experiment.laar.example import _cpus_apart_from_epochs, _strategies, bars
from holdfast_lab.experiment.laar.example_hosts import FRAGMENTS, HostRun, example_descriptor
from holdfast_lab.experiment.laar.example_pipeline import Example, Tuples

EXAMPLE = Example("out", ((10.0, 4.0), (5.0, 8.0), (5.0, 4.0)), 0.06, 1.0)
FIRST, SECOND = FRAGMENTS


def test_tuples_come_by_the_clock_and_end() -> None:
    now = 1_000.0
    source = Tuples(EXAMPLE, lambda: now)
    position, taken = source.start(), []
    while True:
        take = source.take(position, 1_000, 1)
        taken.append(sum(piece.rows for piece in take.slices))
        position = take.position
        if take.done:
            break
        now += 1.0
    assert sum(taken) == 100
    assert taken[1:10] == [4] * 9
    assert taken[11:15] == [8] * 4
    assert source.take({**position, "offset": 100}, 10, 1).done
    again = sum(chunk.frame.height for piece in Tuples(EXAMPLE).take({"offset": 90, "since": 0.0}, 99, 2).slices
                for chunk in Tuples(EXAMPLE).read(piece))  # fmt: skip
    assert again == 10, "whoever reads it later reads the same"
    waiting = Tuples(EXAMPLE, lambda: 12.0)
    assert (waiting.lag(waiting.start()), waiting.lag({"offset": 40, "since": 0.0})) == (0, 17)


def event(kind: str, at: float, host: str = "a", **facts: Any) -> dict[str, Any]:
    return {"event": kind, "host": host, "at": 500.0 + at, **facts}


def run_of(*events: dict[str, Any]) -> HostRun:
    return HostRun(EXAMPLE, 500.0, list(events), {"a": [], "b": []}, 100, 100)


def test_activation_is_from_the_command_to_a_replica_that_is_ready() -> None:
    run = run_of(
        event("command", 1.0, fragment=FIRST, order=1, active="a"),
        event("prepared", 1.5, "b", fragment=FIRST, scheme="deployed"),
        event("command", 5.0, fragment=FIRST, order=2, active="a, b"),
        event("prepared", 5.25, "b", fragment=SECOND, scheme="active replication"),
        event("prepared", 5.5, "b", fragment=FIRST, scheme="active replication"),
    )
    assert run.activations() == [pytest.approx(0.5)]


def test_a_replica_that_does_not_get_ready_is_no_activation_within_a_second() -> None:
    run = run_of(
        event("command", 1.0, fragment=FIRST, order=1, active="a"),
        event("command", 5.0, fragment=FIRST, order=2, active="a, b"),
        event("processed", 20.0, "a", fragment=FIRST, epoch=9, rows=4, cpu=0.25),
    )
    assert run.activations() == [float("inf")]
    run.events.append(event("command", 5.5, fragment=FIRST, order=3, active="a"))
    assert run.activations() == [], "it was called off"


def test_an_epoch_of_a_replica_that_is_to_be_idle_is_seen() -> None:
    run = run_of(
        event("processed", 0.5, "b", fragment=FIRST, epoch=1, rows=4, cpu=0.25),
        event("command", 1.0, fragment=FIRST, order=1, active="a"),
        event("processed", 2.0, "b", fragment=FIRST, epoch=2, rows=4, cpu=0.25),
        event("processed", 8.0, "a", fragment=FIRST, epoch=3, rows=4, cpu=0.25),
        event("processed", 8.0, "b", fragment=SECOND, epoch=3, rows=4, cpu=0.25),
    )
    assert run.idle_epochs() == 0, "before the command, while it is followed, where it says so, and of another"
    run.events.append(event("processed", 9.0, "b", fragment=FIRST, epoch=4, rows=4, cpu=0.25))
    assert run.idle_epochs() == 1
    run.events.insert(-1, event("command", 8.5, fragment=FIRST, order=2, active="a, b"))
    assert run.idle_epochs() == 0


def test_what_is_not_possible_is_not_compared() -> None:
    with pytest.raises(DescriptorError, match="no strategy keeps the target"):
        _strategies(read_descriptor(example_descriptor(4.0, 8.0, 0.1, 1.0, 0.9)))
    found = _strategies(read_descriptor(example_descriptor(4.0, 8.0, 0.1, 1.0, 0.6)))
    assert found["LAAR"] != found["static"]


def test_what_hosts_take_cpus_apart_from_epochs_epochs_is_seen() -> None:
    run = run_of(event("processed", 2.0, "a", fragment=FIRST, epoch=1, rows=4, cpu=1.0))
    run.cpu = {"a": [(0.0, 10.0), (4.0, 13.0)], "b": [(0.0, 5.0), (4.0, 6.0)]}
    assert run.used(FIRST, "a", 0.0, 5.0) == 1.0
    assert _cpus_apart_from_epochs(run, 0.0, 5.0) == pytest.approx(3 / 4 + 1 / 4 - 1 / 5)


def test_bars_are_missed_where_they_should_be() -> None:
    good = {"follows": 1.0, "simulated_follows": 1.0, "activation_max_s": 0.8, "decision_ms": 0.2,
            "beside_cpus_low": 0.8, "beside_cpus_high": 0.5, "simulated_pe_cpu_s": 45.0, "pe_cpu_s": 44.0,
            "idle_epochs": 0, "lost_or_doubled": 0}  # fmt: skip
    static = {**good, "variant": "static", "follows": 0.6, "simulated_follows": 0.65}
    assert all(bar.ok for bar in bars([static, {**good, "variant": "LAAR"}]))
    bad = {**good, "follows": 0.8, "activation_max_s": 1.2, "decision_ms": 2.0, "beside_cpus_high": 0.9,
           "idle_epochs": 1, "lost_or_doubled": 1, "pe_cpu_s": 60.0}  # fmt: skip
    assert sum(not bar.ok for bar in bars([static, {**bad, "variant": "LAAR"}])) == 8


def test_the_descriptor_is_the_papers() -> None:
    said = read_descriptor(example_descriptor(4.0, 8.0, 0.1, 1.0, 0.6))
    solution = solve(said)
    assert solution.cost is not None
    assert solution.ic is not None
    assert (float(solution.cost), float(solution.ic)) == (pytest.approx(1.6), pytest.approx(2 / 3))
    assert Model(said).n_pes == 2
