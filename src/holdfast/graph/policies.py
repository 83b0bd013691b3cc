"""Checkpoint policies as a user writes them: `hf.delta()`, `hf.interval("5s")`, `hf.none()`, or their names."""

from __future__ import annotations

import re

from holdfast.errors import DeclarationError, WrongTypeError
from holdfast.graph.durations import Duration, parse_duration
from holdfast.state.policy import DELTA, NONE, Policy

__all__ = ["PolicyLike", "as_policy", "delta", "interval", "none"]

PolicyLike = Policy | str | None
"""A policy, its name ("delta", "none", "interval(5s)"), or "auto" or None to have it chosen by cost."""

_INTERVAL = re.compile(r"interval\((.+)\)")


def delta() -> Policy:
    """All state is durable with each epoch: recovery goes on with the next one."""
    return DELTA


def interval(seconds: Duration) -> Policy:
    """State is made durable every so often, beside the epochs. If a host is lost in between, the epochs since the last
    checkpoint are replayed, so the sources must still have their input."""
    length = parse_duration(seconds) / 1e9
    if length <= 0:
        raise DeclarationError(f"a checkpoint interval of {length:g} s", cure="give a positive duration, e.g. '5s'")
    return Policy("interval", length)


def none() -> Policy:
    """State is never made durable. If a host is lost, what its state was made of is replayed: what open windows have
    seen, or everything where state has no end."""
    return NONE


def as_policy(value: PolicyLike) -> Policy | None:
    """None stands for "as costs least"."""
    if value is None or isinstance(value, Policy):
        return value
    found = {"auto": None, "delta": DELTA, "none": NONE}
    if value in found:
        return found[value]
    match = _INTERVAL.fullmatch(value.strip())
    try:
        if match is not None:
            return interval(match[1])
    except WrongTypeError:
        pass
    raise DeclarationError(
        f"'{value}' is no checkpoint policy", cure="choose 'auto', 'delta', 'none' or 'interval(5s)' with your seconds"
    )
