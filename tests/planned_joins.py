"""What a join with a lookup table must come to, by the plans that a store has: each epoch's rows, joined in plain
Python with the version that its plan names."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl

import holdfast as hf
from holdfast.epoch.plan import EpochPlan
from holdfast.graph.stateless.table_join import RefreshedJoin
from holdfast.meta import MetaStore
from holdfast.pstream.punit import read_punit
from holdfast.store import DirectoryStore

ROWS = pl.DataFrame({"ts": range(600), "k": [number % 5 for number in range(600)]})


def write_table(path: Path, version: int) -> None:
    """The names of four keys, another one in each version, as a file that is whole at every moment."""
    draft = path.with_name(f".{path.name}")
    pl.DataFrame({"k": [0, 1, 2, 3], "name": [f"{k}-{version}" for k in range(4)]}).write_parquet(draft)
    os.replace(draft, path)


def joining(table: Path, sink: hf.sink.Sink, *, epochs: int = 20) -> hf.Pipeline:
    """Rows with the names of their keys, as they are at the moment."""
    pipeline = hf.Pipeline("named")
    step = ROWS.height // epochs
    frames = [ROWS[start : start + step] for start in range(0, ROWS.height, step)]
    rows = pipeline.source("in", hf.source.memory(frames, epochs=True), event_time="ts", time_unit="s")
    names = hf.lookup.files(table, every="1ms", settle=0)
    rows.join_table(names, on="k", how="left", name="names").sink("out", sink)
    return pipeline


def expected(store: Path) -> tuple[list[tuple[int, int, str | None]], int]:
    """The rows of all epochs, whose plans must all be retained, and how many versions they name."""
    meta = MetaStore(store)
    try:
        plans = {commit.epoch: EpochPlan.decode(commit.plan) for commit in meta.commits("named")}
    finally:
        meta.close()
    versions = DirectoryStore(store / "named" / "lookups")
    rows, at, used = [], 0, set()
    for epoch in range(1, max(plans) + 1):
        unit = plans[epoch].tables["names"].unit
        names = dict(read_punit(versions, unit).rows())
        used.add(unit.name)
        count = plans[epoch].rows_of("in")
        rows += [(ts, k, names.get(k)) for ts, k in ROWS[at : at + count].rows()]
        at += count
    assert at == ROWS.height
    return rows, len(used)


def join_of(pipeline: hf.Pipeline) -> RefreshedJoin:
    [join] = [node for node in pipeline.nodes.values() if isinstance(node, RefreshedJoin)]
    return join
