"""Rows of a streaming DataFrame that come by way of a p-stream: lives end and others begin, under every policy."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from eventual_harness import Death, Script, tell

import holdfast as hf
from front_stores import COLUMNS, ROWS, Query
from harness import Cut
from holdfast.graph.policies import DELTA, NONE, OPEN_ONLY, CheckpointPolicy
from holdfast.meta import MetaStore
from holdfast.plan.program import compile_program
from holdfast.replica.deployment import check_replicable
from holdfast.testkit.quick_store import quick_store


@pytest.mark.parametrize("policy", [DELTA, NONE, OPEN_ONLY])
def test_a_dataframe_by_way_of_a_p_stream_takes_every_policy_and_hosts(
    policy: CheckpointPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = SimpleNamespace(schema=COLUMNS, isStreaming=True)

    def build() -> hf.Pipeline:
        pipeline = hf.Pipeline("reads")
        rows = pipeline.from_spark("in", frame, event_time="ts", time_unit="s", stream="numbers")
        rows.key_by("k").window(hf.window.tumbling("10s")).agg(n=hf.count()).sink("out", hf.sink.collect())
        return pipeline

    def prepare(meta: MetaStore, root: Path) -> hf.Pipeline:
        query = Query(root, monkeypatch)
        for number in range(10):
            query.batch(number, ROWS[number * 10 : number * 10 + 10])
        return build()

    deaths = (Death(2), Death(3, "planned"), Death(1, "ran", host=False))
    story = tell(build, Script(Cut(rows=10), policy, deaths), prepare=prepare)
    assert story.kills == 3
    counted = pl.concat(frames["out"] for frames in story.outputs.values() if "out" in frames)
    assert counted["n"].sum() == 90, "all windows but the last, which is open"
    assert counted.select("k", "window_start").is_unique().all()
    with quick_store() as store:
        prepare(store.meta(), store.root)
        check_replicable(compile_program(build()), None)
