"""Fixtures shared by all tests: one Spark session, one PostgreSQL server and one Kafka broker, each opened when the
first test needs it."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings
from pyspark.sql import SparkSession

from kafka_broker import kafka_broker
from postgres import postgresql, where

__all__ = ["executor", "kafka_broker", "postgresql", "spark", "where"]

# The same examples in every run, unless one looks further; a failure prints what reproduces it.
FUZZ = bool(os.environ.get("HOLDFAST_FUZZ"))
settings.register_profile(
    "same", max_examples=100 if FUZZ else 40, derandomize=not FUZZ, print_blob=True, deadline=None
)
settings.load_profile("same")

# A shell that starts the tests in the background has them ignore Ctrl-C, which some of them send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays to the end: the garbage collector need not walk through it, now or during the tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from holdfast.spark.session import close_spark, open_spark  # noqa: PLC0415 - most tests need no Spark

    session = open_spark(app="holdfast tests")
    yield session
    close_spark(session)


@pytest.fixture(params=["crew", "jobs"])
def executor(request: pytest.FixtureRequest) -> str:
    """What runs epochs on Spark: a test that asks for it runs on both."""
    return str(request.param)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests are left out where nobody asks for them. Files that take long come first: the processes then end at
    about the same time."""
    if not FUZZ:
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="long: set HOLDFAST_FUZZ"))
    long = {item.path for item in items if item.get_closest_marker("spark") or item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in long)
