"""What a person is told to do when its input has stopped a run: commands that can be carried out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner

import holdfast as hf
from holdfast.cli import main
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.engine.options import RunOptions
from holdfast.errors import BadRowError, CorruptFileError

SCHEMA = pl.Schema({"ts": pl.Int64})


def run(home: Path, source: hf.source.Source, max_ahead: str | None = None, **options: Any) -> None:
    pipeline = hf.Pipeline("rows")
    rows = pipeline.source("in", source, event_time="ts", time_unit="s", max_ahead=max_ahead)
    rows.sink("out", hf.sink.parquet(home / "out"))
    FragmentRun(pipeline, InProcessPlatform(), RunOptions(store=home / "store", durable=False, **options)).run()


def put(home: Path, name: str, *times: int | None) -> Path:
    (home / "in").mkdir(exist_ok=True)
    path = home / "in" / name
    pl.DataFrame({"ts": times}, schema=SCHEMA).write_ndjson(path)
    return path


@pytest.mark.parametrize(("time", "why"), [(None, "has no event time"), (1 << 61, "ahead of the clock")])
def test_a_file_with_a_time_that_is_not_allowed_can_be_skipped(tmp_path: Path, time: int | None, why: str) -> None:
    put(tmp_path, "a.ndjson", 1)
    bad = put(tmp_path, "b.ndjson", time)
    put(tmp_path, "c.ndjson", 3)
    with pytest.raises(BadRowError, match=why) as stopped:
        run(tmp_path, hf.source.files(tmp_path / "in", schema=SCHEMA), max_ahead="1h")
    assert f"`holdfast skip rows {bad} --store" in stopped.value.cure
    told = CliRunner().invoke(main, ["skip", "rows", str(bad), "--store", str(tmp_path / "store")])
    assert told.exit_code == 0, told.output
    run(tmp_path, hf.source.files(tmp_path / "in", schema=SCHEMA), max_ahead="1h")
    assert hf.read_output(tmp_path / "out", "parquet")["ts"].to_list() == [1, 3]


def test_a_pattern_that_matches_nothing_is_an_error_and_there_is_nothing_to_plan_again(tmp_path: Path) -> None:
    put(tmp_path, "a.ndjson", 1)
    with pytest.raises(CorruptFileError, match=r"no input file matches .*/in/\*\.json") as stopped:
        run(tmp_path, hf.source.files(tmp_path / "in" / "*.json", schema=SCHEMA))
    assert "holdfast replan" not in stopped.value.cure
    assert "correct the pattern" in stopped.value.cure


def test_a_file_that_changed_after_it_was_begun_is_looked_at_again_though_nothing_is_planned(tmp_path: Path) -> None:
    put(tmp_path, "a.ndjson", *range(100))
    run(tmp_path, hf.source.files(tmp_path / "in", schema=SCHEMA), least_rows=10, most_rows=10, max_epochs=1)
    put(tmp_path, "a.ndjson", *range(101))
    with pytest.raises(CorruptFileError, match="changed after it was planned") as stopped:
        run(tmp_path, hf.source.files(tmp_path / "in", schema=SCHEMA))
    assert "`holdfast replan rows --store" in stopped.value.cure
