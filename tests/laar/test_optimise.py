"""The optimiser and FT-Search against the paper's example and against an oracle that tries everything."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from fractions import Fraction
from threading import Event
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from samples import cheapest, figure_1, one_pe, tiny

from holdfast.laar import (
    Descriptor,
    FailureModel,
    Model,
    Sizes,
    Solution,
    Status,
    ft_search,
    generate,
    optimiser,
    read_descriptor,
    solve,
)
from holdfast.laar.master_program import Master
from holdfast.laar.milp import SolverEnd, SolverOutcome
from holdfast.laar.replica_packer import Packer
from holdfast.laar.rounded_strategy import rounded
from holdfast.laar.strategy import Strategy

few = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def agrees(solution: Solution, best: Fraction | None) -> None:
    """The solution is what the oracle says; costs are exact."""
    if best is None:
        assert solution.status is Status.INFEASIBLE
    else:
        assert solution.status is Status.OPTIMAL
        assert solution.cost is not None
        assert solution.cost + solution.penalty == best
        assert solution.bound == pytest.approx(float(best))


def nearly(solution: Solution, best: Fraction | None) -> None:
    """As `agrees`, but for what the solver's tolerance makes of a penalty."""
    if best is None:
        assert solution.status is Status.INFEASIBLE
    else:
        assert solution.status is Status.OPTIMAL
        assert float((solution.cost or 0) + solution.penalty) == pytest.approx(float(best), rel=2e-6, abs=1e-7)


def valid(said: Descriptor, solution: Solution, failures: FailureModel = FailureModel.PESSIMISTIC) -> bool:
    assert solution.strategy is not None
    measured = Model(said).evaluate(solution.strategy, failures)
    assert (measured.cost, measured.ic) == (solution.cost, solution.ic)
    return measured.valid


@pytest.mark.parametrize("target", [0.6, "2/3"])
def test_the_papers_example_costs_1_6_and_keeps_two_thirds(target: float | str) -> None:
    said = read_descriptor(figure_1(ic_target=target))
    for solution in (solve(said), ft_search(Model(said), 10.0)[0]):
        assert (solution.status, solution.cost, solution.ic) == (Status.OPTIMAL, Fraction(8, 5), Fraction(2, 3))
        assert valid(said, solution)


def test_the_papers_example_cannot_keep_more() -> None:
    said = read_descriptor(figure_1(ic_target=0.7))
    for solution in (solve(said), ft_search(Model(said), 10.0)[0]):
        assert (solution.status, solution.cost, solution.strategy) == (Status.INFEASIBLE, None, None)


def test_a_host_that_would_be_exactly_full_is_overloaded() -> None:
    # Low with everything active needs 0.8 of each host.
    assert solve(read_descriptor(figure_1(ic_target=0.6, K=0.81))).status is Status.OPTIMAL
    assert solve(read_descriptor(figure_1(ic_target=0.6, K=0.8))).status is Status.INFEASIBLE


@few
@given(tiny())
def test_the_optimiser_finds_what_trying_everything_finds(said: Descriptor) -> None:
    agrees(solve(said), cheapest(said))


@few
@given(tiny())
def test_ft_search_finds_what_trying_everything_finds(said: Descriptor) -> None:
    agrees(ft_search(Model(said), 60.0)[0], cheapest(said))


@settings(few, max_examples=25)
@given(tiny(replicas=3, most=2))
def test_three_replicas(said: Descriptor) -> None:
    best = cheapest(said)
    agrees(solve(said), best)
    agrees(ft_search(Model(said), 60.0)[0], best)


@settings(few, max_examples=40)
@given(tiny())
def test_the_crash_of_any_one_host(said: Descriptor) -> None:
    solution = solve(said, failures=FailureModel.HOST_CRASH)
    agrees(solution, cheapest(said, FailureModel.HOST_CRASH))
    if solution.strategy is not None:
        assert valid(said, solution, FailureModel.HOST_CRASH)


@settings(few, max_examples=40)
@given(tiny())
def test_a_penalty_in_place_of_the_limit(said: Descriptor) -> None:
    for penalty in (Fraction(1, 10), Fraction(5)):
        nearly(solve(said, penalty=penalty), cheapest(said, penalty=penalty))


@settings(few, max_examples=30)
@given(tiny(replicas=3, most=2), st.sampled_from([None, Fraction(1, 10), Fraction(5)]))
def test_the_crash_of_any_one_host_with_three_replicas(said: Descriptor, penalty: Fraction | None) -> None:
    said = dataclasses.replace(said, configs=(dataclasses.replace(said.configs[0], prob=Fraction(1)),))
    nearly(
        solve(said, failures=FailureModel.HOST_CRASH, penalty=penalty), cheapest(said, FailureModel.HOST_CRASH, penalty)
    )


@settings(few, max_examples=30)
@given(tiny(most=2, placed=False), st.sampled_from(FailureModel), st.sampled_from([None, Fraction(1, 10), Fraction(5)]))
def test_an_open_placement_with_any_failures_and_penalty(
    said: Descriptor, failures: FailureModel, penalty: Fraction | None
) -> None:
    said = dataclasses.replace(said, capacities=(*said.capacities, said.capacities[0]))
    nearly(solve(said, failures=failures, penalty=penalty), cheapest(said, failures, penalty))


@settings(few, max_examples=40)
@given(tiny())
def test_a_large_penalty_does_not_make_everything_optimal(said: Descriptor) -> None:
    penalty = Fraction(10**9)
    solution, best = solve(said, penalty=penalty), cheapest(said, penalty=penalty)
    if solution.status is not Status.FEASIBLE:
        nearly(solution, best)
    else:
        assert best is not None
        assert solution.bound is not None
        assert solution.bound <= float(best) * (1 + 1e-6)


@settings(few, max_examples=25)
@given(tiny(most=2, placed=False))
def test_the_placement_is_found_too(said: Descriptor) -> None:
    said = dataclasses.replace(said, capacities=(*said.capacities, said.capacities[0]))
    solution = solve(said)
    agrees(solution, cheapest(said))
    if solution.strategy is not None:
        assert all(len(set(hosts)) == 2 for hosts in solution.strategy.placement)


def test_fewer_hosts_than_replicas_share_them_as_they_have_room() -> None:
    said = read_descriptor(one_pe(n_hosts=2, K=[2.5, 1.5], k=3, placement=None, ic_target=1))
    solution = solve(said)
    agrees(solution, Fraction(3))
    assert solution.strategy is not None
    assert solution.strategy.placement == ((0, 0, 1),)


@settings(few, max_examples=15)
@given(tiny(replicas=3, most=2, placed=False), st.sampled_from(FailureModel))
def test_three_replicas_are_placed_on_two_hosts(said: Descriptor, failures: FailureModel) -> None:
    said = dataclasses.replace(
        said, capacities=said.capacities[:2], configs=(dataclasses.replace(said.configs[0], prob=Fraction(1)),)
    )
    agrees(solve(said, failures=failures), cheapest(said, failures))


@pytest.mark.parametrize("failures", FailureModel)
@pytest.mark.parametrize("placed", [True, False])
@pytest.mark.parametrize("rate", [10**9, 10**13])
def test_pes_that_bring_next_to_nothing_are_not_forgotten(rate: int, placed: bool, failures: FailureModel) -> None:
    pes = ["large", *(f"small{i}" for i in range(20))]
    edges = [{"from": f"in_{pe[:5]}", "to": pe, "selectivity": 1, "cost": 0.1} for pe in pes]
    said = figure_1(
        sources=["in_large", "in_small"],
        pes=pes,
        configs=[{"name": "Only", "prob": 1, "rates": [rate, 0.5]}],
        edges=edges,
        K=rate,
        placement=[[0, 1]] * len(pes) if placed else None,
        ic_target=1,
    )
    agrees(solve(read_descriptor(said), failures=failures), Fraction(2 * (rate + 10), 10))


def test_what_two_replicas_on_one_host_overfill_is_refuted() -> None:
    said = read_descriptor(one_pe(n_hosts=1, placement=[[0, 0]], ic_target=0))
    assert solve(said, failures=FailureModel.HOST_CRASH).status is Status.INFEASIBLE


def test_a_placement_on_request_is_no_worse_than_the_given_one() -> None:
    said = generate(5, Sizes(3, 3), Fraction(7, 10))
    given, found = solve(said), solve(said, place=True)
    assert valid(said, found)
    assert given.cost is not None
    assert found.cost is not None
    assert found.cost <= given.cost


@pytest.mark.parametrize("seed", range(12))
def test_ft_search_and_the_optimiser_agree(seed: int) -> None:
    said = generate(seed, Sizes(2, 3 + seed % 2), Fraction(5 + seed % 5, 10))
    found, (searched, stats) = solve(said, 60.0), ft_search(Model(said), 60.0)
    assert (found.status, found.cost) == (searched.status, searched.cost)
    if found.cost is not None:
        assert stats.first_cost is not None
        assert stats.first_cost >= found.cost
        assert valid(said, found)


@pytest.mark.parametrize(
    ("said", "pruned"),
    [
        # No replica fits.
        (one_pe(K=0.5, ic_target=0), {"CPU": 3}),
        # Both replicas keep the target, and neither alone does.
        (one_pe(K=10, ic_target=1), {"COMPL": 2}),
        # Both, then the first alone; the second costs as much.
        (one_pe(K=10, ic_target=0), {"COST": 1}),
        # Where the first PE is not replicated, nothing is gained from the second. Each PE's second single replica, and
        # the second PE's once more, cost as much as what is known.
        (figure_1(K=10, ic_target=0, configs=[{"name": "Only", "prob": 1, "rates": [1]}]), {"DOM": 1, "COST": 3}),
    ],
)
def test_ft_search_counts_what_each_pruning_cuts_off(said: dict[str, Any], pruned: dict[str, int]) -> None:
    _, stats = ft_search(Model(read_descriptor(said)), 60.0)
    assert {reason: count for reason, count in stats.pruned.items() if count} == pruned


@pytest.mark.long
def test_packing_as_part_of_the_program_finds_the_same() -> None:
    problems = [generate(seed, Sizes(3, 3), Fraction(5 + seed % 4, 10)) for seed in range(40)]
    expected = [solve(said, 60.0) for said in problems]
    with (
        patch.multiple(optimiser, _MASTER_SHARE=-1.0, _SMALL=0.2),
        patch.object(optimiser, "_split", wraps=optimiser._split) as split,
    ):
        found = [solve(said, 60.0) for said in problems]
    assert [(solution.status, solution.cost) for solution in found] == [
        (solution.status, solution.cost) for solution in expected
    ]
    assert split.call_count > 3


def test_where_rounding_finds_nothing_the_same_is_found() -> None:
    """Then the program with packing and the search for a first strategy begin at once, in two threads."""
    problems = [generate(seed, Sizes(3, 3), Fraction(5 + seed % 4, 10)) for seed in range(20)]
    expected = [solve(said, 60.0) for said in problems]
    with (
        patch.object(optimiser, "rounded", return_value=None),
        patch.object(optimiser, "_split", wraps=optimiser._split) as split,
    ):
        found = [solve(said, 60.0) for said in problems]
    assert [(each.status, each.cost) for each in found] == [(each.status, each.cost) for each in expected]
    assert {each.kwargs["cut_up"] for each in split.call_args_list} == {0.0}


@pytest.mark.long
@pytest.mark.parametrize(("seed", "cost"), [(20, 4.857867155684), (42, 4.336511906530), (100, 3.301629872089)])
def test_applications_that_fill_their_hosts_are_proven(seed: int, cost: float) -> None:
    """96 PEs on 8 hosts, for which rounding finds nothing. Each takes 3 to 6 s of CPU time."""
    said = generate(seed, Sizes(8, 12), Fraction("0.67"))
    solution = solve(said, 600.0)
    assert (solution.status, float(solution.cost or 0)) == (Status.OPTIMAL, pytest.approx(cost, rel=1e-9))
    assert valid(said, solution)


@pytest.mark.long
def test_the_first_thread_to_end_stops_the_other() -> None:
    # Packing as part of the program takes more than 10 s here, and refuting answers a second.
    said = generate(100_112, Sizes(5, 11), Fraction(7, 10))
    with patch.object(optimiser, "_MASTER_SHARE", -1.0):
        solution = solve(said, 120.0)
    assert solution.status is Status.OPTIMAL
    assert solution.seconds < 60.0
    assert valid(said, solution)


def test_a_program_is_stopped_by_another_thread() -> None:
    stop = Event()
    stop.set()
    outcome = Master(Model(generate(219, Sizes(12, 12), Fraction(7, 10)))).solve(120.0, stop=stop)
    assert outcome.end is SolverEnd.TIME


def test_strategies_of_large_applications_are_valid_and_proven() -> None:
    said = generate(9, Sizes(12, 6), Fraction(4, 5))
    solution = solve(said, 60.0)
    assert solution.status is Status.OPTIMAL
    assert valid(said, solution)


@pytest.mark.parametrize("limit", [0.05, 0.5])
def test_the_time_limit_is_kept(limit: float) -> None:
    said = generate(219, Sizes(12, 12), Fraction(7, 10))
    for find in (lambda: solve(said, limit), lambda: ft_search(Model(said), limit)[0]):
        started = time.process_time()
        solution = find()
        assert time.process_time() - started < 2 * limit + 1.0, "of two threads"
        assert solution.status in (Status.FEASIBLE, Status.UNKNOWN)
        assert solution.bound is not None
        if solution.cost is not None:
            assert solution.bound <= float(solution.cost)


@pytest.mark.parametrize("penalty", [None, Fraction(10**9)])
def test_something_is_found_long_before_the_best(penalty: Fraction | None) -> None:
    said = generate(219, Sizes(12, 12), Fraction(7, 10))
    with patch.object(Master, "solve", only_relaxed(Master.solve)):
        solution = solve(said, 30.0, penalty=penalty)
    assert solution.status is Status.FEASIBLE
    assert valid(said, solution)
    assert solution.cost is not None
    assert solution.cost < 2 * Fraction(solution.bound or 0)


def only_relaxed(real: Callable[..., SolverOutcome]) -> Callable[..., SolverOutcome]:
    """No whole program is solved in time."""

    def answer(master: Master, time_limit: float, relaxed: bool = False, **rest: Any) -> SolverOutcome:
        return real(master, time_limit if relaxed else 0.0, relaxed, **rest)

    return answer


def test_the_first_strategy_leaves_out_what_does_not_fit() -> None:
    # Both PEs are wanted by the relaxation in High, and only one of them fits.
    said = read_descriptor(figure_1(ic_target=0.7, K=1.7))
    model = Model(said)
    assert said.placement is not None
    packers = [Packer(model, c, said.placement) for c in range(2)]
    shares = [np.array([0.5, 0.5]), np.array([1.0, 1.0])]
    active = rounded(model, packers, shares, 0.7, lambda: 1.0)
    assert active is not None
    assert model.evaluate(Strategy(active, said.placement)).valid
    assert rounded(model, packers, shares, 1.0, lambda: 1.0) is None


def test_with_a_penalty_single_replicas_are_something() -> None:
    said = read_descriptor(figure_1(ic_target=1))
    with patch.object(Master, "solve", only_relaxed(Master.solve)):
        solution = solve(said, penalty=Fraction(1, 100))
    assert solution.cost is not None


def test_several_sources_and_rates() -> None:
    said = generate(4, Sizes(3, 2, sources=2, levels=3), Fraction(1, 2))
    assert len(said.configs) == 9
    solution = solve(said, 60.0)
    assert solution.status is Status.OPTIMAL
    assert valid(said, solution)
