"""A strategy for hosts with names: which of them process which fragment in which input configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from holdfast.completeness.descriptor import Descriptor, read_descriptor
from holdfast.completeness.model import Model
from holdfast.completeness.optimise import DEFAULT_SECONDS, solve
from holdfast.completeness.solution import Status
from holdfast.completeness.strategy import Strategy, read_strategy, static_strategy
from holdfast.errors import DescriptorError

__all__ = ["ActivationPlan", "Feed", "planned"]

_SEATS = 2


@dataclass(frozen=True, slots=True)
class Feed:
    """Where the rate of a source is seen: what a fragment takes from outside or, as one of `streams`, of p-streams."""

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

    def to_json(self) -> dict[str, Any]:
        return {
            "descriptor": self.descriptor.to_json(),
            "strategy": self.strategy.to_json(self.descriptor),
            "placement": [list(each) for each in self.strategy.placement],
            "hosts": list(self.hosts),
            "feeds": {name: [feed.fragment, feed.streams] for name, feed in self.feeds.items()},
            "ic": self.ic,
            "cost": self.cost,
            "static_cost": self.static_cost,
            "origin": self.origin,
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> ActivationPlan:
        descriptor = read_descriptor(value["descriptor"])
        return ActivationPlan(
            descriptor,
            read_strategy({"strategy": value["strategy"], "placement": value["placement"]}, descriptor),
            tuple(value["hosts"]),
            {name: Feed(*feed) for name, feed in value["feeds"].items()},
            value["ic"],
            value["cost"],
            value["static_cost"],
            value["origin"],
        )


def planned(
    descriptor: Descriptor,
    target: float,
    hosts: Sequence[str],
    fragments: Sequence[str],
    feeds: Mapping[str, Feed],
    origin: str,
    seconds: float = DEFAULT_SECONDS,
) -> ActivationPlan:
    """The cheapest activation that keeps the target on these hosts, as far as it is found within `seconds`; an error
    says why there is none."""
    said = dataclasses.replace(descriptor, ic_target=Fraction(repr(target)))
    _check(said, hosts, fragments, feeds)
    solution = solve(said, seconds)
    if solution.strategy is None or solution.cost is None or solution.ic is None:
        room = ", ".join(f"{float(each):g}" for each in said.capacities)
        found = "no strategy keeps" if solution.status is Status.INFEASIBLE else "no strategy was found in time for"
        raise DescriptorError(
            f"{found} a completeness of {target:g} of '{said.name}' on hosts of {room} CPU seconds per second",
            cure="ask for less, or give more or larger hosts",
        )
    static = Model(said).cost(static_strategy(said, solution.strategy.placement))
    return ActivationPlan(
        said, solution.strategy, tuple(hosts), dict(feeds), float(solution.ic), float(solution.cost), float(static),
        origin,
    )  # fmt: skip


def _check(said: Descriptor, hosts: Sequence[str], fragments: Sequence[str], feeds: Mapping[str, Feed]) -> None:
    """Whether the descriptor is of what runs here."""
    if said.hosts != len(hosts):
        raise DescriptorError(
            f"n_hosts: it is {said.hosts}, and there are {len(hosts)} hosts",
            cure=f"start as many with --hosts {said.hosts}, or correct n_hosts",
        )
    if said.replicas != _SEATS:
        raise DescriptorError(
            f"k: it is {said.replicas}, and on hosts each fragment has {_SEATS} seats",
            cure="give k = 2; more replicas can be solved for and simulated",
        )
    for what, names, known in (("sources", said.sources, feeds), ("pes", said.pes, fragments)):
        odd = sorted(set(names) ^ set(known))
        if odd:
            raise DescriptorError(
                f"{what}: '{odd[0]}' is {'not there' if odd[0] in known else 'not of this pipeline'}",
                cure=f"list what `holdfast laar measure` would: {', '.join(sorted(known))}",
            )
