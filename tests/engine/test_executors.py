"""A run on each executor, through the same loop: the output is the same, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.engine.fragment_run import FragmentRun, Platform
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.engine.options import RunOptions
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.errors import DeadlineError, EpochFailedError

ROWS = pl.DataFrame(
    {
        "ts": [37 * n for n in range(4_000)],
        "key": [n % 11 for n in range(4_000)],
        "value": [n / 8 for n in range(4_000)],
    }
)


def visits(place: Path) -> hf.Pipeline:
    """A chain, a window by key, a second window behind it, and a keyed process."""
    pipeline = hf.Pipeline("visits")
    rows = pipeline.source("rows", hf.source.memory(ROWS), event_time="ts", time_unit="ms")
    keyed = rows.filter(pl.col("value") > 3).key_by("key")
    totals = keyed.window(hf.window.sliding("8s", "2s"), name="totals").agg(n=hf.count(), total=hf.sum("value"))
    totals.sink("totals_out", hf.sink.parquet(place / "totals"))
    keyed.window(hf.window.session("1s"), name="sessions").agg(n=hf.count()).sink(
        "sessions_out", hf.sink.parquet(place / "sessions")
    )
    return pipeline


def run(platform: Platform, place: Path, **options: Any) -> FragmentRun:
    """Several epochs of a fixed size."""
    made = FragmentRun(
        visits(place),
        platform,
        RunOptions(store=place / "store", durable=False, least_rows=500, most_rows=500, **options),
    )
    made.run()
    return made


def outputs(place: Path) -> list[list[Any]]:
    return [sorted(hf.read_output(place / name, "parquet").rows()) for name in ("totals", "sessions")]


def test_the_output_does_not_depend_on_the_executor(spark: SparkSession, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    run(InProcessPlatform(), here)
    run(SparkPlatform(spark), there)
    assert outputs(here) == outputs(there)
    assert all(outputs(here))


def test_a_long_run_keeps_nothing_of_epochs_that_are_committed(tmp_path: Path) -> None:
    made = run(InProcessPlatform(), tmp_path)
    assert made.committed == len(ROWS) // 500
    planner = made.loop.planner
    assert planner.in_flight_rows == 0
    assert not planner.progress.plans


def test_nothing_is_left_in_the_work_directory(tmp_path: Path) -> None:
    made = run(InProcessPlatform(), tmp_path)
    assert not [path for path in (made.home / "work").rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("error", "asked"),
    [(DeadlineError("no answer", cure="wait", epoch=2), 0), (EpochFailedError("bad", cure="mend it", epoch=2), 1)],
    ids=["who does not answer", "anything else"],
)
def test_a_sink_that_does_not_answer_is_not_asked_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, asked: int
) -> None:
    options = RunOptions(store=tmp_path / "store", durable=False, least_rows=500, most_rows=500)
    made = FragmentRun(visits(tmp_path), InProcessPlatform(), options)
    calls: list[str] = []
    begun = type(made.loop.committer).commit

    def failing(self: Any, epoch: int, how: Any) -> bool:
        if epoch == 2:
            monkeypatch.setattr(type(self), "publish_all", lambda self: calls.append("publish"))
            raise error
        return begun(self, epoch, how)

    monkeypatch.setattr(type(made.loop.committer), "commit", failing)
    with pytest.raises(type(error)):
        made.run()
    assert len(calls) == asked
