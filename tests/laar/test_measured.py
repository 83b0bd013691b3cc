"""Descriptors measured from runs: from made-up journals, and from a real run of a cut pipeline."""

from __future__ import annotations

import json
import time
from fractions import Fraction
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.cli import main
from holdfast.engine.fragment_runs import FragmentsRun
from holdfast.engine.options import RunOptions
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.epoch.report import EpochReport
from holdfast.errors import DeclarationError, DescriptorError
from holdfast.laar import Model, load_descriptor, read_descriptor, solve
from holdfast.laar.epoch_journal import EpochWork, FragmentWork, PipelineJournal, read_journals
from holdfast.laar.host_strategy import Feed, planned
from holdfast.laar.measured_descriptor import MeasurementSettings, measured_descriptor
from holdfast.laar.per_input import per_row
from holdfast.meta import MetaStore, ReplicaMeta
from holdfast.replica.deployment import Deployment


def epochs(rows: list[int], *, out: float = 0.5, cpu: float = 0.001, run: float = 0.0, begin: float = 0.0,
           entered: bool = True) -> tuple[EpochWork, ...]:  # fmt: skip
    """An epoch per second that reads so many rows."""
    return tuple(
        EpochWork(run, at + 1, begin + at, begin + at + 1, count, count if entered else 0, round(count * out), 0,
                  count * cpu)
        for at, count in enumerate(rows)
    )  # fmt: skip


RATES = [100] * 8 + [400] * 4
WRITER = FragmentWork("app.kept", ("clicks",), (), ("app.kept", "app.rest"), epochs(RATES))
READER = FragmentWork("app.out", (), ("app.kept",), (), epochs([40] * 12, out=0.0, cpu=0.002, entered=False))
WRITTEN = {"app.kept": 400, "app.rest": 800}


def test_selectivity_cost_and_rates_are_those_of_the_epochs() -> None:
    said = measured_descriptor(
        "app", [WRITER, READER], WRITTEN, MeasurementSettings(rates=(Fraction(100), Fraction(400)))
    )
    assert (said.sources, said.pes) == (("clicks",), ("app.kept", "app.out"))
    first, second = said.edges
    assert (first.origin, first.target) == ("clicks", "app.kept")
    assert (float(first.selectivity), float(first.cost)) == (0.5, 0.001)
    # The reader takes a third of what the writer puts out.
    assert (second.origin, second.target) == ("app.kept", "app.out")
    assert float(second.cost) == pytest.approx(0.002 / 3)
    assert [(config.name, config.prob, config.rates) for config in said.configs] == [
        ("Low", Fraction(2, 3), (100,)),
        ("High", Fraction(1, 3), (400,)),
    ]
    assert Model(said).work[1] == (Fraction(2, 5), Fraction("0.000666666667") * 200)


def test_bins_are_cut_where_rates_differ_and_their_rate_is_the_greatest_in_them() -> None:
    rates = [10, 20, 30, 40, 50, 60, 70, 80]
    work = FragmentWork("app", ("clicks",), (), (), epochs(rates))
    said = measured_descriptor("app", [work], {}, MeasurementSettings(bins=2))
    assert [config.prob for config in said.configs] == [Fraction(1, 2), Fraction(1, 2)]
    assert said.configs[1].rates == (80,)
    assert 40 <= said.configs[0].rates[0] < 50
    steady = FragmentWork("app", ("clicks",), (), (), epochs([10] * 9))
    [only] = measured_descriptor("app", [steady], {}, MeasurementSettings(bins=3)).configs
    assert (only.prob, only.rates) == (1, (10,))


def test_noise_makes_no_levels() -> None:
    """A rate that wavers around one value is one level; around two, the lower level has all of the lower ones."""
    random = np.random.default_rng(5)
    wavering = [int(rate) for rate in random.normal(1_000, 60, 80)]
    work = FragmentWork("app", ("clicks",), (), (), epochs(wavering))
    assert len(measured_descriptor("app", [work], {}, MeasurementSettings(bins=2)).configs) == 1
    peaks = [int(rate) for rate in random.normal(2_000, 60, 20)]
    work = FragmentWork("app", ("clicks",), (), (), epochs(wavering + peaks))
    low, high = measured_descriptor("app", [work], {}, MeasurementSettings(bins=2)).configs
    assert (low.prob, high.prob) == (Fraction(4, 5), Fraction(1, 5))
    assert float(low.rates[0]) == pytest.approx(max(wavering), rel=0.01)


def test_hosts_that_take_turns_are_one_run() -> None:
    """One of them was started again, and says so."""
    both = epochs([10] * 20)
    turns = tuple(structs.replace(epoch, run=float(epoch.epoch % 2)) for epoch in both)
    work = FragmentWork("app", ("clicks",), (), (), turns)
    [config] = measured_descriptor("app", [work], {}, MeasurementSettings()).configs
    assert config.rates == (10,)


def test_nobody_counts_the_time_between_two_runs() -> None:
    work = FragmentWork("app", ("clicks",), (), (), epochs([10] * 4) + epochs([10] * 4, run=1.0, begin=1_000.0))
    [config] = measured_descriptor("app", [work], {}, MeasurementSettings()).configs
    assert config.rates == (10,)


def test_several_sources_make_configurations_of_what_was_seen_together() -> None:
    one = FragmentWork("app.a", ("a",), (), ("app.a",), epochs([10] * 6 + [20] * 6))
    two = FragmentWork("app.b", ("b",), ("app.a",), (), epochs([5] * 12))
    said = measured_descriptor(
        "app", [one, two], {"app.a": 90}, MeasurementSettings(rates=(Fraction(10), Fraction(20)))
    )
    assert [(config.name, config.rates, config.prob) for config in said.configs] == [
        ("Low-Low", (10, 10), Fraction(1, 2)),
        ("High-Low", (20, 10), Fraction(1, 2)),
        ("High-High", (20, 20), 0),
    ]
    assert {(edge.origin, edge.target) for edge in said.edges} == {("a", "app.a"), ("app.a", "app.b"), ("b", "app.b")}
    assert solve(said).strategy is not None


def test_a_source_that_clients_fill_is_a_source() -> None:
    work = FragmentWork("app", (), ("app.pushed",), (), epochs([30] * 5, entered=False))
    said = measured_descriptor("app", [work], {"app.pushed": 150}, MeasurementSettings())
    assert said.sources == ("app.pushed",)
    assert said.configs[0].rates == (30,)


def merging(left: list[int], right: list[int], *, told: bool = True) -> FragmentWork:
    """A row of the left costs 1 ms and brings two, one of the right costs 20 ms and brings a tenth."""
    made = []
    for at, (one, two) in enumerate(zip(left, right, strict=True)):
        known = {"app.left": one, "app.pushed": two} if told else None
        made.append(EpochWork(0.0, at + 1, float(at), at + 1.0, one + two, 0, round(2 * one + 0.1 * two), 0,
                              0.001 * one + 0.02 * two, known))  # fmt: skip
    return FragmentWork("app.merged", (), ("app.left", "app.pushed"), ("app.merged",), tuple(made))


def test_each_edge_has_its_own_selectivity_and_cost() -> None:
    random = np.random.default_rng(7)
    left, right = ([int(rate) for rate in random.uniform(*bounds, 60)] for bounds in ((500, 1_500), (5, 15)))
    writer = FragmentWork("app.left", ("clicks",), (), ("app.left",), epochs(left, out=1.0))
    totals = {"app.left": sum(left), "app.pushed": sum(right)}
    said = measured_descriptor("app", [writer, merging(left, right)], totals, MeasurementSettings(bins=1))
    edges = {(edge.origin, edge.target): edge for edge in said.edges}
    for origin, selectivity, cost in (("app.left", 2.0, 0.001), ("app.pushed", 0.1, 0.02)):
        edge = edges[origin, "app.merged"]
        assert float(edge.cost) == pytest.approx(cost, rel=0.01)
        assert float(edge.selectivity) == pytest.approx(selectivity, abs=0.05)
    assert said.sources == ("clicks", "app.pushed")
    assert [float(rate) for rate in said.configs[-1].rates] == [max(left), max(right)], "each by itself"


def test_inputs_that_rise_and_fall_together_cost_the_same() -> None:
    both = merging([1_000, 2_000, 3_000] * 10, [10, 20, 30] * 10)
    writer = FragmentWork("app.left", ("clicks",), (), ("app.left",), epochs([1_000, 2_000, 3_000] * 10, out=1.0))
    totals = {"app.left": 60_000, "app.pushed": 600}
    said = measured_descriptor("app", [writer, both], totals, MeasurementSettings())
    costs = [float(edge.cost) for edge in said.edges if edge.target == "app.merged"]
    assert costs == [pytest.approx(1.2 * 1_000 / 1_010 / 1_000)] * 2
    spent = sum(epoch.cpu for epoch in both.epochs)
    assert 60_000 * costs[0] + 600 * costs[1] == pytest.approx(spent)


def test_a_journal_that_does_not_tell_streams_apart_is_read_by_what_each_has_got() -> None:
    old = merging([1_000] * 20, [10] * 20, told=False)
    writer = FragmentWork("app.left", ("clicks",), (), ("app.left",), epochs([1_000] * 20, out=1.0))
    said = measured_descriptor("app", [writer, old], {"app.left": 20_000, "app.pushed": 200}, MeasurementSettings())
    assert [float(rate) for rate in said.configs[-1].rates] == [1_000, 10]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.floats(0, 5)), min_size=1, max_size=40))
def test_parts_of_inputs_are_never_negative_and_come_to_what_was_measured(seen: list[tuple[int, int, float]]) -> None:
    rows = np.array([row[:2] for row in seen], dtype=np.float64)
    totals = np.array([row[2] if sum(row[:2]) else 0.0 for row in seen])
    found = per_row(rows, totals)
    assert (found >= 0).all()
    assert float(found @ rows.sum(axis=0)) == pytest.approx(totals.sum())


def test_what_has_not_run_is_not_measured(tmp_path: Path) -> None:
    with pytest.raises(DescriptorError, match="there are no measurements"):
        measured_descriptor("app", [], {}, MeasurementSettings())
    idle = FragmentWork("app", ("clicks",), (), (), epochs([0, 0]))
    with pytest.raises(DescriptorError, match="has read no rows"):
        measured_descriptor("app", [idle], {}, MeasurementSettings())
    result = CliRunner().invoke(main, ["laar", "measure", "app", "--store", str(tmp_path / "none")])
    assert result.exit_code == 1
    assert "there is no store" in result.stderr


# the journal


def report(epoch: int) -> EpochReport:
    return EpochReport(
        fragment="app", epoch=epoch, rows=10, entered=10, started=epoch - 0.5, committed=float(epoch), seconds=0.5,
        output_rows=3, late_rows=0, bad_rows=0, state_rows=0, state_bytes=0, written_bytes=0, streamed_rows=0,
        streamed_bytes=0, greatest={}, watermark=None, lag=None, cpu={"0-0": 0.25, "0-1": 0.5},
    )  # fmt: skip


def plain_pipeline(name: str = "app", guarantee: hf.Guarantee | None = None) -> hf.Pipeline:
    pipeline = hf.Pipeline(name, guarantee=guarantee)
    rows = pipeline.source("clicks", hf.source.memory(pl.DataFrame({"v": [1, 2]})))
    rows.filter(pl.col("v") > 1).named("some").sink("out", hf.sink.collect())
    return pipeline


def test_a_journal_goes_on_and_survives_a_torn_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    MetaStore(tmp_path).close()
    note = PipelineJournal(plain_pipeline(), tmp_path, None).epoch_committed
    note(report(1))
    note(report(2))
    path = tmp_path / "app" / "epochs.jsonl"
    path.write_text(path.read_text() + '{"run": 1, "epo')
    note = PipelineJournal(plain_pipeline(), tmp_path, None).epoch_committed
    note(report(3))
    [work] = read_journals(tmp_path, "app")
    assert [(epoch.epoch, epoch.cpu, epoch.entered) for epoch in work.epochs] == [
        (1, 0.75, 10),
        (2, 0.75, 10),
        (3, 0.75, 10),
    ]
    assert (work.sources, work.reads, work.writes) == (("clicks",), (), ())
    monkeypatch.setattr("holdfast.laar.epoch_journal._KEPT", 2)
    for epoch in range(4, 9):
        note(report(epoch))
    [work] = read_journals(tmp_path, "app")
    assert work.epochs[-1].epoch == 8
    assert len(work.epochs) <= 4
    assert read_journals(tmp_path, "other") == []


def test_a_journal_of_before_goes_on(tmp_path: Path) -> None:
    """It has no rows by p-stream."""
    MetaStore(tmp_path).close()
    PipelineJournal(plain_pipeline(), tmp_path, None).epoch_committed(report(1))
    path = tmp_path / "app" / "epochs.jsonl"
    old = path.read_text().replace("holdfast-epochs-2", "holdfast-epochs-1").replace(',"streams":{},"beside":null', "")
    assert "streams" not in old
    path.write_text(old)
    [work] = read_journals(tmp_path, "app")
    assert work.epochs[0].streams is None
    PipelineJournal(plain_pipeline(), tmp_path, None).epoch_committed(report(2))
    [work] = read_journals(tmp_path, "app")
    assert [epoch.epoch for epoch in work.epochs] == [1, 2]


# the guarantee


@pytest.mark.parametrize("wrong", [0, -0.1, 1.01])
def test_a_completeness_that_makes_no_sense_is_refused(wrong: float) -> None:
    with pytest.raises(DeclarationError, match="completeness") as caught:
        hf.Guarantee(completeness=wrong)
    assert caught.value.cure
    assert hf.Guarantee(completeness=1).completeness == 1


JOB = """
import polars as pl
import holdfast as hf

pipeline = hf.Pipeline("app", guarantee=hf.Guarantee(completeness=0.6))
rows = pipeline.source("clicks", hf.source.memory(pl.DataFrame({"v": [1, 2]})))
kept = rows.filter(pl.col("v") > 0).named("all").persist("kept", push_up=False)
kept.filter(pl.col("v") > 1).named("some").sink("out", hf.sink.collect())
"""
EXAMPLE = {
    "format": "laar-instance-1", "name": "app", "sources": ["clicks"], "pes": ["app.kept", "app.out"],
    "configs": [{"name": "Low", "prob": "4/5", "rates": [4]}, {"name": "High", "prob": "1/5", "rates": [8]}],
    "edges": [{"from": "clicks", "to": "app.kept", "selectivity": 1, "cost": 0.1},
              {"from": "app.kept", "to": "app.out", "selectivity": 1, "cost": 0.1}],
    "n_hosts": 2, "K": 1, "k": 2, "placement": [[0, 1], [0, 1]], "T": 1, "ic_target": 0.9,
}  # fmt: skip


def test_explain_shows_strategy_cost_and_what_is_guaranteed(tmp_path: Path) -> None:
    job, said = tmp_path / "job.py", tmp_path / "app.json"
    job.write_text(JOB)
    said.write_text(json.dumps(EXAMPLE))
    arguments = ["explain", str(job), "--store", str(tmp_path / "store")]
    told = CliRunner().invoke(main, arguments).stdout
    assert "rates and costs are not measured yet" in told
    told = CliRunner().invoke(main, [*arguments, "--descriptor", str(said)]).stdout
    assert "completeness: at least 0.6 of all tuples" in told
    assert f"descriptor: {said}" in told
    assert "guaranteed: 0.6667" in told
    assert "cost: 1.6 CPU seconds per second, 17% less than static replication (1.92); the minimum" in told
    assert "Low, up to clicks 4/s, 80% of the time:\n    app.kept: all replicas, on hosts 0, 1" in told
    assert "app.kept: one replica, on host" in told
    assert "no strategy has room for that" in told
    job.write_text(JOB.replace("0.6", "0.95"))
    told = CliRunner().invoke(main, [*arguments, "--descriptor", str(said)]).stdout
    assert "no strategy keeps that on 2 hosts of 1, 1 CPU seconds per second" in told
    said.write_text(json.dumps(EXAMPLE).replace("app.out", "other"))
    result = CliRunner().invoke(main, [*arguments, "--descriptor", str(said)])
    assert result.exit_code == 1
    assert "is not of this pipeline" in result.stderr or "is missing" in result.stderr


def test_explain_shows_what_hosts_go_by(tmp_path: Path) -> None:
    job, store = tmp_path / "job.py", tmp_path / "store"
    job.write_text(JOB.replace("0.6", "0.3"))
    plan = planned(read_descriptor(EXAMPLE), 0.3, ("east", "west"), ("app.kept", "app.out"),
                   {"clicks": Feed("app.kept")}, "measured from 7 epochs")  # fmt: skip
    deployed = Deployment(
        pipeline="app", target=str(job), fragments={}, settings={}, hosts=("east", "west"), activation=plan
    )
    meta = MetaStore(store, sync=False)
    ReplicaMeta(meta).deploy("app", deployed.encode())
    meta.close()
    result = CliRunner().invoke(main, ["explain", str(job), "--store", str(store)])
    assert result.exit_code == 0, result.output
    assert "completeness: at least 0.3 of all tuples" in result.stdout
    assert "descriptor: that of the hosts, measured from 7 epochs" in result.stdout
    assert "of it for what arrives before a change of rates is noticed" in result.stdout
    assert "High, up to clicks 8/s, 20% of the time:\n    app.kept: one replica, on host" in result.stdout
    assert "east" in result.stdout


def test_explain_and_measure_go_by_the_fragments_there_are_now(tmp_path: Path) -> None:
    job, store = tmp_path / "job.py", tmp_path / "store"
    job.write_text(JOB)
    MetaStore(store, sync=False).close()
    links = {"app.old": (["clicks"], [], ["app.old"]), "app.kept": (["clicks"], [], ["app.kept"]),
             "app.out": ([], ["app.kept"], [])}  # fmt: skip
    for begin, (name, (sources, reads, writes)) in zip((0.0, 100.0, 100.0), links.items(), strict=True):
        made = epochs([4] * 40, out=1.0, run=begin, begin=begin, entered=bool(sources))
        head = {"format": "holdfast-epochs-1", "pipeline": "app", "fragment": name, "sources": sources,
                "reads": reads, "writes": writes}  # fmt: skip
        (store / name).mkdir()
        lines = [head, *(msgspec.to_builtins(line) for line in made)]
        (store / name / "epochs.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    told = CliRunner().invoke(main, ["explain", str(job), "--store", str(store)])
    assert told.exit_code == 0, told.output
    assert "app.out: " in told.stdout
    assert "app.old" not in told.stdout
    arguments = ["laar", "measure", "app", "--store", str(store), "--capacity"]
    measured = CliRunner().invoke(main, [*arguments, "1"])
    assert json.loads(measured.stdout)["pes"] == ["app.kept", "app.out"]
    refused = CliRunner().invoke(main, [*arguments, "0"])
    assert refused.exit_code == 2
    assert "not more than 0" in refused.stderr


def test_sources_that_never_ran_together_are_told() -> None:
    one = FragmentWork("app.a", ("a",), (), (), epochs([10] * 6))
    two = FragmentWork("app.b", ("b",), (), (), epochs([10] * 6, begin=100.0))
    with pytest.raises(DescriptorError, match="'b' has never run at the same time as the others: a, b"):
        measured_descriptor("app", [one, two], {}, MeasurementSettings())


# a real run


def cut_pipeline(out: Path) -> hf.Pipeline:
    frames = [pl.DataFrame({"ts": range(at * 100, at * 100 + 100), "k": [i % 5 for i in range(100)]})
              for at in range(12)]  # fmt: skip
    pipeline = hf.Pipeline("sums", guarantee=hf.Guarantee(completeness=0.7))
    rows = pipeline.source("events", hf.source.memory(frames, epochs=True), event_time="ts", time_unit="ms")
    kept = rows.filter(pl.col("k") > 0).named("some").persist("kept", push_up=False)
    windows = kept.key_by("k").window(hf.window.tumbling("100ms"))
    windows.agg(n=hf.count()).named("counts").sink("out", hf.sink.parquet(out))
    return pipeline


@pytest.mark.spark
def test_a_real_run_is_measured_and_solved(spark: SparkSession, tmp_path: Path) -> None:
    store, pipeline = tmp_path / "store", cut_pipeline(tmp_path / "out")
    began = time.time()
    options = RunOptions(store=store, durable=False)
    FragmentsRun(pipeline, SparkPlatform(spark), options, observer=PipelineJournal(pipeline, store, None)).run()
    took = time.time() - began
    works = {work.fragment: work for work in read_journals(store, "sums")}
    assert set(works) == {"sums.kept", "sums.out"}
    assert sum(epoch.read for epoch in works["sums.kept"].epochs) == 1_200
    assert works["sums.out"].reads == works["sums.kept"].writes == ("sums.kept",)
    path = tmp_path / "sums.json"
    arguments = ["laar", "measure", "sums", "--store", str(store), "--window", "0.05", "--capacity", "4"]
    result = CliRunner().invoke(main, [*arguments, "--hosts", "3", "-o", str(path)])
    assert result.exit_code == 0, result.output
    said = load_descriptor(path)
    assert (said.name, said.sources, said.pes) == ("sums", ("events",), ("sums.kept", "sums.out"))
    assert (said.hosts, set(said.capacities), said.ic_target) == (3, {4}, Fraction(7, 10))
    edges = {(edge.origin, edge.target): edge for edge in said.edges}
    assert float(edges["events", "sums.kept"].selectivity) == pytest.approx(0.8)
    assert all(0 < float(edge.cost) * 1_200 < 2 * took for edge in said.edges)
    assert max(config.rates[0] for config in said.configs) >= 1_200 / took
    assert solve(said).strategy is not None
    told = CliRunner().invoke(main, [*arguments, "--rates", "10,100000"])
    assert [config["rates"] for config in json.loads(told.stdout)["configs"]][-1] == [100_000]


@pytest.mark.spark
def test_rows_of_a_real_run_are_told_apart_by_p_stream(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = hf.Pipeline("two")
    kept = []
    for name, count in (("many", 90), ("few", 10)):
        rows = pipeline.source(name, hf.source.memory(pl.DataFrame({"v": range(count)}))).filter(pl.col("v") >= 0)
        kept.append(rows.persist(f"kept_{name}", push_up=False))
    kept[0].union(kept[1]).sink("out", hf.sink.parquet(tmp_path / "out"))
    store = tmp_path / "store"
    options = RunOptions(store=store, durable=False)
    FragmentsRun(pipeline, SparkPlatform(spark), options, observer=PipelineJournal(pipeline, store, None)).run()
    [work] = [journal for journal in read_journals(store, "two") if len(journal.reads) == 2]
    read = {stream: sum((epoch.streams or {})[stream] for epoch in work.epochs) for stream in work.reads}
    assert read == {"two.kept_many": 90, "two.kept_few": 10}
