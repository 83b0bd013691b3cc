"""Engines for the databases of connectors: of PostgreSQL no answer is waited for without an end.

`timeout=` in a URL of PostgreSQL says for how many seconds, as in that of the meta store. Not promised: that other
databases that hang are noticed; their drivers have settings of their own for it.
"""

from __future__ import annotations

import math
from typing import Any

import sqlalchemy as sa

from holdfast.errors import DeclarationError

__all__ = ["ANSWER_SECONDS", "answer_seconds", "open_engine"]

ANSWER_SECONDS = 300.0
"""A statement of an epoch with many rows takes its time."""
_DRIVERS = ("postgresql", "postgresql+psycopg")


def open_engine(url: str | sa.URL, **settings: Any) -> sa.Engine:
    """As `sa.create_engine`."""
    found = sa.make_url(url)
    if found.drivername not in _DRIVERS:
        return sa.create_engine(url, **settings)
    from holdfast.connect.bounded_connection import bound_answers, connect_seconds  # noqa: PLC0415 - an extra

    seconds = answer_seconds(found, ANSWER_SECONDS, "the database")
    arguments = {} if "connect_timeout" in found.query else {"connect_timeout": connect_seconds(min(seconds, 30.0))}
    plain = found.set(drivername=_DRIVERS[1]).difference_update_query(["timeout"])
    # Whoever finds the connection of an epoch before dead, as after a restart of the database, opens another.
    engine = sa.create_engine(plain, pool_pre_ping=True, connect_args=arguments, **settings)
    bound_answers(engine, seconds)
    return engine


def answer_seconds(url: sa.URL, default: float, what: str) -> float:
    """What `timeout=` in a URL says."""
    text = url.query.get("timeout", str(default))
    try:
        seconds = float(str(text))
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise DeclarationError(
            f"timeout={text} in the URL of {what} is not a duration", cure="give seconds, e.g. ?timeout=5"
        )
    return seconds
