"""Makes `drain` and `buckets` importable for the tests of this directory, whatever pytest's import mode, and serves
S3."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast_lab.chaos.s3_server import S3Server, serve

sys.path.insert(0, str(Path(__file__).parent))

from buckets import TestBucket, new_bucket


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with serve() as server:
        yield server


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestBucket]:
    """A bucket of the test's own, on a server without faults; the test may plan some."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret")
    s3_server.faults.clear()
    s3_server.storm = 0.0
    yield new_bucket(s3_server)
    s3_server.faults.clear()
    s3_server.storm = 0.0
