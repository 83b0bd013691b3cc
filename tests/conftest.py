"""Fixtures shared by all tests: one Spark session and one PostgreSQL server, opened when the first test needs them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from postgres import postgresql, where

__all__ = ["postgresql", "spark", "where"]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from holdfast.epoch.session import close_session, open_session

    session = open_session(app="holdfast tests")
    yield session
    close_session(session)
