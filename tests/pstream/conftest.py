"""A meta store and appenders on it, closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from appending import SCHEMA, STREAM

from holdfast.meta import MetaStore
from holdfast.pstream.appender import Appender, open_appender


@pytest.fixture
def meta(where: Path | str) -> Iterator[MetaStore]:
    store = MetaStore(where, sync=False)
    yield store
    store.close()


@pytest.fixture
def opened(meta: MetaStore, tmp_path: Path) -> Iterator[Callable[..., Appender]]:
    """Opens appenders of one stream, and closes the one before: a stream has one writer."""
    made: list[Appender] = []

    def opening(**options: Any) -> Appender:
        for appender in made:
            appender.close()
        settings = {"event_time": "ts", "lateness": 0, "budget": None, "sync": False, **options}
        made.append(open_appender(meta, tmp_path, STREAM, SCHEMA, **settings))
        return made[-1]

    yield opening
    for appender in made:
        appender.close()
