"""Simulated deployments behave as the model and the paper say."""

from __future__ import annotations

from fractions import Fraction

import pytest

from holdfast.laar import HOSTS, Model, RateTrace, Sizes, Strategy, generate, reaction_share, read_descriptor, solve
from holdfast.laar.host_strategy import solved_with_room
from holdfast.laar.strategy import static_strategy
from holdfast_lab.experiment.laar.example_hosts import example_descriptor
from holdfast_lab.experiment.laar.simulated_deployment import (
    HostCrash,
    SimulatedDeployment,
    WorstCase,
    paper_trace,
    simulate,
)
from holdfast_lab.experiment.laar.variants import greedy, not_replicated, variants

SAID = read_descriptor(example_descriptor(4.0, 8.0, 0.1, 1.0, 0.6))
MODEL = Model(SAID)
LAAR = Strategy((((1, 1), (1, 1)), ((1, 0), (0, 1))), ((0, 1), (0, 1)))
STATIC = static_strategy(SAID, LAAR.placement)
TRACE = RateTrace(((0, 80.0), (1, 20.0)))


def test_the_papers_example_without_failures() -> None:
    laar, static = simulate(MODEL, [SimulatedDeployment(LAAR), SimulatedDeployment(STATIC)], TRACE)
    assert laar.processed == pytest.approx(2 * (80 * 4 + 20 * 8), rel=0.02)
    assert laar.cycles == pytest.approx(160, rel=0.02)  # 1.6 per second, for 100 seconds
    assert laar.dropped < 10  # until the peak is noticed
    assert static.dropped > 30
    assert static.peak < 0.8 * laar.peak


def test_a_controller_that_is_known_is_followed() -> None:
    """One that goes by High from the start has one replica of each PE active all the time."""
    [known] = simulate(MODEL, [SimulatedDeployment(LAAR)], TRACE, RateTrace(((1, 100.0),)))
    assert known.cycles == pytest.approx(2 * 0.1 * (80 * 4 + 20 * 8), rel=0.02)
    [late] = simulate(MODEL, [SimulatedDeployment(LAAR)], TRACE, RateTrace(((0, 95.0), (1, 5.0))))
    [prompt] = simulate(MODEL, [SimulatedDeployment(LAAR)], TRACE)
    assert late.dropped > prompt.dropped + 10


def test_the_worst_case_keeps_the_promised_completeness() -> None:
    laar, best = simulate(MODEL, [SimulatedDeployment(LAAR, WorstCase()), SimulatedDeployment(LAAR)], TRACE)
    assert laar.processed / best.processed == pytest.approx(2 / 3, rel=0.03)


def test_a_crash_costs_what_ran_alone_on_the_host() -> None:
    crash = HostCrash(host=0, at=82.0, seconds=10.0)
    hit, safe = simulate(MODEL, [SimulatedDeployment(LAAR, crash), SimulatedDeployment(LAAR)], TRACE)
    # pe1 ran alone on host 0: for 10 s nothing is processed at 8 tuples/s by either PE.
    assert safe.processed - hit.processed == pytest.approx(160, rel=0.05)
    early = HostCrash(host=0, at=20.0, seconds=10.0)
    hit, safe = simulate(MODEL, [SimulatedDeployment(LAAR, early), SimulatedDeployment(LAAR)], TRACE)
    assert hit.processed == pytest.approx(safe.processed, rel=0.005)


def test_greedy_overloads_nothing_and_keeps_one_replica() -> None:
    said = generate(2, Sizes(4, 6), Fraction(1, 2))
    model = Model(said)
    assert said.placement is not None
    found = greedy(model, said.placement)
    for c, rows in enumerate(found.active):
        assert not model.overloaded(c, rows, said.placement)
        assert all(any(row) for row in rows)
    assert all(all(row) for row in found.active[0])


def test_not_replicated_runs_one_replica_of_each() -> None:
    found = not_replicated(MODEL, LAAR)
    assert found.active[0] == found.active[1] == ((1, 0), (0, 1))


def test_the_variants_compare_as_in_the_paper() -> None:
    said = generate(3, Sizes(3, 4), Fraction(7, 10))
    model = Model(said)
    trace = paper_trace(model, seconds=150.0, peaks=1)
    found = variants(said, 10.0, reaction_share(model, trace))
    assert found is not None
    best = dict(
        zip(found, simulate(model, [SimulatedDeployment(strategy) for strategy in found.values()], trace), strict=True)
    )
    worst = dict(
        zip(
            found,
            simulate(model, [SimulatedDeployment(strategy, WorstCase()) for strategy in found.values()], trace),
            strict=True,
        )
    )
    cycles = {name: run.cycles for name, run in best.items()}
    assert cycles["NR"] < cycles["L.5"] < cycles["L.6"] < cycles["L.7"] < cycles["SR"]
    assert cycles["GRD"] > cycles["L.7"]
    assert max(best, key=lambda name: best[name].dropped) == "SR"
    assert worst["NR"].processed == 0
    for name, target in (("L.5", 0.5), ("L.6", 0.6), ("L.7", 0.7)):
        assert worst[name].processed / best["NR"].processed >= target


def test_the_target_is_kept_as_slowly_as_hosts_react_with_room_for_that() -> None:
    """The least that keeps the bare target loses more than that; with the room it is kept."""
    said = generate(3, Sizes(3, 4), Fraction(1, 2))
    model = Model(said)
    trace = paper_trace(model)
    bare, roomy = solve(said), solved_with_room(said, 10.0)[1]
    assert bare.strategy is not None
    assert roomy.strategy is not None
    found = {}
    for name, strategy in (("bare", bare.strategy), ("roomy", roomy.strategy)):
        both = [SimulatedDeployment(strategy, WorstCase()), SimulatedDeployment(not_replicated(model, strategy))]
        worst, whole = simulate(model, both, trace, reaction=HOSTS)
        found[name] = worst.processed / whole.processed
    assert found["bare"] < 0.5 <= found["roomy"]
