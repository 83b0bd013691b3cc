"""Checkpoint policies as a user writes them: `hf.delta()`, `hf.interval("5s")`, `hf.eventual("2s")`, `hf.none()`, or
their names."""

from __future__ import annotations

import re
from typing import Any

from holdfast.errors import DeclarationError, WrongTypeError
from holdfast.graph.durations import Duration, parse_duration
from holdfast.state.policy import DELTA, NONE, Policy

__all__ = ["PolicyLike", "as_policy", "check_policy", "delta", "eventual", "interval", "none"]

PolicyLike = Policy | str | None
"""A policy, its name ("delta", "none", "interval(5s)", "eventual(2s)", "eventual(Q=200000, CI=50ms)"), or "auto" or
None to have it chosen by cost."""

_INTERVAL = re.compile(r"interval\((.+)\)")
_EVENTUAL = re.compile(r"eventual(?:\((.*)\))?")
_RECOVERY, _SPEND, _PERIOD = "2s", "50ms", "1s"


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


def eventual(
    recovery: Duration | None = None,
    *,
    Q: int | None = None,  # noqa: N803 - the names that the literature gives them
    U: int | None = None,  # noqa: N803
    CI: Duration = _SPEND,  # noqa: N803
    CP: Duration = _PERIOD,  # noqa: N803
) -> Policy:
    """Continuous eventual checkpoints: each window leaves footprints in the operator's output stream, when it opens and
    again while it stays open, and never does the operator stop to write all of its state.

    By default the windows get as many footprints as a recovery within `recovery` needs. With `Q` or `U`, the oldest
    get one while recovery would have to read more than `Q` footprints or to replay more than `U` rows. No more than
    `CI` out of every `CP` are spent on it. The sources must keep the rows since the oldest footprint.
    """
    spend, period = parse_duration(CI) / 1e9, parse_duration(CP) / 1e9
    for name, number in (("Q", Q), ("U", U)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise DeclarationError(f"{name} is {number!r}", cure=f"give {name} as a positive number of records or rows")
    if not 0 < spend <= period:
        raise DeclarationError(
            f"{spend:g} s out of every {period:g} s for checkpoints", cure="give a positive CI that is at most CP"
        )
    sized = Q is not None or U is not None
    if sized and recovery is not None:
        raise DeclarationError(
            "both a recovery time and sizes (Q, U) are given", cure="give either: the sizes follow from the time"
        )
    target = None if sized else parse_duration(_RECOVERY if recovery is None else recovery) / 1e9
    if target is not None and target <= 0:
        raise DeclarationError(f"a recovery within {target:g} s", cure="give a positive duration, e.g. '2s'")
    return Policy("eventual", most_records=Q, most_rows=U, spend=spend, period=period, recovery=target)


def as_policy(value: PolicyLike) -> Policy | None:
    """None stands for "as costs least"."""
    if value is None or isinstance(value, Policy):
        return value
    if not isinstance(value, str):
        raise WrongTypeError(
            f"{value!r} is no checkpoint policy",
            cure='give e.g. hf.eventual("2s"), hf.interval("5s"), or a name: "delta"',
        )
    found = {"auto": None, "delta": DELTA, "none": NONE}
    if value in found:
        return found[value]
    try:
        if (match := _INTERVAL.fullmatch(value.strip())) is not None:
            return interval(match[1])
        if (match := _EVENTUAL.fullmatch(value.strip())) is not None:
            return _parsed_eventual(match[1] or "")
    except (WrongTypeError, ValueError, TypeError):
        pass
    raise DeclarationError(
        f"'{value}' is no checkpoint policy",
        cure="choose 'auto', 'delta', 'none', 'interval(5s)' with your seconds, or 'eventual(2s)' with your recovery"
        " time or with Q, U, CI and CP as in 'eventual(Q=200000, U=1000000, CI=50ms, CP=1s)'",
    )


def _parsed_eventual(text: str) -> Policy:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if parts == ["open"]:
        return Policy("eventual", only_open=True)
    named: dict[str, Any] = {}
    for part in parts:
        name, equals, given = (piece.strip() for piece in part.partition("="))
        if not equals:
            name, given = "recovery", name
        if name in named or given == "open":
            raise ValueError(part)
        named[name] = int(given.replace("_", "")) if name in ("Q", "U") else given
    return eventual(**named)


def check_policy(value: PolicyLike, operator: str) -> Policy | None:
    """The policy that an operator asks for."""
    try:
        return as_policy(value)
    except DeclarationError as error:
        raise error.at(operator=operator) from None
