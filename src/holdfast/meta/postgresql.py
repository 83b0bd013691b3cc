"""PostgreSQL as the database of the meta store: connections on which no wait is without an end.

A database that was stopped, cut off or hangs must not hold its clients up for ever, and a client that vanished must not
hold up the others: the client gives up when no answer comes in time, and the server ends what a client has left open,
so that locks do not outlive their holder. This module needs the driver, psycopg 3; nothing else imports it at its top.
"""

from __future__ import annotations

import math
import time
from typing import Any, TypeVar

import psycopg
import sqlalchemy as sa
from psycopg.abc import PQGen

from holdfast.database_url import shown_url
from holdfast.errors import DeclarationError, StoreUnreachableError

__all__ = ["ANSWER_SECONDS", "open_postgresql", "take_time"]

ANSWER_SECONDS = 5.0
_DRIVER = "postgresql+psycopg"
# The server gives up before the client, so that the connection stays good; and who waits for a lock outlasts a client
# that has vanished with it.
_STATEMENT_SHARE, _IDLE_SHARE = 0.8, 0.6
_TIMED_OUT = "57014"
RV = TypeVar("RV")


class _BoundedConnection(psycopg.Connection[Any]):
    """A connection that is closed when an answer takes too long. TCP does not see a peer that hangs, only one that is
    gone, and sees that late."""

    answer_seconds = ANSWER_SECONDS

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        return super().wait(self._bounded(gen), interval)

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


def open_postgresql(url: sa.URL, sync: bool) -> tuple[sa.Engine, float]:
    """An engine, and how long to wait for a database that is away. `timeout=` in the URL is ours; other options are
    those of libpq, and go before what is chosen here."""
    if url.drivername not in ("postgresql", _DRIVER):
        raise DeclarationError(
            f"the meta store is opened with psycopg, not with '{url.drivername}'", cure="write postgresql://..."
        )
    seconds = _timeout(url)
    url = url.set(drivername=_DRIVER).difference_update_query(["timeout"])
    chosen: dict[str, Any] = {
        "connect_timeout": max(2, math.ceil(seconds)),
        "target_session_attrs": "read-write",  # of several hosts, the one that is not a standby
        "application_name": "holdfast",
    }
    settings = {
        "statement_timeout": round(seconds * _STATEMENT_SHARE * 1000),
        "idle_in_transaction_session_timeout": round(seconds * _IDLE_SHARE * 1000),
        **({} if sync else {"synchronous_commit": "off"}),
    }
    ours = " ".join(f"-c {name}={value}" for name, value in settings.items())
    given = url.query.get("options", "")
    arguments = {name: value for name, value in chosen.items() if name not in url.query}
    engine = sa.create_engine(
        url, pool_pre_ping=True, connect_args={**arguments, "options": f"{ours} {given}".rstrip()}
    )

    def connect(_: object, __: object, positional: list[Any], named: dict[str, Any]) -> _BoundedConnection:
        connection = _BoundedConnection.connect(*positional, **named)
        connection.answer_seconds = seconds
        return connection

    sa.event.listen(engine, "do_connect", connect)
    sa.event.listen(engine, "handle_error", _name_lost_database)
    return engine, seconds


def take_time(connection: sa.Connection, seconds: float) -> None:
    """Let the transaction, and each of its statements, last so long."""
    for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
        connection.execute(sa.text(f"SET LOCAL {name} = {round(seconds * 1000)}"))
    opened = connection.connection.driver_connection
    assert isinstance(opened, _BoundedConnection)
    opened.answer_seconds = seconds


def _timeout(url: sa.URL) -> float:
    text = url.query.get("timeout", str(ANSWER_SECONDS))
    try:
        seconds = float(str(text))
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise DeclarationError(
            f"timeout={text} in the URL of the meta store is not a duration", cure="give seconds, e.g. ?timeout=5"
        )
    return seconds


def _name_lost_database(context: sa.engine.ExceptionContext) -> StoreUnreachableError | None:
    """A database that cannot be reached, went away or does not answer is told as such, whatever was asked of it."""
    if context.is_pre_ping:  # the pool opens another connection
        return None
    error = context.original_exception
    lost = context.is_disconnect or context.connection is None or getattr(error, "sqlstate", None) == _TIMED_OUT
    if not lost:
        return None
    place = shown_url(context.engine.url) if context.engine is not None else "the database"
    return StoreUnreachableError(
        f"cannot reach the meta store {place}: {str(error).strip()}",
        cure="check that the URL is correct and the database is reachable, then start again: nothing that was"
        " committed is lost",
    )
