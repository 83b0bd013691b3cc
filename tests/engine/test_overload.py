"""More input than epochs of the latency asked for can carry: they grow, the source is held back, and no row is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

import holdfast as hf
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.engine.options import RunOptions
from observers import watching

ROWS, LEAST = 60_000, 50


class Flood(hf.source.Source):
    """All rows wait from the start. It remembers how much it was asked for at a time."""

    schema = pl.Schema({"k": pl.Int64, "v": pl.Int64})
    keeps = True

    def __init__(self) -> None:
        self.asked: list[int] = []

    def start(self) -> dict[str, int]:
        return {"row": 0}

    def take(self, position: hf.source.Position, rows: int, pieces: int) -> hf.source.Take:
        self.asked.append(rows)
        low = position["row"]
        high = min(ROWS, low + rows)
        return hf.source.Take((hf.source.Slice(low, high - low, {"to": high}),), {"row": high}, high == ROWS)

    def read(self, piece: hf.source.Slice) -> Iterator[hf.source.Chunk]:
        rows = pl.int_range(piece.base, piece.where["to"], eager=True)
        yield hf.source.Chunk(pl.DataFrame({"k": rows % 7, "v": rows}))


def test_epochs_grow_beyond_the_latency_asked_for_and_every_row_counts_once(tmp_path: Path) -> None:
    source, sink = Flood(), hf.sink.collect()
    pipeline = hf.Pipeline("flooded")
    pipeline.source("rows", source).sink("out", sink)
    reports: list[hf.EpochReport] = []
    options = RunOptions(store=tmp_path, durable=False, latency="10 us", least_rows=LEAST)
    FragmentRun(pipeline, InProcessPlatform(), options, observer=watching(epoch_committed=reports.append)).run()
    assert sorted(sink.frame()["v"].to_list()) == list(range(ROWS))
    assert len(reports) < ROWS / LEAST / 4, "as small as at first they would be many times more"
    assert max(source.asked) > 4 * LEAST
    taken = [report.rows for report in reports]
    assert all(rows <= asked for rows, asked in zip(taken, source.asked, strict=False)), "it gives no more than asked"
