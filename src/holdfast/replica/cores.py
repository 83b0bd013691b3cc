"""Pinning hosts on one machine to cores of their own, so that they do not take CPU time from each other."""

from __future__ import annotations

import os
from collections.abc import Sequence

from holdfast.errors import DeclarationError

__all__ = ["keep_to", "usable", "well_spread"]


def usable() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def keep_to(cores: frozenset[int]) -> None:
    """Have this process and all it starts use these cores only."""
    if not hasattr(os, "sched_setaffinity"):
        raise DeclarationError("this system cannot pin a process to cores", cure="leave out --cores and --pin")
    odd = cores - set(usable())
    if odd:
        raise DeclarationError(
            f"there is no core {min(odd)} for this process", cure=f"use some of: {', '.join(map(str, usable()))}"
        )
    os.sched_setaffinity(0, cores)


def well_spread(hosts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Cores for each host, as many for one as for another; hosts share them where there are fewer than hosts."""
    cores = usable()
    if not hosts:
        return {}
    if len(cores) < len(hosts):
        return {name: (cores[at % len(cores)],) for at, name in enumerate(hosts)}
    share = len(cores) // len(hosts)
    return {name: tuple(cores[at * share : (at + 1) * share]) for at, name in enumerate(hosts)}
