"""What people have done by hand to restart a stopped pipeline: epochs planned again, input skipped.

A repair is asked for while nothing runs, and carried out at the next start by whoever holds the lease then: in one
transaction with the plans that it changes. It stays here with its reason and what came of it. Plans that are written
after a repair carry a *generation*, the number of repairs before them, and an epoch is committed only by the run that
ran it as it is planned now.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from holdfast.meta.leases import Lease
from holdfast.meta.sql_tables import notices, repairs
from holdfast.meta.store import MetaStore

__all__ = ["Repair", "Repairs"]

# What every start asks for is made once: making a statement takes longer than the database needs for it.
_KNOWN = sa.select(repairs).where(repairs.c.pipeline == sa.bindparam("of")).order_by(repairs.c.number)
_NOTICED = sa.select(notices.c.notices).where(notices.c.pipeline == sa.bindparam("of"))


@dataclass(frozen=True, slots=True)
class Repair:
    """`what` was asked for and why; `outcome` is what came of it, None until the next start. Both are JSON text; what
    is in it is known above (`holdfast.epoch`)."""

    number: int
    what: str
    reason: str
    asked_at: float
    outcome: str | None = None
    done_at: float | None = None


class Repairs:
    """The repairs of a store, and what sources have to tell people."""

    def __init__(self, meta: MetaStore) -> None:
        self._meta = meta

    def ask(self, pipeline: str, what: str, reason: str, now: float) -> int:
        """Have it done at the next start."""
        values = {"pipeline": pipeline, "what": what, "reason": reason, "asked_at": now}
        with self._meta.writing() as connection:
            number = connection.execute(repairs.insert().values(values)).inserted_primary_key
        assert number is not None
        return int(number[0])

    def known(self, pipeline: str) -> list[Repair]:
        """All of them, oldest first."""
        if not self._meta.has(repairs):
            return []
        with self._meta.reading() as connection:
            return [_repair_of(row) for row in connection.execute(_KNOWN, {"of": pipeline})]

    def waiting(self, pipeline: str) -> list[Repair]:
        return [repair for repair in self.known(pipeline) if repair.outcome is None]

    def carried_out_in(self, connection: sa.Connection, number: int, outcome: str, now: float) -> None:
        """Keep what came of a repair, in the transaction of what was done. From now on plans are of a new
        generation."""
        values = {"outcome": outcome, "done_at": now}
        connection.execute(repairs.update().where(repairs.c.number == number).values(values))

    # notices

    def notice(self, lease: Lease, texts: Sequence[str], now: float) -> None:
        """What a person should know about the pipeline's input now; replaces what was said before."""
        with self._meta.fenced(lease) as connection:
            connection.execute(notices.delete().where(notices.c.pipeline == lease.pipeline))
            if texts:
                values = {"pipeline": lease.pipeline, "notices": json.dumps(list(texts)), "at": now}
                connection.execute(notices.insert().values(values))

    def noticed(self, pipeline: str) -> list[str]:
        if not self._meta.has(notices):
            return []
        with self._meta.reading() as connection:
            text = connection.execute(_NOTICED, {"of": pipeline}).scalar_one_or_none()
        return [] if text is None else json.loads(text)


def _repair_of(row: Any) -> Repair:
    return Repair(row.number, row.what, row.reason, row.asked_at, row.outcome, row.done_at)
