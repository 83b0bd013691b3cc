"""Operators whose keyed state stays in memory from epoch to epoch look up nothing in its pieces."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest

import holdfast as hf
from holdfast.operators import keyed_state
from holdfast.state.resident_cache import ResidentCache
from holdfast.state.tables import KeyedTable
from holdfast.testing import InProcess

EPOCHS = 8
SCHEMA = {"k": pl.Int64, "t": pl.Int64}


def sessions(rows: hf.Stream) -> hf.Stream:
    return rows.key_by("k").window(hf.window.session("3s")).agg(n=hf.count())


def fours(rows: hf.Stream) -> hf.Stream:
    return rows.key_by("k").window(hf.window.count(4)).agg(n=hf.count())


@pytest.mark.parametrize("windows", [sessions, fours])
def test_windows_with_keyed_state_read_no_pieces_once_it_is_in_memory(
    windows: Callable[[hf.Stream], hf.Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = hf.Pipeline("kept")
    windows(pipeline.source("rows", hf.source.memory(pl.DataFrame(schema=SCHEMA)), event_time="t", time_unit="s")).sink(
        "out", hf.sink.collect()
    )
    looked_up = []
    lookup = KeyedTable.lookup

    def watched(self, manifest, keys, positions):  # type: ignore[no-untyped-def]
        looked_up.append(len(positions))
        return lookup(self, manifest, keys, positions)

    monkeypatch.setattr(KeyedTable, "lookup", watched)
    monkeypatch.setattr(keyed_state, "RESIDENT", ResidentCache(1 << 30))
    with InProcess(pipeline) as run:
        for epoch in range(EPOCHS):
            run.feed("rows", [{"k": key, "t": 2 * epoch} for key in range(5)])
            run.epoch()
        run.end()
        run.run()
        found = run.rows("out")
    assert found["n"].sum() == 5 * EPOCHS
    assert len(looked_up) <= 2
