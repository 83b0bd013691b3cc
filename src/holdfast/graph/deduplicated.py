"""The first rows of keys, as they are declared: by which columns, and for how long."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.errors import DeclarationError, UnboundedStateError, WrongTypeError
from holdfast.graph.checks import check_keys, check_partitions, check_was, need_time
from holdfast.graph.durations import Duration, parse_duration
from holdfast.graph.nodes import Deduplicate, Node
from holdfast.graph.policies import PolicyLike, check_policy

__all__ = ["deduplicated"]


def deduplicated(
    name: str,
    rows: Node,
    nodes: Mapping[str, Node],
    keys: tuple[str, ...],
    within: Duration | None,
    ttl: Duration | None,
    *,
    keep_forever: bool,
    partitions: int | None,
    was: str | None,
    checkpoint: PolicyLike,
) -> Deduplicate:
    """The operator that leaves out repeated rows, checked. `nodes` are those of the pipeline."""
    if not keys:
        raise DeclarationError(
            "deduplicates by no column", cure="name those that make rows equal: .deduplicate('id', ...)", operator=name
        )
    check_keys(name, keys, rows.schema)
    given = (within is not None) + (ttl is not None) + bool(keep_forever)
    if not given:
        raise UnboundedStateError(
            "deduplicates without a limit, and would keep every key forever",
            cure="give within='10 min' of event time, ttl='10 min' of the clock, or keep_forever=True",
            operator=name,
        )
    if given > 1:
        raise DeclarationError(
            "deduplicates with several limits at once", cure="give one of within, ttl, keep_forever", operator=name
        )
    kept = None
    if within is not None:
        kept = need_time(rows, name, nodes, "times within which rows repeat").ticks(within, operator=name)
    clock = None if ttl is None else parse_duration(ttl) // 1_000
    for what, ticks in (("within", kept), ("ttl", clock)):
        if ticks is not None and ticks < 0:
            raise WrongTypeError(f"{what} is negative", cure="give a duration of 0 or more", operator=name)
    return Deduplicate(
        name=name, inputs=(rows.name,), schema=rows.schema, time=rows.time, keys=keys, within=kept, ttl=clock,
        partitions=check_partitions(partitions, name), was=check_was(was, name),
        checkpoint=check_policy(checkpoint, name),
    )  # fmt: skip
