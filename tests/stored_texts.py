"""Plans and records for tests that do not care what is in them: the meta store takes them as JSON text."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

import sqlalchemy as sa

from holdfast.meta import Lease, MetaStore, Repairs, generation_of


def text(value: Mapping[str, Any]) -> str:
    return json.dumps(value)


def generation_in(text: str) -> int:
    return int(json.loads(text).get("generation", 0))


def plan_text(value: Mapping[str, Any]) -> Callable[[int], str]:
    """What gives the text of a plan, for a generation."""
    return lambda generation: text({**value, "generation": generation} if generation else value)


def plan_epoch(meta: MetaStore, lease: Lease, epoch: int, plan: Callable[[int], str], now: float) -> str:
    """Plan an epoch, in a transaction of its own. The first plan wins and is returned."""
    with meta.fenced(lease, epoch) as connection:
        known = meta.find(connection, lease.pipeline, epoch)
        if known is not None:
            return known.plan
        made = plan(generation_of(connection, lease.pipeline))
        meta.write_plan(connection, lease, epoch, made, now)
        return made


def commit_epoch(
    meta: MetaStore, lease: Lease, epoch: int, record: str, now: float, *, forget: Collection[int] = ()
) -> bool:
    """Commit an epoch, in a transaction of its own."""
    with meta.fenced(lease, epoch) as connection:
        return meta.write_commit(connection, lease, epoch, record, now, generation=generation_in(record), forget=forget)


def record_again(meta: MetaStore, lease: Lease, epoch: int, record: str) -> None:
    with meta.fenced(lease, epoch) as connection:
        meta.rewrite_commit(connection, lease, epoch, record)


def save_shape(meta: MetaStore, lease: Lease, shape: str) -> None:
    with meta.fenced(lease) as connection:
        meta.write_shape(connection, lease, shape)


def carry_out(
    meta: MetaStore,
    lease: Lease,
    forgotten: list[int],
    plans: Mapping[int, Callable[[int], str]],
    outcomes: Mapping[int, str],
    now: float,
) -> None:
    """Carry repairs out, in one transaction."""
    with meta.fenced(lease) as connection:
        for number, outcome in outcomes.items():
            Repairs(meta).carried_out_in(connection, number, outcome, now)
        meta.forget_plans(connection, lease, forgotten)
        for epoch, plan in plans.items():
            meta.write_plan(connection, lease, epoch, plan(generation_of(connection, lease.pipeline)), now)


def commit_with(
    meta: MetaStore, lease: Lease, epoch: int, record: str, now: float, also: Callable[[sa.Connection], None]
) -> bool:
    """Commit an epoch, and do something else in the same transaction if the commit counts."""
    with meta.fenced(lease, epoch) as connection:
        first = meta.write_commit(connection, lease, epoch, record, now, generation=generation_in(record))
        if first:
            also(connection)
        return first
