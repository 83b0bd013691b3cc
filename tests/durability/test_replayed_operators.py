"""Operators whose state was lost with its host: a recovery by each policy comes to what they would have put out."""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pytest

import holdfast as hf
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.engine.options import RunOptions

ROWS = pl.DataFrame(
    {"ts": [7 * n - (n % 5) * 4 for n in range(480)], "key": [n % 13 for n in range(480)], "value": range(480)}
)


def told(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
    """How many rows each key had, when a timer an hour ahead fires: here that is at the end of the input."""
    if context.timers.height:
        return hf.Step(output=context.timers.join(state, on="key").select("key", "n"))
    counted = rows.group_by("key").agg(new=pl.len().cast(pl.Int64)).join(state, on="key", how="left")
    counted = counted.select("key", n=pl.col("new") + pl.col("n").fill_null(0))
    return hf.Step(upserts=counted, timers=counted.select("key", at=pl.lit(context.clock + 3_600_000_000)))


def first_rows(rows: hf.Stream) -> hf.Stream:
    return rows.deduplicate("key", within="300s")


def first_rows_by_the_clock(rows: hf.Stream) -> hf.Stream:
    return rows.deduplicate("key", ttl="1 h")


def near(rows: hf.Stream) -> hf.Stream:
    return rows.join(rows.select("ts", "key", other="value"), on="key", within=("-200s", "90s"), how="full")


def values(rows: hf.Stream) -> hf.Stream:
    counted = rows.key_by("key").window(hf.window.sliding("400s", "200s"))
    return counted.agg(n=hf.count_distinct("value"), middle=hf.median("value"), rows=hf.collect_list("value"))


def counts_by_the_clock(rows: hf.Stream) -> hf.Stream:
    return rows.key_by("key").process(
        told, state={"n": pl.Int64}, output={"key": pl.Int64, "n": pl.Int64}, timers=True, keep_forever=True,
        time="clock",
    )  # fmt: skip


class KilledError(Exception):
    pass


class Dying(hf.Observer):
    """Stands for a kill: no clean end, so nothing is made durable that was not."""

    def epoch_committed(self, report: hf.EpochReport) -> None:
        if report.epoch == 5:
            raise KilledError


@pytest.mark.parametrize("declare", [first_rows, first_rows_by_the_clock, near, values, counts_by_the_clock])
@pytest.mark.parametrize("policy", ["delta", "none"])
def test_what_was_lost_is_made_again(tmp_path: Path, declare, policy: str) -> None:
    def run(place: Path, **options) -> None:
        pipeline = hf.Pipeline("replayed")
        rows = pipeline.source("in", hf.source.memory(ROWS), event_time="ts", time_unit="s", lateness="10s")
        declare(rows).sink("out", hf.sink.parquet(place / "out"))
        chosen = RunOptions(
            store=place / "store", volatile=place / "volatile", durable=False, least_rows=60, most_rows=60,
            partitions=2, checkpoint=policy,
        )  # fmt: skip
        FragmentRun(pipeline, InProcessPlatform(), chosen, **options).run()

    run(tmp_path / "whole")
    with pytest.raises(KilledError):
        run(tmp_path / "lost", observer=Dying())
    shutil.rmtree(tmp_path / "lost" / "volatile", ignore_errors=True)
    run(tmp_path / "lost")
    found = [sorted(map(repr, hf.read_output(tmp_path / name / "out", "parquet").rows())) for name in ("whole", "lost")]
    assert found[0] == found[1]
    assert found[0]
