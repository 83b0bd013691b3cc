"""Generations of plans: how an epoch that was planned again by hand is told apart from its earlier plan.

A generation is the number of repairs that were carried out when a plan was written. A replica may have run the old plan
and not know of the new one; what it made of it is never committed.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from holdfast.errors import LeaseLostError
from holdfast.meta.sealed import SealedPlace
from holdfast.meta.sql_tables import epochs, repairs
from holdfast.stored_json import JsonForm, Natural

__all__ = ["GENERATION", "check_generation", "generation_of"]


_DONE = sa.select(sa.func.count()).where(repairs.c.pipeline == sa.bindparam("of"), repairs.c.done_at.is_not(None))
GENERATION = _DONE.scalar_subquery()
"""The same as a part of another query: it is asked for in every epoch."""


def generation_of(connection: sa.Connection, pipeline: str) -> int:
    """The generation of what is planned from now on."""
    return int(connection.execute(_DONE, {"of": pipeline}).scalar_one())


@dataclass(frozen=True, slots=True)
class _Generation:
    """The part of a plan that is of interest here."""

    generation: Natural = 0


_FORM = JsonForm(_Generation, "the generation of a plan")


def check_generation(connection: sa.Connection, pipeline: str, epoch: int, generation: int, version: int) -> None:
    """Refuse the commit of an epoch that was run as it was planned before a repair: in another generation. To be called
    where there were repairs."""
    query = sa.select(epochs.c.plan).where(epochs.c.pipeline == pipeline, epochs.c.epoch == epoch)
    text = connection.execute(query).scalar_one_or_none()
    if text is None:
        return
    plan = SealedPlace("plan", pipeline, epoch).opened(text, version)
    if _FORM.decode(plan).generation != generation:
        raise LeaseLostError(
            f"epoch {epoch} of '{pipeline}' was planned again after this process started it",
            cure="this process committed nothing; it restarts from the last commit",
            epoch=epoch,
        )
