"""`holdfast streams`, and `explain` of what a p-stream cuts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

import holdfast as hf
from holdfast.cli import main
from holdfast.dashboard.metric_export import metrics_text
from holdfast.dashboard.store_watch import StoreWatch
from holdfast.engine.fragment_runs import open_cuts
from holdfast.errors import PipelineChangedError
from holdfast.meta import MetaStore, StreamMeta
from holdfast.plan.program import compile_program
from holdfast.plan.shape import shape_of_program
from stored_texts import save_shape

FILE = """
import polars as pl
import holdfast as hf

rows = pl.DataFrame({"at": range(3_000), "k": [i % 3 for i in range(3_000)], "note": ["x" * 40] * 3_000})
pipeline = hf.Pipeline("p")
kept = pipeline.source("in", hf.source.memory(rows), event_time="at", time_unit="s").persist("kept")
windows = kept.filter(pl.col("k") > 0).key_by("k").window(hf.window.tumbling("100s"))
windows.agg(n=hf.count()).sink("out", hf.sink.collect())
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "p.py"
    path.write_text(FILE)
    return path


def output(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_explain_shows_the_bytes_at_every_place_and_the_reason(file: Path, tmp_path: Path) -> None:
    text = output("explain", file, "--store", tmp_path / "store")
    assert "p-stream p.kept: written by p.kept, read by p.out" in text
    assert "because: fewest bytes of 4 places in a sample of 3,000 rows" in text
    places = [line for line in text.splitlines() if "B encoded" in line]
    assert len(places) == 4
    chosen = [line for line in places if line.endswith("<- here")]
    assert chosen == [min(places, key=lambda line: float(line.split()[0]))]
    assert not (tmp_path / "store").exists()


def test_explain_shows_the_place_that_an_earlier_run_has_chosen(file: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    pipeline = hf.Pipeline("p")
    rows = pl.DataFrame(schema={"at": pl.Int64, "k": pl.Int64, "note": pl.String})
    kept = pipeline.source("in", hf.source.memory(rows), event_time="at", time_unit="s").persist("kept")
    kept.filter(pl.col("k") > 0).key_by("k").window(hf.window.tumbling("100s")).agg(n=hf.count()).sink(
        "out", hf.sink.collect()
    )
    meta = MetaStore(store)
    open_cuts(pipeline, meta)  # no rows yet, so that rules decide
    meta.close()
    text = output("explain", file, "--store", store)
    assert "placed after filter (at, k)" in text
    assert "by rule, nothing measured" in text
    [told] = json.loads(output("streams", "--store", store, "--json"))
    assert told["stream"] == "p.kept"
    assert told["placement"]["place"]["after"] == "filter"
    assert {marker["kind"] for marker in told["markers"]} == {"retain", "checkpoint", "release"}
    assert "p.out" in output("streams", "--store", store)


def test_streams_without_a_store_says_where_it_looked(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["streams", "--store", str(tmp_path)])
    assert result.exit_code == 1
    assert "there is no store" in result.output


def test_a_fragment_that_is_gone_is_named_and_can_be_forgotten(tmp_path: Path) -> None:
    def build(sink: str) -> hf.Pipeline:
        pipeline = hf.Pipeline("p")
        rows = pl.DataFrame({"at": [1, 2], "k": [1, 2]})
        pipeline.source("in", hf.source.memory(rows)).persist("kept").sink(sink, hf.sink.collect())
        return pipeline

    store = tmp_path / "store"
    meta = MetaStore(store)
    try:
        open_cuts(build("out"), meta)
        with pytest.raises(PipelineChangedError, match=r"--forget p\.kept p\.out"):
            open_cuts(build("other"), meta)
        wrong = CliRunner().invoke(main, ["streams", "--store", str(store), "--forget", "p.kept", "p.nobody"])
        assert "its readers are: p.out" in wrong.output
        assert "nobody" in output("streams", "--store", store, "--forget", "p.kept", "p.out")
        open_cuts(build("other"), meta)
    finally:
        meta.close()


def test_an_operator_that_holds_back_its_own_records_is_not_shown_as_a_reader(tmp_path: Path) -> None:
    pipeline = hf.Pipeline("p")
    rows = pl.DataFrame({"at": [1, 2], "k": [1, 2]})
    pipeline.source("in", hf.source.memory(rows)).persist("kept").sink("out", hf.sink.collect())
    meta = MetaStore(tmp_path)
    try:
        open_cuts(pipeline, meta)
        StreamMeta(meta).subscribe("p.kept", "p.kept/windows", 0.0)
    finally:
        meta.close()
    shown = output("streams", "--store", tmp_path)
    assert "p.out" in shown
    assert "p.kept/windows" not in shown
    metrics = metrics_text(StoreWatch(tmp_path)).decode()
    assert re.findall(r'holdfast_stream_reader_behind_rows\{[^}]*reader="([^"]*)"', metrics) == ["p.out"]


def test_a_renamed_cut_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    def build(cut: str) -> hf.Pipeline:
        pipeline = hf.Pipeline("p")
        rows = pl.DataFrame({"at": [1, 2], "k": [1, 2]})
        pipeline.source("in", hf.source.memory(rows)).persist(cut).sink("out", hf.sink.collect())
        return pipeline

    meta = MetaStore(tmp_path)
    try:
        for fragment in open_cuts(build("kept"), meta).fragments:
            lease = meta.acquire(fragment.name, "me", 0.0, 1.0)
            save_shape(meta, lease, shape_of_program(compile_program(fragment.pipeline)).encode())
        with pytest.raises(PipelineChangedError, match="source 'kept' is gone"):
            open_cuts(build("held"), meta)
        assert StreamMeta(meta).streams() == ["p.kept"]
    finally:
        meta.close()


def test_a_stream_that_nobody_reads_keeps_every_column() -> None:
    pipeline = hf.Pipeline("p")
    rows = pipeline.source("in", hf.source.memory(pl.DataFrame({"at": [1, 2], "k": [1, 2]})))
    rows.persist("kept")
    rows.sink("out", hf.sink.collect())
    assert "placed after in (at, k)" in hf.explain(pipeline)
