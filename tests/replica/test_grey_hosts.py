"""Hosts that live and do nothing: another one goes on. Two hosts in one process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession
from replica_harness import pair

import holdfast as hf
from holdfast.replica.schemes.active_standby import ACTIVE_STANDBY

pytestmark = pytest.mark.spark
EPOCHS, ROWS, HELD = 12, 10, 6


class Hanging(hf.source.Source):
    """Gives an epoch of rows at a time. One of its instances can be told to hang, and the last epochs to wait."""

    hung: Hanging | None = None
    held = True
    over = threading.Event()
    bounded = True
    keeps = True
    schema = pl.Schema({"ts": pl.Int64})

    def start(self) -> Any:
        return {"epoch": 0}

    def take(self, position: Any, rows: int, pieces: int) -> hf.source.Take:
        if Hanging.hung is self:
            self.over.wait()
        epoch = position["epoch"]
        if Hanging.held and epoch >= HELD:
            return hf.source.Take((), position)
        slices = (hf.source.Slice(epoch * ROWS, ROWS, {"epoch": epoch}),)
        return hf.source.Take(slices, {"epoch": epoch + 1}, epoch + 1 == EPOCHS)

    def read(self, piece: hf.source.Slice) -> Any:
        yield hf.source.Chunk(pl.DataFrame({"ts": range(piece.base, piece.base + ROWS)}), ordered=True)

    def __reduce__(self) -> Any:
        return Hanging, ()


@pytest.fixture
def hanging() -> Iterator[None]:
    Hanging.hung, Hanging.held = None, True
    Hanging.over.clear()
    yield
    Hanging.over.set()


def totals(sink: hf.sink.Sink) -> hf.Pipeline:
    pipeline = hf.Pipeline("grey-hosts")
    rows = pipeline.source("events", Hanging(), event_time="ts", time_unit="s")
    rows.window(hf.window.tumbling("20s"), name="totals").agg(n=hf.count()).sink("out", sink)
    return pipeline


@pytest.mark.usefixtures("hanging")
@pytest.mark.parametrize("what", ["its source hangs", "its thread has ended"])
def test_another_host_goes_on_where_a_host_beats_and_does_nothing(
    spark: SparkSession, tmp_path: Path, what: str
) -> None:
    with pair(totals, spark, tmp_path, ACTIVE_STANDBY, deadline="3s") as made:
        made.until(lambda: made.ready() and made.epoch() == HELD, "a ready secondary")
        first, second = made.primary(), made.secondary()
        if what == "its source hangs":
            Hanging.hung = next(
                node.source for node in first.pipeline.nodes.values() if isinstance(node.source, Hanging)
            )
        else:
            for authority in first._authorities:
                authority.killed = True
        made.until(lambda: made.look().seats.primary is not None and made.primary() is second, "a takeover")
        assert first.alive
        Hanging.held = False
        made.until_end()
        if what == "its source hangs":
            assert any("operator 'events', epoch 7" in trouble and "take" in trouble for trouble in first.troubles)
        else:
            assert any(not replica.is_alive() for replica in first.replicas.values())
    assert hf.read_output(tmp_path / "out", "parquet")["n"].sum() == EPOCHS * ROWS
