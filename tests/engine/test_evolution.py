"""A pipeline whose code changed goes on from its state where that fits, and says what differs where it does not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from pyspark.sql import SparkSession

import holdfast as hf
from harness import Cut
from holdfast.engine.fragment_runs import open_cuts
from holdfast.epoch.record_change import record_of
from holdfast.errors import DeclarationError, HoldfastError, PipelineChangedError, UnknownColumnError
from holdfast.meta import Commands, MetaStore
from holdfast.meta.sealed import SealedPlace
from holdfast.meta.sql_tables import pipelines
from holdfast.plan.scale_command import ScaleCommand
from stored import run_stored

FRAMES = [
    pl.DataFrame({"ts": range(at, at + 50), "k": [i * 7 % 11 for i in range(50)], "v": range(50)})
    for at in range(0, 300, 50)
]
CUT = Cut(rows=50, partitions=2)
TWO = {"n": pl.Int64, "m": pl.Int64}


def count(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
    """Counts rows in `n`, and in whatever other columns there are."""
    names = [name for name in state.columns if name != "k"]
    fresh = rows.select("k", *(pl.lit(1).cast(state.schema[name]).alias(name) for name in names))
    counts = pl.concat([state, fresh]).group_by("k").agg(pl.col(names).sum())
    return hf.Step(output=counts.select("k", pl.col("n").cast(pl.Int64)), upserts=counts)


def build(
    state: Mapping[str, Any] | None = None,
    *,
    name: str = "op",
    was: str | None = None,
    source: str = "in",
    source_was: str | None = None,
    windows: str = "windows",
    windows_was: str | None = None,
    partitions: int | None = None,
    size: str = "100s",
    key: str = "k",
    extra: bool = False,
    aggregate: hf.Aggregate | None = None,
    **options: Any,
) -> hf.Pipeline:
    """A keyed process and a window over the same source."""
    pipeline = hf.Pipeline("p")
    rows = pipeline.source(
        source, hf.source.memory(FRAMES, epochs=True), event_time="ts", time_unit="s", was=source_was
    )
    options = {"keep_forever": True, **options} if "ttl" not in options else options
    rows.key_by("k").process(
        count, state={"n": pl.Int64} if state is None else state, output={"k": pl.Int64, "n": pl.Int64}, name=name,
        was=was, partitions=partitions, **options,
    ).sink("out", hf.sink.collect())  # fmt: skip
    aggregates = {"n": hf.count() if aggregate is None else aggregate}
    keyed = rows.with_columns(j=pl.col("k") % 3).key_by(key)
    keyed.window(hf.window.tumbling(size), name=windows, was=windows_was).agg(**aggregates).sink("w", hf.sink.collect())
    if extra:
        rows.key_by("k").window(hf.window.tumbling(10), name="extra").agg(n=hf.count()).sink("e", hf.sink.collect())
    return pipeline


def same_as_unchanged(store: Path, first: dict[str, pl.DataFrame], rest: dict[str, pl.DataFrame]) -> None:
    whole = run_stored(build(), store.with_name(f"{store.name}-whole"), CUT)
    for sink in ("out", "w"):
        assert_frame_equal(pl.concat([first[sink], rest[sink]]), whole[sink], check_row_order=False)


def test_a_column_is_added_with_a_default(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = run_stored(build(), store, CUT, epochs=3)
    wider = {"seen": pl.Int64, "n": pl.Int64}
    defaults = {"seen": 100}
    rest = run_stored(build(wider, defaults=defaults), store, CUT, epochs=1)
    state = hf.state(store, "p", "op")
    assert state.filter(pl.col("seen") < 100).height == 0
    assert state["seen"].sum() == 100 * 11 + 50
    assert state["n"].sum() == 200
    old = hf.state(store, "p", "op", epoch=2)
    assert old["seen"].unique().to_list() == [100]
    more = run_stored(build(wider, defaults=defaults), store, CUT)
    same_as_unchanged(store, first, {name: pl.concat([rest[name], more[name]]) for name in rest})


def test_state_of_before_a_column_was_added_is_exported_and_imported(tmp_path: Path) -> None:
    first = run_stored(build(), tmp_path / "s", CUT, epochs=2)
    hf.export_state(tmp_path / "s", "p", "op", tmp_path / "f.parquet")
    changed = {"state": {"n": pl.Int64, "seen": pl.Int32}, "defaults": {"seen": 7}}
    run_stored(build(**changed), tmp_path / "s", CUT, die="started")
    hf.import_state(tmp_path / "s", "p", "op", tmp_path / "f.parquet")
    assert hf.state(tmp_path / "s", "p", "op")["seen"].unique().to_list() == [7]
    same_as_unchanged(tmp_path / "s", first, run_stored(build(**changed), tmp_path / "s", CUT))


def test_a_column_becomes_wider(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = run_stored(build({"n": pl.Int16}), store, CUT, epochs=3)
    rest = run_stored(build({"n": pl.Int64}), store, CUT)
    assert hf.state(store, "p", "op", epoch=2).schema["n"] == pl.Int64
    same_as_unchanged(store, first, rest)


def test_columns_in_another_order_are_the_same_state(tmp_path: Path) -> None:
    first = run_stored(build({"n": pl.Int64, "m": pl.Int64}), tmp_path / "s", CUT, epochs=3)
    rest = run_stored(build({"m": pl.Int64, "n": pl.Int64}), tmp_path / "s", CUT)
    same_as_unchanged(tmp_path / "s", first, rest)


@pytest.mark.parametrize("die", [None, "started", "planned"])
def test_operators_and_sources_are_renamed(die: str | None, tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = run_stored(build(), store, CUT, epochs=2)
    run_stored(build(), store, CUT, die="planned")
    new = {"name": "counts", "source": "events", "windows": "hours"}
    old = {"was": "op", "source_was": "in", "windows_was": "windows"}
    before = hf.state(store, "p", "op", epoch=1)
    if die is not None:
        run_stored(build(**new, **old), store, CUT, die=die)
    rest = run_stored(build(**new, **old), store, CUT, epochs=2)
    assert_frame_equal(hf.state(store, "p", "counts", epoch=1), before)
    assert hf.state_diff(store, "p", "counts", 1, 3).height
    with pytest.raises(HoldfastError, match="no stateful operator 'op'"):
        hf.state(store, "p", "op")
    more = run_stored(build(**new), store, CUT, epochs=1)
    last = run_stored(build(**new, **old), store, CUT)
    same_as_unchanged(store, first, {name: pl.concat([rest[name], more[name], last[name]]) for name in rest})


@pytest.mark.parametrize("change", [
    {"name": "counts", "was": "op"},
    {"source": "events", "source_was": "in"},
    {"state": {"n": pl.Int64, "seen": pl.Int64}, "defaults": {"seen": 0}},
    {"partitions": 5},
], ids=["operator", "source", "column", "partitions"])  # fmt: skip
@pytest.mark.parametrize("die", ["started", "planned"])
def test_old_code_may_start_again_until_the_new_code_has_committed(
    change: dict[str, Any], die: str, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    first = run_stored(build(), store, CUT, epochs=2)
    run_stored(build(**change), store, CUT, die=die)
    run_stored(build(**change), store, CUT, die=die)
    middle = run_stored(build(), store, CUT, epochs=1)
    rest = run_stored(build(**change), store, CUT)
    same_as_unchanged(store, first, {name: pl.concat([middle[name], rest[name]]) for name in rest})
    if "partitions" not in change:
        with pytest.raises(PipelineChangedError):
            run_stored(build(), store, CUT)


def test_a_change_is_undone_over_several_tries(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = run_stored(build(), store, CUT, epochs=2)
    run_stored(build(name="a", was="op"), store, CUT, die="planned")
    run_stored(build(name="b", was="a"), store, CUT, die="started")
    same_as_unchanged(store, first, run_stored(build(), store, CUT))


@pytest.mark.parametrize(
    ("before", "now", "operator", "said", "cure"),
    [
        ({}, {"state": TWO}, "op", "state column 'm' of 'op' is new, but has no default", "defaults={'m'"),
        ({"state": TWO}, {}, "op", "state column 'm' of 'op' is gone", "declare it as it was"),
        ({}, {"state": {"n": pl.Int32}}, "op", "state column 'n' of 'op' was Int64, now it is Int32", "undo"),
        ({}, {"state": {"n": pl.Float64}}, "op", "was Int64, now it is Float64", "undo"),
        (
            {"state": TWO, "defaults": {"m": 1}}, {"state": TWO, "defaults": {"m": 2}},
            "op", "the default of 'm' of 'op' was 1, now it is 2", "as before",
        ),
        (
            {"state": TWO, "defaults": {"m": 1}}, {"state": TWO},
            "op", "the default of 'm' of 'op' was 1, and is gone", "as before",
        ),
        ({}, {"ttl": "10s"}, "op", "time-to-live of 'op' was False, now it is True", "undo"),
        ({}, {"timers": True}, "op", "timers of 'op' was False, now it is True", "undo"),
        ({}, {"name": "other"}, "op", "operator 'op' is gone", "was='op'"),
        ({}, {"extra": True}, "extra", "operator 'extra' is new", "was="),
        ({}, {"source": "other"}, "in", "source 'in' is gone", "was='in'"),
        ({}, {"name": "b", "was": "a"}, "b", "'b' was 'a', but the store knows neither name", "it knows: op"),
        ({"extra": True}, {"name": "extra", "was": "op"}, "extra", "but the store knows both names", "leave"),
        ({}, {"size": "50s"}, "windows", "window of 'windows' was tumbling 100s, now it is tumbling 50s", "undo"),
        ({}, {"key": "j"}, "windows", "keys of 'windows' was {'k': 'Int64'}, now it is {'j': 'Int64'}", "undo"),
        ({}, {"aggregate": hf.sum("v")}, "windows", "state column 'n.n' of 'windows' is gone", "undo"),
    ],
)  # fmt: skip
def test_a_change_that_does_not_fit_is_refused_and_named(
    before: dict[str, Any], now: dict[str, Any], operator: str, said: str, cure: str, tmp_path: Path
) -> None:
    first = run_stored(build(**before), tmp_path / "s", CUT, epochs=2)
    meta = MetaStore(tmp_path / "s")
    kept = meta.shape("p")
    for refused in (lambda: run_stored(build(**now), tmp_path / "s", CUT), lambda: open_cuts(build(**now), meta)):
        with pytest.raises(PipelineChangedError) as caught:
            refused()
        assert said in caught.value.problem
        assert cure in caught.value.cure
        assert caught.value.operator == operator
    assert meta.shape("p") == kept
    meta.close()
    rest = run_stored(build(**before), tmp_path / "s", CUT)
    whole = run_stored(build(**before), tmp_path / "w", CUT)
    assert_frame_equal(pl.concat([first["out"], rest["out"]]), whole["out"], check_row_order=False)


def test_a_join_whose_rows_change_is_refused(tmp_path: Path) -> None:
    def joined(*columns: str) -> hf.Pipeline:
        pipeline = hf.Pipeline("p")
        rows = pipeline.source("in", hf.source.memory(FRAMES, epochs=True), event_time="ts", time_unit="s")
        rows.join(rows.select(*columns), on="k", window=hf.window.tumbling("50s"), name="op").sink(
            "out", hf.sink.collect()
        )
        return pipeline

    run_stored(joined("ts", "k", "v"), tmp_path, CUT, epochs=1)
    with pytest.raises(PipelineChangedError, match="right state column 'v' of 'op' is gone"):
        run_stored(joined("ts", "k"), tmp_path, CUT)


def test_declarations_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(DeclarationError, match="an operator of that name still exists"):
        build(name="other", was="windows").check()
    with pytest.raises(DeclarationError, match="was='old', and so was 'op'"):
        build(was="old", windows_was="old").check()
    with pytest.raises(DeclarationError, match="is its current name"):
        build(was="op")
    with pytest.raises(UnknownColumnError, match="a default is given for 'm', which is not a state column"):
        build(defaults={"m": 1})
    with pytest.raises(DeclarationError, match="the default 'x' of state column 'n' does not fit Int64"):
        build(defaults={"n": "x"})
    pushed = hf.source.push(schema={"a": pl.Int64}, http="127.0.0.1:0")
    with pytest.raises(DeclarationError, match="cannot be renamed: its clients"):
        hf.Pipeline("p").source("in", pushed, was="other")


def partitions_after(store: Path, operator: str = "op") -> list[int]:
    meta = MetaStore(store)
    commits = list(reversed(meta.commits("p")))
    meta.close()
    return [len(record_of(commit).state[operator]) for commit in commits]


@pytest.mark.parametrize("die", [None, "started", "planned"])
def test_another_declared_number_of_partitions_holds_from_the_first_new_plan(die: str | None, tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = run_stored(build(), store, CUT, epochs=1)
    run_stored(build(), store, CUT, die="planned")
    if die is not None:
        run_stored(build(partitions=5), store, CUT, die=die)
    rest = run_stored(build(partitions=5), store, CUT, epochs=3)
    assert partitions_after(store) == [2, 2, 5, 5]
    more = run_stored(build(partitions=5), store, CUT)
    assert partitions_after(store)[-1] == 5
    same_as_unchanged(store, first, {name: pl.concat([rest[name], more[name]]) for name in rest})


def test_the_number_of_partitions_of_the_run_counts_where_none_is_declared(tmp_path: Path) -> None:
    run_stored(build(), tmp_path, CUT, epochs=1)
    run_stored(build(), tmp_path, Cut(rows=50, partitions=3), epochs=1)
    run_stored(build(partitions=4), tmp_path, Cut(rows=50, partitions=3), epochs=1)
    run_stored(build(partitions=4), tmp_path, Cut(rows=50, partitions=1), epochs=1)
    assert partitions_after(tmp_path) == [2, 3, 4, 4]


def test_what_was_scaled_stays_until_the_declaration_changes(tmp_path: Path) -> None:
    run_stored(build(), tmp_path, CUT, epochs=1)
    meta = MetaStore(tmp_path)
    Commands(meta).ask("p", ScaleCommand("op", 6).encode(), 0.0)
    meta.close()
    run_stored(build(), tmp_path, CUT, epochs=1)
    run_stored(build(), tmp_path, CUT, epochs=1)
    run_stored(build(partitions=3), tmp_path, CUT, epochs=1)
    assert partitions_after(tmp_path) == [2, 6, 6, 3]


def test_a_shape_of_an_older_version_is_taken(tmp_path: Path) -> None:
    first = run_stored(build(), tmp_path / "s", CUT, epochs=2)
    meta = MetaStore(tmp_path / "s")
    shape = json.loads(meta.shape("p") or "{}")
    for operator in shape["operators"].values():
        for part in ("tables", "defaults", "partitions", "time-to-live", "timers"):
            operator.pop(part, None)
    with meta.writing() as connection:
        connection.execute(pipelines.update().values(shape=SealedPlace("shape", "p").sealed(json.dumps(shape))))
    assert hf.state(tmp_path / "s", "p", "op").columns == ["k", "n"]
    hf.export_state(tmp_path / "s", "p", "op", tmp_path / "f.parquet")
    with pytest.raises(HoldfastError, match="older version"):
        hf.import_state(tmp_path / "s", "p", "op", tmp_path / "f.parquet")
    same_as_unchanged(tmp_path / "s", first, run_stored(build(partitions=5), tmp_path / "s", CUT))
    assert partitions_after(tmp_path / "s")[-1] == 2, "nobody knows what was declared before"


def test_a_cut_behind_a_renamed_window_stays_where_it_is(tmp_path: Path) -> None:
    def cut(name: str, was: str | None = None) -> hf.Pipeline:
        pipeline = hf.Pipeline("p")
        many = pl.DataFrame({"ts": [i // 90 + i * i % 7 for i in range(9000)], "k": [i * i % 5 for i in range(9000)]})
        rows = pipeline.source("in", hf.source.memory(many), event_time="ts", time_unit="s").persist("kept")
        rows.key_by("k").window(hf.window.tumbling("100s"), name=name, was=was).agg(n=hf.count()).sink(
            "out", hf.sink.collect()
        )
        return pipeline

    meta = MetaStore(tmp_path)
    [stream] = open_cuts(cut("old"), meta).streams
    assert stream.placement.place.window == "old", "partials are smaller than rows"
    for _ in range(2):
        [stream] = open_cuts(cut("new", was="old"), meta).streams
        assert stream.placement.place.window == "new"
    meta.close()


CHANGED: dict[str, Any] = {
    "name": "counts", "was": "op", "state": {"n": pl.Int64, "seen": pl.Int64}, "defaults": {"seen": 0}, "partitions": 3,
}  # fmt: skip


def victim(store: str) -> None:
    """Runs in a process of its own, and dies by SIGKILL when it is about to commit."""

    def dying(*_: object, **__: object) -> bool:
        os.kill(os.getpid(), signal.SIGKILL)
        return False

    MetaStore.write_commit = dying  # type: ignore[method-assign]
    run_stored(build(**CHANGED), Path(store), CUT)


@pytest.mark.parametrize("then", [{}, CHANGED], ids=["old", "new"])
def test_a_store_is_whole_when_changed_code_is_killed_before_its_first_commit(
    then: dict[str, Any], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    first = run_stored(build(), store, CUT, epochs=2)
    program = f"from test_evolution import victim; victim({str(store)!r})"
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1]), *sys.path])
    died = subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": paths}, check=False)
    assert died.returncode == -signal.SIGKILL
    assert hf.state(store, "p", "counts")["seen"].unique().to_list() == [0]
    same_as_unchanged(store, first, run_stored(build(**then), store, CUT))


@pytest.mark.spark
def test_a_changed_pipeline_goes_on_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    whole = build()
    hf.run(whole, spark=spark, store=tmp_path / "whole")
    store = tmp_path / "store"
    runs = [
        build(),
        build(name="counts", was="op", windows="hours", windows_was="windows", source="events", source_was="in"),
        build({"n": pl.Int64, "seen": pl.Int64}, defaults={"seen": 5}, name="counts", windows="hours", source="events",
              partitions=3),
    ]  # fmt: skip
    for epochs, pipeline in zip((2, 4, None), runs, strict=True):
        hf.run(pipeline, spark=spark, store=store, max_epochs=epochs)
        for operator in ("op", "windows") if epochs == 2 else ("counts", "hours"):
            hf.export_state(store, "p", operator, tmp_path / "f.parquet")
            hf.import_state(store, "p", operator, tmp_path / "f.parquet")
    assert hf.state(store, "p", "counts")["seen"].min() == 5 + FRAMES[4]["k"].value_counts()["count"].min() * 2
    for sink in ("out", "w"):
        got = pl.concat([pipeline.nodes[sink].sink.frame() for pipeline in runs])  # type: ignore[attr-defined]
        assert_frame_equal(got, whole.nodes[sink].sink.frame(), check_row_order=False)  # type: ignore[attr-defined]
    assert partitions_after(store, "counts")[-1] == 3


def test_a_p_stream_behind_an_operator_that_was_renamed_is_refused_with_its_old_name(tmp_path: Path) -> None:
    def build(name: str | None) -> hf.Pipeline:
        pipeline = hf.Pipeline("p")
        kept = pipeline.source("in", hf.source.memory(FRAMES[0]), event_time="ts", time_unit="s").persist("kept")
        mapped = kept.map_batches(lambda rows: rows.select("ts").head(1), schema={"ts": pl.Int64}, name=name)
        mapped.sink("out", hf.sink.collect())
        return pipeline

    meta = MetaStore(tmp_path)
    [stream] = open_cuts(build("map"), meta).streams
    assert stream.placement.place.after == "map"
    with pytest.raises(PipelineChangedError, match=r"was cut after 'map'\n.*\.named\('map'\)"):
        open_cuts(build(None), meta)
    assert open_cuts(build("map"), meta).streams[0].placement == stream.placement
    meta.close()
