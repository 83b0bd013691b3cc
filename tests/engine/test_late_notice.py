"""That many rows are late is told, with what to do about it, and kept for `status`."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

import holdfast as hf
from holdfast.cli import main
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.engine.options import RunOptions
from observers import watching

ON_TIME = pl.DataFrame({"ts": range(100)})
LATE = pl.DataFrame({"ts": [*range(10), *range(100, 120)]})


def run(home: Path, *frames: pl.DataFrame, takes_late: bool = False) -> list[str]:
    """The notices of a run with a window of a second; each frame is an epoch."""
    told: list[str] = []
    pipeline = hf.Pipeline("rows")
    rows = pipeline.source("in", hf.source.memory(frames, epochs=True), event_time="ts", time_unit="s")
    counts = rows.window(hf.window.tumbling("1s"), name="counts").agg(n=hf.count())
    counts.sink("out", hf.sink.collect())
    if takes_late:
        counts.late.sink("late", hf.sink.collect())
    observer = watching(notice=lambda fragment, text: told.append(text))
    options = RunOptions(store=home, durable=False)
    FragmentRun(pipeline, InProcessPlatform(), options, observer=observer, clock=lambda: 0.0).run()
    return told


def test_an_epoch_of_which_many_rows_are_late_is_told_once_in_a_while(tmp_path: Path) -> None:
    [notice] = run(tmp_path, ON_TIME, LATE, LATE)
    assert "operator 'counts': 10 rows came too late for its windows in epoch 2, which read 30" in notice
    told = CliRunner().invoke(main, ["status", "rows", "--store", str(tmp_path)])
    assert "came too late" in told.output


@pytest.mark.parametrize("takes_late", [False, True])
def test_few_late_rows_and_those_that_somebody_reads_are_not_told(tmp_path: Path, takes_late: bool) -> None:
    rows = LATE if takes_late else pl.concat([LATE.tail(20), ON_TIME.head(2)])
    assert run(tmp_path, ON_TIME, rows, takes_late=takes_late) == []


def test_the_list_of_pipelines_shows_late_and_bad_rows(tmp_path: Path) -> None:
    run(tmp_path, ON_TIME, LATE)
    told = CliRunner().invoke(main, ["status", "--store", str(tmp_path)], env={"COLUMNS": "200"})
    head, row = told.output.splitlines()[:2]
    assert head.split()[-3:] == ["late", "bad", "state"]
    assert row.split()[-6:-4] == ["10", "0"]
