"""A strategy for hosts with names: which of them process which fragment in which input configuration."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import msgspec

from holdfast.errors import DescriptorError
from holdfast.laar.descriptor import Descriptor, read_descriptor
from holdfast.laar.model import Model
from holdfast.laar.optimiser import DEFAULT_SECONDS, solve
from holdfast.laar.reaction import HOSTS, expected_trace, reaction_share
from holdfast.laar.solution import Solution, Status
from holdfast.laar.strategy import NamedActivations, Placement, Strategy, static_strategy

__all__ = ["ActivationPlan", "Feed", "StoredPlan", "check_names", "planned", "solved_with_room"]

_SEATS = 2


class Feed(msgspec.Struct, frozen=True, array_like=True):
    """Where the rate of a source is seen: what a fragment takes from outside or, where it is one of the `streams` that
    the fragment reads, what that p-stream gets from clients."""

    fragment: str
    streams: int = 0


@dataclass(frozen=True, slots=True)
class ActivationPlan:
    """`hosts` are those of the descriptor by their names; `feeds` has the sources of the descriptor."""

    descriptor: Descriptor
    strategy: Strategy
    hosts: tuple[str, ...]
    feeds: Mapping[str, Feed]
    ic: float
    cost: float
    static_cost: float
    origin: str = ""
    room: float = 0.0
    """How much more than was asked for the strategy keeps, for what comes before a change of rates is seen; 0 where
    no strategy has that much."""

    def active(self, config: int) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
        """For each fragment the hosts that are to process it, and those that may."""
        rows = zip(self.descriptor.pes, self.strategy.active[config], self.strategy.placement, strict=True)
        return {
            pe: (
                tuple(self.hosts[host] for on, host in zip(active, places, strict=True) if on),
                tuple(self.hosts[host] for host in places),
            )
            for pe, active, places in rows
        }


class StoredPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan of activations as it is stored: the strategy by the names of configurations."""

    descriptor: msgspec.Raw
    strategy: NamedActivations
    placement: Placement
    hosts: tuple[str, ...]
    feeds: Mapping[str, Feed]
    ic: float
    cost: float
    static_cost: float
    origin: str
    room: float = 0.0
    """Plans of before have none."""

    @staticmethod
    def of(plan: ActivationPlan) -> StoredPlan:
        return StoredPlan(
            descriptor=msgspec.Raw(plan.descriptor.encode().encode()),
            strategy=plan.strategy.named(plan.descriptor),
            placement=plan.strategy.placement,
            hosts=plan.hosts,
            feeds=plan.feeds,
            ic=plan.ic,
            cost=plan.cost,
            static_cost=plan.static_cost,
            origin=plan.origin,
            room=plan.room,
        )

    def plan(self) -> ActivationPlan:
        descriptor = read_descriptor(bytes(self.descriptor).decode())
        active = tuple(self.strategy[config.name] for config in descriptor.configs)
        return ActivationPlan(
            descriptor, Strategy(active, self.placement), self.hosts, self.feeds, self.ic, self.cost, self.static_cost,
            self.origin, self.room,
        )  # fmt: skip


def planned(
    descriptor: Descriptor,
    target: float,
    hosts: Sequence[str],
    fragments: Sequence[str],
    feeds: Mapping[str, Feed],
    origin: str,
    seconds: float = DEFAULT_SECONDS,
) -> ActivationPlan:
    """The cheapest activation that keeps the target on these hosts, as far as it is found within `seconds`, with room
    for the time that hosts take to see a change of rates where there is one; an error says why there is none."""
    said = dataclasses.replace(descriptor, ic_target=Fraction(repr(target)))
    _check(said, hosts, fragments, feeds)
    said, solution = solved_with_room(said, seconds)
    if solution.strategy is None or solution.cost is None or solution.ic is None:
        room = ", ".join(f"{float(capacity):g}" for capacity in said.capacities)
        found = "no strategy keeps" if solution.status is Status.INFEASIBLE else "no strategy was found in time for"
        raise DescriptorError(
            f"{found} a completeness of {target:g} of '{said.name}' on hosts of {room} CPU seconds per second",
            cure="ask for less, or give more or larger hosts",
        )
    static = Model(said).cost(static_strategy(said, solution.strategy.placement))
    return ActivationPlan(
        said, solution.strategy, tuple(hosts), dict(feeds), float(solution.ic), float(solution.cost), float(static),
        origin, float(said.ic_target) - target,
    )  # fmt: skip


def solved_with_room(said: Descriptor, seconds: float) -> tuple[Descriptor, Solution]:
    """The solution for a target that is raised by what may come before hosts have seen a change of rates, as often as
    it changes in the paper's trace; if there is none, that for the target itself. And the descriptor it is for."""
    began, model = time.monotonic(), Model(said)
    raised = said.ic_target + reaction_share(model, expected_trace(model), HOSTS)
    if said.ic_target < raised <= 1:
        more = dataclasses.replace(said, ic_target=raised)
        solution = solve(more, seconds / 2)
        if solution.strategy is not None:
            return more, solution
    return said, solve(said, max(seconds / 2, seconds - (time.monotonic() - began)))


def _check(said: Descriptor, hosts: Sequence[str], fragments: Sequence[str], feeds: Mapping[str, Feed]) -> None:
    """Whether the descriptor is of what runs here."""
    if said.hosts != len(hosts):
        raise DescriptorError(
            f"n_hosts: it is {said.hosts}, but there are {len(hosts)} hosts",
            cure=f"start as many with --hosts {said.hosts}, or correct n_hosts",
        )
    if said.replicas != _SEATS:
        raise DescriptorError(
            f"k: it is {said.replicas}, but on hosts each fragment has {_SEATS} seats",
            cure="give k = 2; more replicas can be solved for and simulated",
        )
    check_names(said, fragments, feeds)


def check_names(said: Descriptor, fragments: Sequence[str], feeds: Mapping[str, Feed]) -> None:
    """Whether its PEs are the fragments of this pipeline, and its sources theirs."""
    for what, names, known in (("sources", said.sources, feeds), ("pes", said.pes, fragments)):
        odd = sorted(set(names) ^ set(known))
        if odd:
            raise DescriptorError(
                f"{what}: '{odd[0]}' is {'missing' if odd[0] in known else 'not of this pipeline'}",
                cure=f"list what `holdfast laar measure` lists: {', '.join(sorted(known))}",
            )
