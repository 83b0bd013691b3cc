"""Connections to PostgreSQL on which no wait is without an end, for connectors and for the meta store.

A database that hangs, or that a network has cut off, does not end its connections: TCP sees only a peer that is gone,
and sees that late. So the client looks at the clock while it waits. This module needs the driver, psycopg 3; nothing
else imports it at its top.
"""

from __future__ import annotations

import math
import time
from typing import Any, TypeVar

import psycopg
import sqlalchemy as sa
from psycopg.abc import PQGen

__all__ = ["BoundedConnection", "bound_answers", "connect_seconds"]

RV = TypeVar("RV")


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that is closed when an answer takes longer than `answer_seconds`."""

    answer_seconds = math.inf

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        return super().wait(self._bounded(gen), interval)

    def rollback(self) -> None:
        """The server rolls back by itself what a closed connection has begun."""
        if not self.closed:
            super().rollback()

    def _bounded(self, gen: PQGen[RV]) -> PQGen[RV]:
        """Passes on what the driver waits for, and looks at the clock whenever the driver does not get it."""
        deadline = time.monotonic() + self.answer_seconds
        try:
            waits_for = next(gen)
            while True:
                ready = yield waits_for
                waits_for = gen.send(ready)
                if not ready and time.monotonic() > deadline:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no answer within {self.answer_seconds:g} seconds")
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def bound_answers(engine: sa.Engine, seconds: float) -> None:
    """Let the engine's connections wait so long for each answer."""

    def connect(_: object, __: object, positional: list[Any], named: dict[str, Any]) -> BoundedConnection:
        connection = BoundedConnection.connect(*positional, **named)
        connection.answer_seconds = seconds
        return connection

    sa.event.listen(engine, "do_connect", connect)


def connect_seconds(seconds: float) -> int:
    """libpq's `connect_timeout`: whole seconds, at least two."""
    return max(2, math.ceil(seconds))
