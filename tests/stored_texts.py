"""Plans and records for tests that do not care what is in them: the meta store takes them as JSON text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa

from holdfast.meta import Lease, MetaStore


def text(value: Mapping[str, Any]) -> str:
    return json.dumps(value)


def plan_text(value: Mapping[str, Any]) -> Callable[[int], str]:
    """What gives the text of a plan, for a generation."""
    return lambda generation: text({**value, "generation": generation} if generation else value)


def commit_with(
    meta: MetaStore, lease: Lease, epoch: int, record: str, now: float, also: Callable[[sa.Connection], None]
) -> bool:
    """Commit an epoch, and do something else in the same transaction if the commit counts."""
    with meta.fenced(lease, epoch) as connection:
        first = meta.write_commit(connection, lease, epoch, record, now)
        if first:
            also(connection)
        return first
