"""Makes `receiving` importable for the tests of this directory, and receivers that end with their test."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from receiving import SCHEMA, Receiving, Serve


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start receivers: settings are those of `push`; no thread may be left when they have ended."""
    before = set(threading.enumerate())
    with ExitStack() as stack:

        def start(schema: Any = SCHEMA, *, place: Path = tmp_path, **settings: Any) -> Receiving:
            return stack.enter_context(Receiving.open(place, schema, **settings))

        yield start
    # gRPC has threads of its own, which Python keeps a stand-in for.
    left = [thread for thread in set(threading.enumerate()) - before if not isinstance(thread, threading._DummyThread)]
    assert [thread.name for thread in left if thread.is_alive()] == []


@pytest.fixture
def receiving(serve: Serve) -> Receiving:
    """One server for all examples of a property."""
    return serve()
