"""What a guarantee of completeness comes to, in words: the activation strategy, its cost and what it keeps."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fractions import Fraction

from holdfast.laar.descriptor import Descriptor, InputConfiguration
from holdfast.laar.host_strategy import ActivationPlan, solved_with_room
from holdfast.laar.model import Model
from holdfast.laar.optimiser import DEFAULT_SECONDS
from holdfast.laar.solution import Status
from holdfast.laar.strategy import Strategy, static_strategy

__all__ = ["explain_completeness", "explain_plan", "not_measured", "room_of"]


def explain_completeness(target: float, descriptor: Descriptor, origin: str) -> list[str]:
    """Lines for `explain`. `origin` says where the descriptor is from."""
    said = dataclasses.replace(descriptor, ic_target=Fraction(repr(target)))
    said, solution = solved_with_room(said, DEFAULT_SECONDS)
    if solution.strategy is None or solution.cost is None or solution.ic is None:
        why = "no strategy keeps that" if solution.status is Status.INFEASIBLE else "no strategy was found in time"
        room = ", ".join(f"{float(capacity):g}" for capacity in said.capacities)
        where = f"on {said.hosts} hosts of {room} CPU seconds per second"
        return [*_asked(target, origin), f"  {why} {where}: give more, or ask for less"]
    static = Model(said).cost(static_strategy(said, solution.strategy.placement))
    proven = "the minimum" if solution.status is Status.OPTIMAL else f"at least {solution.bound:.4g} is needed"
    hosts = [str(number) for number in range(said.hosts)]
    figures = (float(solution.ic), float(solution.cost), float(static))
    kept = _kept(*figures, float(said.ic_target) - target, f"; {proven}")
    return [*_asked(target, origin), *kept, *_when(said, solution.strategy, hosts)]


def explain_plan(target: float, plan: ActivationPlan) -> list[str]:
    """Lines for `explain`, of what hosts go by that run the pipeline."""
    kept = _kept(plan.ic, plan.cost, plan.static_cost, plan.room, "")
    return [*_asked(target, f"that of the hosts, {plan.origin}"), *kept,
            *_when(plan.descriptor, plan.strategy, plan.hosts)]  # fmt: skip


def _asked(target: float, origin: str) -> list[str]:
    return [f"completeness: at least {target:g} of all tuples, whatever fails", f"  descriptor: {origin}"]


def _kept(ic: float, cost: float, static: float, room: float, more: str) -> list[str]:
    saved = 1 - cost / static if static else 0.0
    return [
        f"  guaranteed: {ic:.4g}, {room_of(room)}",
        f"  cost: {cost:.4g} CPU seconds per second, {saved:.0%} less than static replication ({static:.4g}){more}",
    ]


def room_of(room: float) -> str:
    """What a plan has for the time in which hosts do not know yet that the rates have changed."""
    if room > 0:
        return f"{room:.2g} of it for what arrives before a change of rates is noticed"
    return "less what arrives before a change of rates is noticed: no strategy has room for that"


def _when(said: Descriptor, strategy: Strategy, hosts: Sequence[str]) -> list[str]:
    return [line for c, config in enumerate(said.configs) for line in _configuration(said, strategy, c, config, hosts)]


def not_measured(target: float, pipeline: str) -> list[str]:
    """Lines for `explain` where there is no descriptor."""
    return [
        f"completeness: at least {target:g} of all tuples, whatever fails",
        "  rates and costs are not measured yet, so the plan is not known: run the pipeline on this store, or"
        f" give --descriptor; see `holdfast laar measure {pipeline} --help`",
    ]


def _configuration(
    said: Descriptor, strategy: Strategy, number: int, config: InputConfiguration, names: Sequence[str]
) -> list[str]:
    rates = ", ".join(f"{name} {float(rate):.4g}/s" for name, rate in zip(said.sources, config.rates, strict=True))
    lines = [f"  {config.name}, up to {rates}, {float(config.prob):.0%} of the time:"]
    for pe, active, hosts in zip(said.pes, strategy.active[number], strategy.placement, strict=True):
        on = [names[host] for runs, host in zip(active, hosts, strict=True) if runs]
        many = "all replicas" if len(on) == said.replicas else "one replica" if len(on) == 1 else f"{len(on)} replicas"
        lines.append(f"    {pe}: {many}, on host{'s' if len(on) > 1 else ''} {', '.join(on)}")
    return lines
