"""PostgreSQL as the database of the meta store: connections on which no wait is without an end.

A database that was stopped, cut off or hangs must not hold up its clients forever, and a client that vanished must not
hold up the others: the client gives up when no answer comes in time, and the server ends what a client has left open,
so that locks do not outlive their holder. This module needs the driver, psycopg 3; nothing else imports it at its top.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from holdfast.connect.bounded_connection import BoundedConnection, bound_answers, connect_seconds
from holdfast.connect.database_engine import answer_seconds
from holdfast.database_url import shown_url
from holdfast.errors import DeclarationError, StoreUnreachableError

__all__ = ["ANSWER_SECONDS", "open_postgresql", "take_time"]

ANSWER_SECONDS = 5.0
_DRIVER = "postgresql+psycopg"
# The server gives up before the client, so that the connection stays good; and a waiter for a lock outlasts a client
# that has vanished with it.
_STATEMENT_SHARE, _IDLE_SHARE = 0.8, 0.6
_TIMED_OUT = "57014"


def open_postgresql(url: sa.URL, sync: bool) -> tuple[sa.Engine, float]:
    """An engine, and how long to wait for a database that is away. `timeout=` in the URL is ours; other options are
    those of libpq, and go before what is chosen here."""
    if url.drivername not in ("postgresql", _DRIVER):
        raise DeclarationError(
            f"the meta store is opened with psycopg, not with '{url.drivername}'", cure="write postgresql://..."
        )
    seconds = answer_seconds(url, ANSWER_SECONDS, "the meta store")
    url = url.set(drivername=_DRIVER).difference_update_query(["timeout"])
    chosen: dict[str, Any] = {
        "connect_timeout": connect_seconds(seconds),
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

    bound_answers(engine, seconds)
    sa.event.listen(engine, "handle_error", _name_lost_database)
    return engine, seconds


def take_time(connection: sa.Connection, seconds: float) -> None:
    """Let the transaction, and each of its statements, last so long."""
    for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
        connection.execute(sa.text(f"SET LOCAL {name} = {round(seconds * 1000)}"))
    opened = connection.connection.driver_connection
    assert isinstance(opened, BoundedConnection)
    opened.answer_seconds = seconds


def _name_lost_database(context: sa.engine.ExceptionContext) -> StoreUnreachableError | None:
    """A database that cannot be reached, went away or does not answer is reported as such, whatever was asked of it."""
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
