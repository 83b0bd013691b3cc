"""Drills: what is killed, what is compared, and what the verdict says."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from starlette.testclient import TestClient

import holdfast as hf
from holdfast.cli import main
from holdfast.dashboard.dashboard_app import dashboard_app
from holdfast.dashboard.drill_proof import proved
from holdfast.dashboard.drill_report import DrillForecast, DrillReport, keep_report, kept_reports
from holdfast.dashboard.drill_run import planned_drill, run_drill
from holdfast.dashboard.store_watch import StoreWatch
from holdfast.errors import HoldfastError, UnknownStateError
from holdfast.meta import Commands, MetaStore
from holdfast.plan.drill_command import DrillAnswer, DrillCommand
from watched_runs import orders_pipeline, run_watched

REPORT = DrillReport(
    pipeline="orders", fragment="orders", kill="worker", what="a worker", at=1_790_000_000.5, epoch=7,
    predicted=DrillForecast(seconds=0.4, epochs=1, rows=500, cost=1e-6), bound=2.0, seconds=0.5, rows=500,
    compared=(7, 8),
)  # fmt: skip


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it has not come to that in time"
        time.sleep(0.05)


def changed(**facts: object) -> DrillReport:
    return DrillReport(**{name: getattr(REPORT, name) for name in REPORT.__struct_fields__} | facts).judged()


def test_a_verdict_rests_on_digests_and_on_time() -> None:
    passed = changed()
    assert passed.passed
    assert "nothing lost, nothing twice: the digests of epochs 7 to 8" in passed.verdict
    assert "it took 500 ms, 400 ms were predicted, 2.00 s are allowed" in passed.verdict
    slow = changed(seconds=2.5)
    assert not slow.passed
    assert slow.verdict.endswith("TOO LONG")
    other = changed(differences={"epoch 7, rows of out": "3 rows committed, now 4"})
    assert not other.passed
    assert "the output is wrong: epoch 7, rows of out" in other.verdict
    for unproved in (changed(compared=()), changed(problem="epoch 7 is not retained")):
        assert not unproved.passed
        assert "nothing is proven" in unproved.verdict
    assert not changed(seconds=None).passed


def test_reports_stay_in_the_store_and_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.dashboard.drill_report._MOST_REPORTS", 3)
    for number in range(5):
        keep_report(tmp_path, changed(at=1_790_000_000.0 + number))
    assert [report.at - 1_790_000_000 for report in kept_reports(tmp_path)] == [4, 3, 2]
    assert kept_reports(tmp_path, "another") == []
    assert kept_reports(tmp_path, "orders")[0] == changed(at=1_790_000_004.0)
    told = CliRunner().invoke(main, ["drill", "orders", "--reports", "--store", str(tmp_path)])
    assert told.output.count("passed: a worker of 'orders', killed in epoch 7") == 3


def test_digests_show_what_another_computation_would_have_given(tmp_path: Path) -> None:
    run_watched(tmp_path, orders_pipeline(), retain=100)
    proof = proved(orders_pipeline(), tmp_path, None, "orders", [3, 4])
    assert (proof.compared, proof.differences, proof.problem) == ([3, 4], {}, "")
    shifted = orders_pipeline(4_000, dropped=7)
    proof = proved(shifted, tmp_path, None, "orders", [3])
    assert any("epoch 3" in what for what in proof.differences)
    assert "not retained" in proved(orders_pipeline(), tmp_path, None, "orders", [99]).problem


def test_what_has_no_worker_says_so_and_runs_on(tmp_path: Path) -> None:
    meta = MetaStore(tmp_path)
    worker = Commands(meta).ask("orders", DrillCommand("worker").encode(), time.time())
    host = Commands(meta).ask("orders", DrillCommand("host", "b").encode(), time.time())
    run_watched(tmp_path, orders_pipeline())
    for number, problem in ((worker, "no crew runs its epochs"), (host, "one process runs it")):
        answer = Commands(meta).answered(number)
        assert answer is not None
        assert problem in (DrillAnswer.decode(answer).problem or "")
    assert StoreWatch(tmp_path).look().statuses["orders"].finished
    meta.close()


def test_what_does_not_run_cannot_be_drilled(tmp_path: Path) -> None:
    run_watched(tmp_path, orders_pipeline())
    snapshot = StoreWatch(tmp_path).look()
    with pytest.raises(UnknownStateError, match="'orders' is not running"):
        planned_drill(snapshot, "orders", "worker")
    with pytest.raises(UnknownStateError, match="no pipeline 'nothing'"):
        planned_drill(snapshot, "nothing", "worker")
    with pytest.raises(UnknownStateError, match="no fragment 'x'"):
        planned_drill(snapshot, "orders", "worker", "x")
    token = {"authorization": "Bearer t"}
    client = TestClient(dashboard_app(StoreWatch(tmp_path), "127.0.0.1", "t"), base_url="http://127.0.0.1")  # type: ignore[arg-type]
    asked = {"pipeline": "orders", "fragment": "orders", "kill": "worker"}
    assert client.post("/api/drill", json=asked).status_code == 401
    assert "is not running" in client.post("/api/drill", json=asked, headers=token).json()["error"]
    assert client.post("/api/drill", json=asked | {"kill": "all"}, headers=token).status_code == 400
    assert client.get("/api/pipelines/orders/drills").json() == {"reports": [], "last": None}


def counting() -> hf.Pipeline:
    def numbers(start: int, stop: int) -> pl.DataFrame:
        number = pl.int_range(start, stop, dtype=pl.Int64, eager=True)
        return pl.DataFrame({"at": number, "key": number % 7})

    schema = {"at": pl.Int64, "key": pl.Int64}
    pipeline = hf.Pipeline("counting", guarantee=hf.Guarantee(recovery="1h"))
    source = pipeline.source(
        "numbers", hf.source.generator(numbers, schema, rate=2_000), event_time="at", time_unit="ms"
    )
    counts = source.key_by("key").window(hf.window.tumbling("1s"), name="counts").agg(n=hf.count())
    counts.sink("out", hf.sink.collect())
    return pipeline


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
def test_a_worker_that_is_killed_on_purpose_costs_no_row(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = counting()
    with hf.start(pipeline, spark=spark, store=tmp_path, latency=0.2, retain="10 min", executor="crew") as running:
        until(lambda: hf.events(tmp_path, kind="epochs").height >= 2)
        drill = planned_drill(StoreWatch(tmp_path).look(), "counting", "worker")
        assert drill.forecast.seconds is not None
        assert drill.forecast.rows is not None
        assert drill.forecast.cost is not None
        told: list[str] = []
        report = run_drill(drill, pipeline, tmp_path, say=told.append)
        with pytest.raises(HoldfastError, match="no hosts run 'counting'"):
            planned_drill(StoreWatch(tmp_path).look(), "counting", "host")
        running.stop()
        running.wait()
    assert told[0] == f"a worker was killed while epoch {report.epoch} was in flight"
    assert report.passed, report.verdict
    assert report.epoch in report.compared
    assert kept_reports(tmp_path) == [report]
    [event] = hf.events(tmp_path, kind="drill").iter_rows(named=True)
    assert json.loads(event["details"])["passed"] is True
    [asked] = hf.events(tmp_path, kind="action")["text"]
    assert asked == "asked for: a drill: kill a worker"
