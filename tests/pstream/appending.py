"""What the tests of the appender share: batches, what a stream holds, and writes and commits that are held up."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from holdfast.pstream import UnitWriter
from holdfast.pstream.appender import Appender
from holdfast.pstream.pstream import PStream

SCHEMA = pl.Schema({"ts": pl.Int64(), "v": pl.Int64()})
STREAM = "p.in"
NUMBERS = itertools.count()


def batch(*values: int, ts: int = 0) -> pl.DataFrame:
    return pl.DataFrame({"ts": [ts] * len(values), "v": values}, schema=SCHEMA)


def content(log: PStream) -> list[int]:
    frames = log.load(log.read(0, 1_000_000), ["v"])
    return [value for frame in frames for value in frame["v"].to_list()]


def delayed_writes(monkeypatch: pytest.MonkeyPatch, slow: Callable[[pl.DataFrame], float]) -> None:
    write = UnitWriter.write

    def late(own: UnitWriter, name: str, frame: pl.DataFrame, *into: Any) -> Any:
        time.sleep(slow(frame))
        return write(own, name, frame, *into)

    monkeypatch.setattr(UnitWriter, "write", late)


def gated_commits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Commits wait for the event."""
    gate = threading.Event()
    commit = Appender._commit

    def waiting(own: Appender, tickets: list[Any]) -> Any:
        gate.wait(10)
        return commit(own, tickets)

    monkeypatch.setattr(Appender, "_commit", waiting)
    return gate
