"""The join of two streams, as it is declared: rows with equal keys in the same window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import polars as pl

from holdfast.errors import UnboundedStateError, WrongTypeError
from holdfast.graph.checks import check_choice, check_keys, check_partitions, check_was, infer, need_time
from holdfast.graph.durations import EventTime, bound_type
from holdfast.graph.nodes import Node, StreamJoin
from holdfast.graph.policies import PolicyLike, check_policy
from holdfast.graph.windows import Window

__all__ = ["joined"]

_BOUNDS = ("window_start", "window_end")


def joined(
    name: str,
    left: Node,
    right: Node,
    nodes: Mapping[str, Node],
    on: str | list[str],
    window: Window | None,
    how: Literal["inner", "left", "full"],
    suffix: str,
    *,
    partitions: int | None,
    was: str | None,
    checkpoint: PolicyLike,
) -> StreamJoin:
    """The operator that joins both, checked. `nodes` are those of the pipeline."""
    if window is None:
        raise UnboundedStateError(
            "a join of two streams without a window would keep every row for ever",
            cure="give it a window: .join(other, on=..., window=hf.window.tumbling('10s'))",
            operator=name,
        )
    if not isinstance(window, Window) or not window.aligned:
        raise WrongTypeError(f"join within {window}", cure="use a tumbling or sliding time window", operator=name)
    check_choice(name, "how", how, ("inner", "left", "full"))
    keys = (on,) if isinstance(on, str) else tuple(on)
    check_keys(name, keys, left.schema)
    check_keys(name, keys, right.schema)
    for key in keys:
        if left.schema[key] != right.schema[key]:
            raise WrongTypeError(
                f"key '{key}' is {left.schema[key]} on the left and {right.schema[key]} on the right",
                cure="cast one side with with_columns",
                operator=name,
            )
    time, other_time = need_time(left, name, nodes), need_time(right, name, nodes)
    if time.unit != other_time.unit:
        raise WrongTypeError(
            f"event times are in {time.unit} and {other_time.unit}", cure="convert one side first", operator=name
        )
    window.check(time, name)
    rows = _rows(name, left, right, keys, how, suffix)
    bound = bound_type(left.schema[time.column])
    schema = pl.Schema({**rows, **{column: bound for column in _BOUNDS if column not in rows}})
    return StreamJoin(
        name=name, inputs=(left.name, right.name), schema=schema, time=EventTime("window_end", time.unit, -1),
        keys=keys, window=window, how=how, suffix=suffix, partitions=check_partitions(partitions, name),
        was=check_was(was, name), checkpoint=check_policy(checkpoint, name),
    )  # fmt: skip


def _rows(
    name: str, left: Node, right: Node, keys: tuple[str, ...], how: Literal["inner", "left", "full"], suffix: str
) -> pl.Schema:
    """The columns of both sides; the bounds of windows before this one go, unless they are keys."""
    one, two = (
        pl.Schema({column: dtype for column, dtype in node.schema.items() if column not in _BOUNDS or column in keys})
        for node in (left, right)
    )
    other = pl.DataFrame(schema=two).lazy()
    return infer(name, one, lambda rows: rows.join(other, on=list(keys), how=how, suffix=suffix, coalesce=True))
