"""PostgreSQL for tests: one real server for all of them, and in it a schema of its own for each test."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from holdfast_lab.chaos.database_server import DatabaseServer, programs

_NUMBERS = itertools.count(1)
BACKENDS = ("sqlite", "postgresql")


@pytest.fixture(scope="session")
def postgresql() -> Iterator[DatabaseServer]:
    """The server. Not to be stopped or killed by a test: one that does so starts its own."""
    if programs() is None and not sys.platform.startswith("linux"):
        pytest.skip(f"there is no package with a PostgreSQL server for {sys.platform}")
    with DatabaseServer(logical=True) as server:
        yield server


def fresh_url(server: DatabaseServer, port: int | None = None) -> str:
    """The URL of a user that sees a schema of its own, with nothing in it, and may do nothing elsewhere."""
    user = f"test{next(_NUMBERS)}"
    engine = sa.create_engine(server.url.replace("postgresql:", "postgresql+psycopg:"), poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {user} LOGIN")
        connection.exec_driver_sql(f"CREATE SCHEMA AUTHORIZATION {user}")
    return server.url_of(user, port)


@pytest.fixture(params=BACKENDS)
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Where a meta store may be: a test that takes this runs once for each kind of database."""
    if request.param == "sqlite":
        return tmp_path
    return fresh_url(request.getfixturevalue("postgresql"))
