"""The join of two streams, as it is declared: rows with equal keys in the same window, or near each other in time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import polars as pl

from holdfast.errors import DeclarationError, UnboundedStateError, WrongTypeError
from holdfast.graph.checks import check_choice, check_keys, check_partitions, check_was, infer, need_time
from holdfast.graph.durations import Duration, EventTime, bound_type
from holdfast.graph.nodes import IntervalJoin, Node, StreamJoin
from holdfast.graph.policies import PolicyLike, check_policy
from holdfast.graph.windows import Window

__all__ = ["JOINED_TIME", "Interval", "JoinDeclaration", "joined"]

Interval = Duration | tuple[Duration, Duration]
"""How far the other row's time may lie from this one's: from the first to the second duration after it, where "-10 min"
is before it; or one duration, before and after."""

JOINED_TIME = "joined_time"
"""The column with the event time of what was joined within an interval."""

_BOUNDS = ("window_start", "window_end")


@dataclass(frozen=True, slots=True)
class JoinDeclaration:
    """What a user says of every join. `nodes` are those of the pipeline."""

    name: str
    left: Node
    right: Node
    nodes: Mapping[str, Node]
    on: str | list[str]
    how: Literal["inner", "left", "right", "full"]
    suffix: str
    partitions: int | None
    was: str | None
    checkpoint: PolicyLike

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.on,) if isinstance(self.on, str) else tuple(self.on)

    def _common(self) -> dict[str, Any]:
        """What every operator is made with."""
        return {
            "name": self.name,
            "inputs": (self.left.name, self.right.name),
            "keys": self.keys,
            "suffix": self.suffix,
            "partitions": check_partitions(self.partitions, self.name),
            "was": check_was(self.was, self.name),
            "checkpoint": check_policy(self.checkpoint, self.name),
        }

    def time(self) -> EventTime:
        """The event time of the left side, where both sides fit together."""
        name, left, right = self.name, self.left, self.right
        check_keys(name, self.keys, left.schema)
        check_keys(name, self.keys, right.schema)
        for key in self.keys:
            if left.schema[key] != right.schema[key]:
                raise WrongTypeError(
                    f"key '{key}' is {left.schema[key]} on the left and {right.schema[key]} on the right",
                    cure="cast one side with cast",
                    operator=name,
                )
        time, other_time = need_time(left, name, self.nodes), need_time(right, name, self.nodes)
        if time.unit != other_time.unit:
            raise WrongTypeError(
                f"event times are in {time.unit} and {other_time.unit}", cure="convert one side first", operator=name
            )
        return time

    def rows(self) -> pl.Schema:
        """The columns of both sides; the bounds of windows before this one go, unless they are keys."""
        keys = self.keys
        one, two = (
            pl.Schema({name: dtype for name, dtype in node.schema.items() if name not in _BOUNDS or name in keys})
            for node in (self.left, self.right)
        )
        other = pl.DataFrame(schema=two).lazy()
        return infer(
            self.name,
            one,
            lambda rows: rows.join(other, on=list(keys), how="full", suffix=self.suffix, coalesce=True),
        )


def joined(declared: JoinDeclaration, window: Window | None, within: Interval | None) -> StreamJoin | IntervalJoin:
    """The operator that joins both streams, checked."""
    if within is not None:
        if window is not None:
            raise DeclarationError(
                "a join in a window and within an interval", cure="give one of the two", operator=declared.name
            )
        return _within(declared, within)
    if window is None:
        raise UnboundedStateError(
            "a join of two streams without a window would keep every row forever",
            cure="give it a window: .join(other, on=..., window=hf.window.tumbling('10s')), or an interval:"
            " within=('-10 min', '5 min')",
            operator=declared.name,
        )
    if not isinstance(window, Window) or not window.aligned:
        raise WrongTypeError(
            f"join within {window}", cure="use a tumbling or sliding time window", operator=declared.name
        )
    if declared.how == "right":
        raise WrongTypeError(
            "how='right' in a window",
            cure="swap the sides with how='left', or within an interval: within='10 min'",
            operator=declared.name,
        )
    check_choice(declared.name, "how", declared.how, ("inner", "left", "full"))
    time = declared.time()
    window.check(time, declared.name)
    rows, bound = declared.rows(), bound_type(declared.left.schema[time.column])
    schema = pl.Schema({**rows, **{column: bound for column in _BOUNDS if column not in rows}})
    return StreamJoin(
        **declared._common(), schema=schema, time=EventTime("window_end", time.unit, -1), window=window,
        how=declared.how,
    )  # fmt: skip


def _within(declared: JoinDeclaration, within: Interval) -> IntervalJoin:
    name = declared.name
    check_choice(name, "how", declared.how, ("inner", "left", "right", "full"))
    time = declared.time()
    if isinstance(within, tuple | list):
        if len(within) != 2:
            raise WrongTypeError(
                f"within={within!r}", cure="give two durations: within=('-10 min', '5 min')", operator=name
            )
        low, high = (_signed(time, bound, name) for bound in within)
    else:
        high = _signed(time, within, name)
        low = -high
    if low > high:
        raise WrongTypeError(
            f"within={within!r} is an empty interval",
            cure="give the lower bound first: ('-10 min', '5 min')",
            operator=name,
        )
    rows = declared.rows()
    if JOINED_TIME in rows:
        raise DeclarationError(
            f"a column is called '{JOINED_TIME}', which is the time of the results",
            cure=f"rename it first: .rename({{'{JOINED_TIME}': 'earlier_joined_time'}})",
            operator=name,
        )
    bound = bound_type(declared.left.schema[time.column])
    return IntervalJoin(
        **declared._common(), schema=pl.Schema({**rows, JOINED_TIME: bound}), time=EventTime(JOINED_TIME, time.unit),
        low=low, high=high, how=declared.how,
    )  # fmt: skip


def _signed(time: EventTime, given: Duration, operator: str) -> int:
    """A duration in ticks, which may have a minus sign."""
    if isinstance(given, str) and given.strip().startswith("-"):
        return -time.ticks(given.strip()[1:], operator=operator)
    if not isinstance(given, str | int | float | timedelta):
        raise WrongTypeError(
            f"{given!r} is not a duration", cure="give two durations: within=('-10 min', '5 min')", operator=operator
        )
    return time.ticks(given, operator=operator)
