"""The wheel: the schemes in the order of their recovery time, and the steps between them while a pipeline runs.

It is an arc: a step goes to the next faster or the next slower scheme, and the fastest and the cheapest are its ends.
"""

from __future__ import annotations

from holdfast.errors import InvalidTransitionError
from holdfast.replica.schemes.active_replication import ACTIVE_REPLICATION
from holdfast.replica.schemes.active_standby import ACTIVE_STANDBY
from holdfast.replica.schemes.cold_standby import COLD_STANDBY
from holdfast.replica.schemes.deployed import DEPLOYED
from holdfast.replica.schemes.hot_standby import HOT_STANDBY
from holdfast.replica.schemes.passive_replication import PASSIVE_REPLICATION
from holdfast.replica.schemes.scheme import Scheme

__all__ = ["SCHEMES", "check_step", "is_step", "path", "rank", "scheme_of"]

SCHEMES: tuple[Scheme, ...] = (
    ACTIVE_REPLICATION,
    ACTIVE_STANDBY,
    HOT_STANDBY,
    COLD_STANDBY,
    DEPLOYED,
    PASSIVE_REPLICATION,
)
"""The fastest recovery first."""


def rank(scheme: Scheme) -> int:
    """0 for the scheme that recovers fastest."""
    return SCHEMES.index(scheme)


def scheme_of(name: object) -> Scheme:
    """The scheme of a stored name; ValueError where there is none."""
    for scheme in SCHEMES:
        if scheme.name == name:
            return scheme
    raise ValueError(f"there is no scheme '{name}'")


def is_step(scheme: Scheme, to: Scheme) -> bool:
    """Whether the two are neighbours on the wheel."""
    return abs(rank(scheme) - rank(to)) == 1


def path(scheme: Scheme, to: Scheme) -> tuple[Scheme, ...]:
    """The schemes to pass on the way from one to the other, the last being `to`; empty if they are the same."""
    here, there = rank(scheme), rank(to)
    return SCHEMES[here + 1 : there + 1] if here < there else SCHEMES[there:here][::-1]


def check_step(scheme: Scheme, to: Scheme) -> None:
    """Refuse what is no step of the wheel, and name the way there is."""
    if is_step(scheme, to):
        return
    raise InvalidTransitionError(
        f"there is no step from {scheme} to {to} on the wheel",
        cure=f"it is already {to}"
        if scheme is to
        else f"go {' → '.join(step.name for step in (scheme, *path(scheme, to)))}",
    )
