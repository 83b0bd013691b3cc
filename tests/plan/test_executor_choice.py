"""Which executor runs a fragment: a crew wherever its workers have slots."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner

import holdfast as hf
from holdfast.cli import main
from holdfast.cli.pipeline_file import load_pipeline
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.engine.options import RunOptions
from holdfast.meta import MetaStore, RunNotes
from holdfast.plan.executor_choice import CrewSize, choose_executor, crew_size


@pytest.mark.parametrize(
    ("slots", "fragments", "expected"),
    [
        (3, 1, None),
        (4, 1, CrewSize(2, 2, 0)),
        (5, 1, CrewSize(2, 2, 1)),
        (64, 1, CrewSize(2, 8, 1)),
        (6, 2, CrewSize(2, 2, 0)),
        (5, 2, None),
        (64, 3, CrewSize(2, 8, 1)),
    ],
)
def test_a_crew_needs_its_tasks_and_two_more_slots(slots: int, fragments: int, expected: CrewSize | None) -> None:
    found = crew_size(2, fragments, slots, 8)
    assert found == expected
    if found is not None:
        assert fragments * (found.most + found.spares) + 2 <= max(slots, fragments * (8 + 1) + 2)
        assert fragments * (found.first + found.spares) + 2 <= slots


def test_what_is_asked_for_is_done_where_it_can_be() -> None:
    given = {"streaming_frame": False, "tasks": 2, "parallelism": 4}
    assert choose_executor(None, slots=64, **given).executor == "crew"
    assert choose_executor("crew", slots=64, **given).executor == "crew"
    assert choose_executor("jobs", slots=64, **given).executor == "jobs"
    few = choose_executor("crew", slots=2, **given)
    assert str(few) == "Spark jobs, one for each epoch: a crew needs 4 slots, and there are 2"
    assert "streaming DataFrame" in choose_executor("crew", streaming_frame=True, tasks=2, slots=64).why


def numbers() -> hf.Pipeline:
    pipeline = hf.Pipeline("numbers")
    pipeline.source("rows", hf.source.memory(pl.DataFrame({"v": [1]}))).sink("out", hf.sink.collect())
    return pipeline


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "a crew of 2 workers and 1 spare: a session on this machine has the 4 slots for it"),
        ({"tasks": 3}, "a crew of 3 workers and 1 spare: a session on this machine has the 5 slots for it"),
        ({"executor": "jobs"}, "Spark jobs, one for each epoch: executor='jobs' asks for them"),
        ({"master": "local[3]"}, "Spark jobs, one for each epoch: a crew needs 4 slots, and there are 3"),
        ({"master": "local[5,4]"}, "a crew of 2 workers and 1 spare: it needs 4 slots, and there are 5"),
        ({"master": "local"}, "Spark jobs, one for each epoch: a crew needs 4 slots, and there are 1"),
        ({"master": "spark://far:7077"}, "if spark://far:7077 has the 4 slots for it, else Spark jobs"),
    ],
    ids=str,
)
def test_explain_says_what_will_run_the_epochs(given: dict[str, Any], told: str) -> None:
    known = {"numbers": {"": "Spark jobs, one for each epoch: the crew was given up"}}
    [said] = [line for line in hf.explain(numbers(), **given).split("\n") if line.startswith("executor: ")]
    assert said.endswith(told)
    at_the_last_start = "executor at the last start: Spark jobs, one for each epoch: the crew was given up"
    asked = "executor" in given or "master" in given
    assert (at_the_last_start in hf.explain(numbers(), executors=known, **given)) is not asked


def test_explain_on_the_command_line_says_what_ran_them_at_the_last_start(tmp_path: Path) -> None:
    (tmp_path / "numbers.py").write_text(
        "import polars as pl, holdfast as hf\n"
        "pipeline = hf.Pipeline('numbers')\n"
        "rows = pipeline.source('rows', hf.source.memory(pl.DataFrame({'v': [1]})))\n"
        f"rows.sink('out', hf.sink.parquet({str(tmp_path / 'out')!r}))\n"
    )
    FragmentRun(
        load_pipeline(str(tmp_path / "numbers.py")), InProcessPlatform(), RunOptions(store=tmp_path / "store")
    ).run()
    with contextlib.closing(MetaStore(tmp_path / "store")) as meta:
        RunNotes(meta).executor("numbers", "a", "a crew of 9 workers: somebody wanted it so")

    def told(*options: str) -> str:
        words = ["explain", str(tmp_path / "numbers.py"), "--store", str(tmp_path / "store"), *options]
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, result.output
        return result.output

    assert "executor on a at the last start: a crew of 9 workers: somebody wanted it so" in told()
    assert "executor: Spark jobs, one for each epoch: executor='jobs' asks for them" in told("--executor", "jobs")
    assert "executor: Spark jobs, one for each epoch: a crew needs 4 slots" in told("--master", "local[2]")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "2 partitions by the position of key;"),
        ({"latency": 0.01}, "1 partition by the position of key (2 when epochs take much longer than 10 ms"),
        ({"latency": 0.01, "partitions": 3}, "3 partitions by the position of key;"),
    ],
)
def test_explain_says_how_many_partitions_operators_begin_with_and_why(given: dict[str, Any], said: str) -> None:
    pipeline = hf.Pipeline("counts")
    source = hf.source.memory(pl.DataFrame({"key": [1], "ts": [1]}))
    rows = pipeline.source("rows", source, event_time="ts", time_unit="s")
    rows.key_by("key").window(hf.window.tumbling(1)).agg(n=hf.count()).sink("out", hf.sink.collect())
    assert said in hf.explain(pipeline, **given)
