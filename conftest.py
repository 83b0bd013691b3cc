"""Fixtures shared by all tests: one Spark session and one PostgreSQL server, opened when the first test needs them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings
from pyspark.sql import SparkSession

from postgres import postgresql, where

__all__ = ["postgresql", "spark", "where"]

# The same examples in every run, unless one looks further; a failure prints what reproduces it.
settings.register_profile("same", derandomize=not os.environ.get("HOLDFAST_FUZZ"), print_blob=True, deadline=None)
settings.load_profile("same")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from holdfast.spark.session import close_spark, open_spark  # noqa: PLC0415 - most tests need no Spark

    session = open_spark(app="holdfast tests")
    yield session
    close_spark(session)
