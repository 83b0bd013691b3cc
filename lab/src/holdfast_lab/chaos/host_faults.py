"""Which faults are made to hosts, in which order and when. Pure: the same seed gives the same plan."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from holdfast.replica.schemes import Scheme, wheel

__all__ = ["HOST_KINDS", "NEEDS_DATABASE", "HostFault", "HostKind", "default_kinds", "plan_host_faults", "step_of"]

HostKind = Literal[
    "primary",
    "secondary",
    "both",
    "java",
    "worker",
    "supervisor",
    "stop",
    "database",
    "partition",
    "disk",
    "turn",
    "scale",
]
HOST_KINDS: tuple[HostKind, ...] = get_args(HostKind)
NEEDS_DATABASE: frozenset[HostKind] = frozenset({"database", "partition"})
"""There is a server to kill, and a network to cut, only with PostgreSQL."""

_SHARE_IN_HASTE = 0.25


@dataclass(frozen=True, slots=True)
class HostFault:
    """`moment`, `pick` and `length` in [0, 1) say when after the first commit since the last fault it is made, to whom
    or in which way, and how long it lasts. One `in_haste` does not wait until the hosts are whole again."""

    kind: HostKind
    moment: float
    pick: float
    length: float
    in_haste: bool


def default_kinds(*, database: bool, mixed: bool) -> list[HostKind]:
    """All that there are; schemes are turned only where no scheme was asked for."""
    return [kind for kind in HOST_KINDS if (database or kind not in NEEDS_DATABASE) and (mixed or kind != "turn")]


def plan_host_faults(count: int, kinds: Sequence[HostKind], seed: int) -> list[HostFault]:
    """`count` faults, the kinds as equally often as may be, in random order at random moments."""
    rng = random.Random(seed)
    order = [kinds[i % len(kinds)] for i in range(count)]
    rng.shuffle(order)
    return [HostFault(kind, rng.random(), rng.random(), rng.random(), rng.random() < _SHARE_IN_HASTE) for kind in order]


def step_of(scheme: Scheme, pick: float) -> list[Scheme]:
    """To which schemes the wheel is turned, one step after the other: half of the time one step, else all the way to
    some scheme."""
    order = list(wheel.SCHEMES)
    place = order.index(scheme)
    if pick < 0.5:
        near = [order[at] for at in (place - 1, place + 1) if 0 <= at < len(order)]
        return [near[int(pick * 2 * len(near))]]
    others = [other for other in order if other is not scheme]
    to = order.index(others[int((pick - 0.5) * 2 * len(others))])
    way = 1 if to > place else -1
    return [order[at] for at in range(place + way, to + way, way)]
