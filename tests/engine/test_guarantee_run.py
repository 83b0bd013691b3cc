"""A guarantee instead of a policy: what windows leave is tried while running, and nothing is lost by that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.connect.sources.generator import generator
from holdfast.durability import policy_choice
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.options import RunOptions
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.epoch.record_change import record_of
from holdfast.epoch.report import EpochReport
from holdfast.graph.policies import DELTA
from holdfast.meta import MetaStore
from observers import watching

pytestmark = pytest.mark.spark
SCHEMA = pl.Schema({"k": pl.Int64(), "v": pl.Int64(), "ts": pl.Int64()})


def made(start: int, stop: int) -> pl.DataFrame:
    number = np.arange(start, stop, dtype=np.int64)
    return pl.DataFrame({"k": number * 7919 % 3001, "v": number % 101, "ts": number // 100})


def pipeline(sink: hf.sink.Sink) -> hf.Pipeline:
    result = hf.Pipeline("asked", guarantee=hf.Guarantee(recovery="5s"))
    rows = result.source("in", generator(made, SCHEMA), event_time="ts", time_unit="ms")
    windows = rows.key_by("k").window(hf.window.count(50))
    windows.agg(total=hf.sum("v")).named("sums").sink("out", sink)
    return result


def rows(path: Path) -> list[tuple[object, ...]]:
    return sorted(hf.read_output(path, "parquet").rows())


def test_eventual_checkpoints_are_tried_and_priced_without_a_trace_in_the_output(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial lasts an interval of the clock, so the run goes on until it is over, however fast epochs are."""
    monkeypatch.setattr(policy_choice, "_WORTH_TRYING", 0.0)
    limits = {"least_rows": 5_000, "most_rows": 5_000}
    seen: list[EpochReport] = []

    def committed(report: EpochReport) -> None:
        seen.append(report)
        if "eventual(recovery=5 s" in (report.policy_reason or ""):
            run.stop()

    options = RunOptions(
        store=tmp_path / "store", interval=0.3, volatile=tmp_path / "volatile", **limits,  # type: ignore[arg-type]
    )  # fmt: skip
    sink = hf.sink.parquet(tmp_path / "out")
    run = FragmentRun(
        pipeline(sink), SparkPlatform(spark), options, observer=watching(epoch_committed=committed)
    )  # fmt: skip
    run.run()
    traced = [bool(report.footprints) for report in seen]
    assert not traced[0]
    assert any(traced), "for an interval at least"
    meta = MetaStore(tmp_path / "store")
    last = meta.last_commit("asked")
    meta.close()
    assert last is not None
    reason = record_of(last).reason or ""
    assert "eventual(recovery=5 s" in reason
    assert "a recovery within 5 s rules out" in reason

    plain = RunOptions(
        store=tmp_path / "plain", checkpoint=DELTA, max_epochs=len(seen), **limits,  # type: ignore[arg-type]
    )  # fmt: skip
    FragmentRun(pipeline(hf.sink.parquet(tmp_path / "expected")), SparkPlatform(spark), plain).run()
    assert rows(tmp_path / "out") == rows(tmp_path / "expected")
