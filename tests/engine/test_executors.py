"""A run on each executor, through the same loop: the output is the same, and nothing is left behind."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import holdfast as hf
from harness import Cut
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.engine.options import RunOptions
from holdfast.engine.platform import Platform
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.errors import DeadlineError, EpochFailedError
from strategies import SECONDS, Given, examples, streams, window_shapes

ROWS = pl.DataFrame(
    {
        "ts": [37 * n for n in range(4_000)],
        "key": [n % 11 for n in range(4_000)],
        "value": [n / 8 for n in range(4_000)],
    }
)


OUTPUTS = ("totals", "sessions", "firsts", "near")


def visits(place: Path) -> hf.Pipeline:
    """A chain, windows by key, first rows for a time of the rows and of the clock, and rows near each other."""
    pipeline = hf.Pipeline("visits")
    rows = pipeline.source("rows", hf.source.memory(ROWS), event_time="ts", time_unit="ms")
    keyed = rows.filter(pl.col("value") > 3).key_by("key")
    totals = keyed.window(hf.window.sliding("8s", "2s"), name="totals").agg(n=hf.count(), total=hf.sum("value"))
    totals.sink("totals_out", hf.sink.parquet(place / "totals"))
    keyed.window(hf.window.session("1s"), name="sessions").agg(n=hf.count()).sink(
        "sessions_out", hf.sink.parquet(place / "sessions")
    )
    firsts = rows.deduplicate("key", within="7s").deduplicate("value", ttl="1h", name="by_clock")
    firsts.sink("firsts_out", hf.sink.parquet(place / "firsts"))
    near = rows.join(firsts, on="key", within=("-1s", "2s"), how="left")
    near.sink("near_out", hf.sink.parquet(place / "near"))
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
    return [sorted(hf.read_output(place / name, "parquet").rows()) for name in OUTPUTS]


@pytest.mark.parametrize("executor", ["crew", "jobs"])
def test_the_output_does_not_depend_on_the_executor(spark: SparkSession, tmp_path: Path, executor: str) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    run(InProcessPlatform(), here)
    made = run(SparkPlatform(spark), there, executor=executor)
    assert made.executor is not None
    assert made.executor.executor == executor
    assert outputs(here) == outputs(there)
    assert all(outputs(here))


@dataclass(frozen=True, slots=True)
class Drawn:
    """A pipeline of one stateful operator, or two behind each other, over a drawn stream."""

    given: Given
    shape: tuple[int, int]
    kind: str
    cut: Cut

    def pipeline(self, place: Path) -> hf.Pipeline:
        pipeline = hf.Pipeline("drawn")
        source, lateness = hf.source.memory(self.given.frame()), f"{self.given.lateness}s"
        rows = pipeline.source("rows", source, event_time="ts", time_unit="s", lateness=lateness)
        keyed = rows.with_columns(twice=pl.col("v") * 2).key_by("s")
        size, slide = self.shape
        made: hf.Stream
        if self.kind == "process":
            made = keyed.process(
                add_up, state={"n": pl.Int64}, output={"s": pl.String, "n": pl.Int64}, keep_forever=True, name="totals"
            )
        elif self.kind == "first rows":
            made = rows.deduplicate("s", within=f"{size}s").key_by("s").window(hf.window.tumbling(f"{size}s")).agg(
                n=hf.count_distinct("v"), whole=hf.arg_max("v"), values=hf.collect_list("v"), middle=hf.median("v")
            )  # fmt: skip
        elif self.kind == "near":
            made = rows.join(rows.select("ts", "s", w="v"), on="s", within=(f"-{slide}s", f"{size}s"), how="full")
        elif self.kind == "sessions":
            made = keyed.window(hf.window.session(f"{slide}s")).agg(n=hf.count(), most=hf.max("v"))
        else:
            made = keyed.window(hf.window.sliding(f"{size}s", f"{slide}s")).agg(n=hf.count(), total=hf.sum("twice"))
            if self.kind == "windows of windows":
                made = made.window(hf.window.tumbling(f"{size}s")).agg(n=hf.sum("n"))
        made.sink("out", hf.sink.parquet(place / "out"))
        return pipeline

    def output(self, platform: Platform, place: Path, **more: Any) -> list[str]:
        options = RunOptions(
            store=place / "store",
            durable=False,
            least_rows=self.cut.rows,
            most_rows=self.cut.rows,
            tasks=self.cut.tasks,
            partitions=self.cut.partitions,
            **more,
        )
        FragmentRun(self.pipeline(place), platform, options).run()
        return sorted(map(repr, hf.read_output(place / "out", "parquet").rows()))


def add_up(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
    here = rows.group_by("s").agg(n=pl.len().cast(pl.Int64))
    now = pl.concat([state, here]).group_by("s").agg(pl.col("n").sum())
    return hf.Step(output=now.select("s", "n"), upserts=now)


drawn = st.builds(
    Drawn,
    given=streams("s", "v", most=24, clocks=(SECONDS,)).filter(lambda given: len(given.rows) > 5),
    shape=window_shapes,
    kind=st.sampled_from(["windows", "windows of windows", "sessions", "process", "first rows", "near"]),
    cut=st.builds(Cut, rows=st.sampled_from([4, 9, 1_000]), tasks=st.integers(1, 3), partitions=st.integers(1, 3)),
)


@pytest.mark.spark
@examples(5)
@given(case=drawn)
def test_whatever_is_declared_all_executors_put_out_the_same(spark: SparkSession, case: Drawn) -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        expected = case.output(InProcessPlatform(), place / "here")
        for executor in ("crew", "jobs"):
            assert case.output(SparkPlatform(spark), place / executor, executor=executor) == expected


def test_a_long_run_keeps_nothing_of_epochs_that_are_committed(tmp_path: Path) -> None:
    made = run(InProcessPlatform(), tmp_path)
    assert made.committed == len(ROWS) // 500
    planner = made.loop.planner
    assert planner.in_flight_rows == 0
    assert not planner._run.progress.plans


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
