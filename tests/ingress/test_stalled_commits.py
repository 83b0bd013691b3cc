"""Commits that stall at the database: their clients send again, and everything is taken once all the same.

The database waits for a standby that does not answer: what is committed is neither seen nor given up until it does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from receiving import SCHEMA, Receiving, ndjson, numbered

from holdfast_lab.chaos.database_server import DatabaseServer, programs

LINES = 100


@pytest.fixture
def server() -> Iterator[DatabaseServer]:
    if programs() is None:
        pytest.skip("there is no package with a PostgreSQL server for this machine")
    with DatabaseServer() as made:
        yield made


def wait_for_standby(server: DatabaseServer, name: str) -> None:
    """From now on commits wait for the standby of this name; none if it is empty."""
    engine = sa.create_engine(
        server.url.replace("://", "+psycopg://"), poolclass=sa.NullPool, isolation_level="AUTOCOMMIT"
    )
    with engine.connect() as connection:
        connection.exec_driver_sql(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
        connection.exec_driver_sql("SELECT pg_reload_conf()")
        until(lambda: connection.exec_driver_sql("SHOW synchronous_standby_names").scalar() == name)


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_client_that_counts_and_sends_again_after_a_stalled_commit_is_taken_once(
    server: DatabaseServer, tmp_path: Path
) -> None:
    rows = numbered(0, LINES)
    with Receiving.open(tmp_path, SCHEMA, meta=f"{server.url}?timeout=1", tcp="127.0.0.1:0") as receiving:
        wait_for_standby(server, "nobody")
        with receiving.connect() as client:
            client.send("#client sensor 0\n")
            assert client.answer() == "ok 0"
            client.send(ndjson(rows))
            assert client.answer().startswith("error 503 ")
        with receiving.connect() as client:
            client.send("#client sensor 0\n")
            assert client.answer() == "ok 0", "what stalls is not seen"
            wait_for_standby(server, "")
            until(lambda: receiving.appender.position("sensor") == LINES)
            client.send(ndjson(rows))
            assert client.answer().startswith("error 409 already accepted")
        with receiving.connect() as client:
            client.send("#client sensor 0\n")
            assert client.answer() == f"ok {LINES}"
            client.send(ndjson(rows) + ndjson(numbered(LINES, LINES + 1)))
            client.until(f"ok {LINES + 1}")
        assert receiving.rows() == numbered(0, LINES + 1)
