"""Ratios, bars and the paper's figures of the experiments that compare engines, without running one."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import EpochFailedError
from holdfast_lab.bench.bench_figures import Figures
from holdfast_lab.experiment.definition import Result, matching
from holdfast_lab.experiment.scabbard import checkpoint_overhead, query_comparison, query_report
from holdfast_lab.experiment.scabbard.query_engines import EngineRounds, latency_columns, load_of
from holdfast_lab.workloads.flink_run import FlinkCheckpoint, FlinkRun, flink_settings
from holdfast_lab.workloads.spark_run import SparkBatch, SparkRun


def figures(speed: float, **notes: Any) -> Figures:
    return Figures("CM1", "holdfast", round(speed), 1.0, 3, (1.0,), (0.5, 1.5), 0, 0, 10, notes)


def rows_of(name: str, **speeds: float | None) -> list[dict[str, Any]]:
    engines = {"kept": query_report.KEPT, "flink": query_report.FLINK, "spark": query_report.SPARK}
    rows = [{"query": name, "engine": engines[key], "tuples_per_s": speed} for key, speed in speeds.items()]
    for row in rows:
        ratios = {name: query_report.RoundRatios(0.95, 1.2, 0.45)}
        row.update(query_report.compared(rows, row, ratios), same_output=True)
    return rows


def test_what_fault_tolerance_costs_is_the_median_of_the_rounds() -> None:
    rounds = EngineRounds((figures(90), figures(50), figures(95)), (figures(100), figures(100), figures(100)))
    assert rounds.ratio == pytest.approx(0.9)
    assert EngineRounds((), ()).ratio is None


def test_a_crew_is_held_against_jobs_and_short_epochs_against_long_ones() -> None:
    hundred = (figures(100), figures(100), figures(100))
    jobs, short = (figures(50), figures(125), figures(80)), (figures(40), figures(70), figures(60))
    rounds = EngineRounds(hundred, hundred, jobs, short)
    assert rounds.over(rounds.jobs) == pytest.approx(1.25)
    assert rounds.under(rounds.short) == pytest.approx(0.6)
    assert [runs[0].tuples for runs in rounds.in_order()] == [100, 50, 40, 100]
    found = {bar.name: bar for bar in query_report.bars(rows_of("CM2", kept=300.0, flink=10.0, spark=5.0))}
    assert found["CM2: times as fast as with Spark jobs"].ok
    assert not found["CM2: throughput kept at 50 ms"].ok
    assert found["CM2: throughput kept with fault tolerance"].ok
    unknown = query_report.compared(rows := rows_of("CM2", kept=1.0), rows[0], {})
    assert (unknown["over_jobs"], unknown["short_ratio"], unknown["ft_ratio"]) == (None, None, None)


def test_bars_ask_for_more_where_the_query_is_easy() -> None:
    found = {bar.name: bar for bar in query_report.bars(rows_of("YSB", kept=300.0, flink=10.0, spark=5.0))}
    assert not found["YSB: times Flink with checkpoints"].ok
    assert found["YSB: times Structured Streaming"].ok
    found = {bar.name: bar for bar in query_report.bars(rows_of("LRB1", kept=300.0, flink=10.0, spark=5.0))}
    assert found["LRB1: times Flink with checkpoints"].ok
    assert found["LRB1: times Flink with checkpoints"].value == 30.0
    assert found["LRB1: throughput kept with fault tolerance"].ok


def test_a_bar_over_what_was_not_measured_is_missed() -> None:
    found = {bar.name: bar for bar in query_report.bars(rows_of("SM", kept=300.0, flink=None))}
    assert found["SM: times Flink with checkpoints"].value is None
    assert not found["SM: times Flink with checkpoints"].ok


def test_one_output_that_differs_misses_the_bar() -> None:
    rows = rows_of("SM", kept=300.0, flink=1.0, spark=1.0)
    assert query_report.bars(rows)[-1].ok
    rows[1]["same_output"] = False
    assert not query_report.bars(rows)[-1].ok


def test_a_measurement_that_fails_is_a_note_and_not_the_end() -> None:
    table = query_comparison.QueryTable(lambda text: None)

    def fail() -> int:
        raise EpochFailedError("it broke", cure="mend it")

    assert table.tried("SM", "flink", "the measurement", fail) is None
    assert "it broke" in table.notes[0]


def test_nothing_is_begun_when_the_time_is_over() -> None:
    table = query_comparison.QueryTable(lambda text: None, end=0.0)
    assert table.tried("SM", "flink", "the measurement", lambda: 1) is None
    assert "no time was left" in table.notes[0]


def test_the_papers_figures_go_with_the_rows() -> None:
    result = Result(("query", "engine"), rows_of("CM1", kept=1.0), query_report.paper())
    said = matching(result, result.rows[0])
    assert (said["times_flink"], said["ft_cost_percent"], said["latency_p50_ms"]) == (10, 69, 50)
    table = Result(("query", "engine"), (), checkpoint_overhead.paper())
    assert matching(table, {"query": "LRB2", "engine": "flink"})["checkpoint_ms"] == 1_000
    assert matching(table, {"query": "LRB2", "engine": "holdfast"})["state_mb"] == 105


def test_percentiles_are_milliseconds_and_null_without_a_latency() -> None:
    assert latency_columns([0.1, 0.2, 0.3])["latency_p50_ms"] == 200.0
    assert set(latency_columns(())) == {f"latency_p{share}_ms" for share in (5, 25, 50, 75, 95)}
    assert set(latency_columns(()).values()) == {None}


def test_columns_of_checkpoints() -> None:
    kept = FlinkRun("CM1", 900, 1.0, (FlinkCheckpoint(2_000_000, 1_000_000, 0.2), FlinkCheckpoint(0, 0, 0.4)), False)
    found = checkpoint_overhead.flink_columns(kept, FlinkRun("CM1", 1_000, 1.0, (), False))
    assert (found["state_mb"], found["checkpoint_ms"], found["overhead_percent"]) == (1.0, 300.0, 10.0)
    assert checkpoint_overhead.flink_columns(FlinkRun("CM1", 1, 1.0, (), False), None)["checkpoint_ms"] is None
    costs = {"state_bytes": 3_000_000, "written_bytes_per_epoch": 1_000_000, "commit_ms": 4.0}
    rounds = EngineRounds((figures(95, **costs),), (figures(100, **costs),))
    mine = checkpoint_overhead.holdfast_columns(rounds)
    assert (mine["state_mb"], mine["checkpoint_ms"], mine["overhead_percent"]) == (3.0, 4.0, 5.0)
    assert checkpoint_overhead.bars([{"query": "CM1", "engine": "holdfast", **mine}])[0].ok


def test_a_run_of_spark_that_gets_nowhere_has_a_bound_from_above() -> None:
    run = SparkRun("SG1", 0, 32, 0, (), elapsed=50.0, rows_per_batch=2_000)
    speed, said = run.speed()
    assert speed == pytest.approx(40.0)
    assert said is not None
    assert "at most" in said
    slow = SparkRun("SG1", 0, 32, 0, (), elapsed=50.0, rows_per_batch=2_000, warm_up_tuples=2_000, warm_up_seconds=20.0)
    assert slow.speed()[0] == pytest.approx(100.0)
    done = SparkRun("SG1", 600, 32, 0, (SparkBatch(1, 0.0, 2.0, 0, None, None),))
    assert done.speed() == (300.0, None)


def test_checkpoints_are_every_second_and_only_where_asked_for(tmp_path: Any) -> None:
    assert flink_settings(tmp_path, checkpoints=True)["execution.checkpointing.interval"] == "1000 ms"
    assert flink_settings(tmp_path, checkpoints=False, heap=True) == {"state.backend.type": "hashmap"}


def test_the_load_is_the_same_for_the_same_seed_and_about_as_dense_as_the_benchmarks() -> None:
    assert load_of("ysb", 3).base.equals(load_of("YSB", 3).base)
    for name in ("CM1", "YSB"):
        load = load_of(name, 1)
        assert 3_500_000 <= load.base.height * load.repeat <= 4_000_000


@pytest.mark.parametrize("nowhere", [None, "null"])
def test_the_first_batch_of_spark_begins_nowhere(nowhere: str | None) -> None:
    report = {
        "timestamp": "2024-01-01T00:00:00Z",
        "durationMs": {"triggerExecution": 500},
        "sink": {"numOutputRows": 0},
        "sources": [{"startOffset": nowhere, "endOffset": '{"offset": 7}'}],
    }
    assert SparkBatch.of(report).blocks == 7
