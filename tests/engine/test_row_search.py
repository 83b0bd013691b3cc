"""Where a row of the output comes from: its epoch, its input by slice and number, and the state of its key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import holdfast as hf
from harness import Cut, CutPace, Stepping, options, platform, run_in
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.fragment_runs import open_cuts
from holdfast.errors import DeclarationError, UnknownStateError, WrongTypeError
from holdfast.meta import MetaStore
from stateful import EVENTS, KINDS
from stored import run_stored

CUT = Cut(tasks=2, partitions=3)
COLUMNS = EVENTS.columns


def input_frames(pipeline: hf.Pipeline) -> list[pl.DataFrame]:
    source: Any = pipeline.nodes["in"].source  # type: ignore[attr-defined]
    return list(source.items)


def epochs_of(window: dict[str, Any]) -> set[int]:
    """The epochs that have rows of a window."""
    numbered = EVENTS.with_row_index("i").filter(
        pl.col("k") == window["k"],
        pl.col("ts").is_between(window["window_start"], window["window_end"], closed="left"),
    )
    return set(numbered["i"] // 100 + 1)


def check_places(found: hf.RowOrigin, pipeline: hf.Pipeline) -> None:
    """Each input row is the one at its place: the row of that number in that slice of that epoch."""
    frames, slices = input_frames(pipeline), found.slices.rows_by_key(["epoch", "slice"], named=True, unique=True)
    for row in found.inputs["in"].iter_rows(named=True):
        where = json.loads(slices[row["epoch"], row["slice"]]["where"])
        expected = frames[where["item"]].row(where["start"] + row["row"], named=True)
        assert {name: row[name] for name in COLUMNS} == expected


def test_a_window_is_followed_to_its_rows_in_all_epochs(tmp_path: Path) -> None:
    rows = run_in(tmp_path, KINDS["sliding"](), CUT).sinks["out"]
    one = next(row for row in rows.iter_rows(named=True) if row["k"] is not None and len(epochs_of(row)) > 1)
    found = hf.why(KINDS["sliding"](), "out", {"k": one["k"], "window_start": one["window_start"]}, store=tmp_path)
    assert found.rows.rows(named=True) == [one]
    expected = EVENTS.filter(
        pl.col("k") == one["k"], pl.col("ts").is_between(one["window_start"], one["window_end"], closed="left")
    )
    assert_frame_equal(found.inputs["in"].select(COLUMNS), expected, check_row_order=False)
    assert expected.height == one["n"]
    assert set(found.inputs["in"]["epoch"]) == epochs_of(one)
    check_places(found, KINDS["sliding"]())
    [state] = found.state.values()
    assert state["n.n"].sum() == found.inputs["in"].filter(pl.col("epoch") < found.epoch).height
    assert found.earlier == {}
    assert f"epoch {found.epoch} was run again and emits these rows: that is exact" in found.notes


def test_the_epoch_is_the_one_that_put_the_row_out(tmp_path: Path) -> None:
    stepping = Stepping(tmp_path, KINDS["sliding"](), CUT)
    put_out: dict[int, pl.DataFrame] = {}
    before = 0
    with stepping.run.seated():
        while stepping.epoch():
            rows = stepping.outcome.sinks["out"]
            put_out[len(put_out) + 1], before = rows[before:], rows.height
    for epoch in (2, 5):
        one = put_out[epoch].row(0, named=True)
        key = {"k": one["k"], "window_start": one["window_start"]}
        assert hf.why(KINDS["sliding"](), "out", key, store=tmp_path).epoch == epoch


def test_a_process_is_followed_by_key_as_far_as_it_had_state(tmp_path: Path) -> None:
    run_stored(KINDS["process"](), tmp_path, CUT)
    found = hf.why(KINDS["process"](), "out", "k = 7 and total > 0", store=tmp_path, epoch=5)
    assert found.epoch == 5
    whole = EVENTS[:500].filter(pl.col("k") == 7)
    assert_frame_equal(found.inputs["in"].select(COLUMNS), whole, check_row_order=False)
    check_places(found, KINDS["process"]())
    assert any("only the operator knows" in note for note in found.notes)


def test_what_came_before_the_retained_epochs_is_shown_as_state(tmp_path: Path) -> None:
    for epoch in range(1, 7):
        chosen = options(tmp_path, CUT, retain=2, max_epochs=epoch)
        run = FragmentRun(
            KINDS["process"](), platform(CUT, lambda loop: None), chosen, pace=CutPace(CUT), clock=lambda: 0.0
        )
        run.run()
    found = hf.why(KINDS["process"](), "out", pl.col("k") == 7, store=tmp_path)
    assert (found.first, found.epoch) == (5, 6)
    [earlier] = found.earlier.values()
    assert earlier["epoch"].to_list() == [5]
    assert earlier.drop("epoch").rows() == hf.state(tmp_path, "kinds", "op", epoch=4, key={"k": 7}).rows()
    expected = EVENTS[400:].filter(pl.col("k") == 7)
    assert_frame_equal(found.inputs["in"].select(COLUMNS), expected, check_row_order=False)
    assert any("what came before epoch 5 is not listed" in note for note in found.notes)
    first = hf.why(KINDS["process"](), "out", pl.col("k") == 7, store=tmp_path, epoch=5)
    assert_frame_equal(first.earlier["op"], earlier)
    assert_frame_equal(first.state["op"], earlier)
    with pytest.raises(UnknownStateError, match="no such row in the output of epoch 5 to 6") as error:
        hf.why(KINDS["process"](), "out", {"k": 4711}, store=tmp_path)
    assert "--retain" in error.value.cure


def test_a_join_is_followed_to_both_sides(tmp_path: Path) -> None:
    rows = run_in(tmp_path, KINDS["join"](), CUT).sinks["out"]
    one = rows.row(rows.height // 2, named=True)
    names = ["ts", "k", "ts_right", "window_start"]
    found = hf.why(KINDS["join"](), "out", {name: one[name] for name in names}, store=tmp_path)
    times = found.inputs["in"]["ts"].to_list()
    assert one["ts"] in times
    assert one["ts_right"] in times
    assert set(found.inputs["in"]["k"]) == {one["k"]}
    check_places(found, KINDS["join"]())


def two_stages() -> hf.Pipeline:
    """Counts by key and window, of which a process keeps the greatest by another key."""

    def greatest(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
        best = pl.concat([state, rows.select("odd", most="n")]).group_by("odd").agg(pl.col("most").max())
        return hf.Step(output=best, upserts=best)

    pipeline = hf.Pipeline("two")
    source = hf.source.memory([EVENTS[at : at + 100] for at in range(0, 600, 100)], epochs=True)
    rows = pipeline.source("in", source, event_time="ts", time_unit="s", lateness="3s")
    counts = rows.key_by("k").window(hf.window.tumbling("50s")).agg(n=hf.count()).named("counts")
    odd = counts.filter(pl.col("n") > 1).with_columns(odd=pl.col("k") % 2)
    process = odd.key_by("odd").process(
        greatest, state={"most": pl.Int64}, output={"odd": pl.Int64, "most": pl.Int64}, keep_forever=True, name="most"
    )
    process.sink("out", hf.sink.collect())
    return pipeline


def test_results_on_the_way_are_followed_to_the_source(tmp_path: Path) -> None:
    run_stored(two_stages(), tmp_path, CUT, epochs=4)
    found = hf.why(two_stages(), "out", {"odd": 1}, store=tmp_path)
    between = found.between["counts"]
    assert set(between["k"] % 2) == {1}
    assert between["epoch"].n_unique() > 1
    assert (between["n"] > 1).all()
    # Each count on the way stands for as many rows of the input.
    inputs = found.inputs["in"].with_columns(window_start=pl.col("ts") // 50 * 50)
    counted = inputs.group_by("k", "window_start").agg(n=pl.len().cast(pl.Int64))
    for one in between.iter_rows(named=True):
        window = {"k": one["k"], "window_start": one["window_start"]}
        [row] = counted.filter(**window).rows(named=True)
        assert row["n"] == one["n"]
    check_places(found, two_stages())


def uneven() -> hf.Pipeline:
    """A function that repeats some rows and leaves out others."""

    def repeated(rows: pl.DataFrame) -> pl.DataFrame:
        return rows.select(pl.all().repeat_by((pl.col("v") % 3).cast(pl.UInt32))).explode(pl.all())

    pipeline = hf.Pipeline("uneven")
    many = pl.concat([EVENTS.with_columns(pl.col("v") + at) for at in range(2)])
    rows = pipeline.source("in", hf.source.memory([many], epochs=True))
    rows.map_batches(repeated, schema=EVENTS.schema).filter(pl.col("s") == "s1").select("k", "v").sink(
        "out", hf.sink.collect()
    )
    return pipeline


def test_rows_are_followed_through_functions_that_change_their_number(tmp_path: Path) -> None:
    run_stored(uneven(), tmp_path)
    found = hf.why(uneven(), "out", "k = 5 and v > 9", store=tmp_path)
    [frame] = input_frames(uneven())
    expected = frame.filter(pl.col("k") == 5, pl.col("v") > 9, pl.col("s") == "s1", pl.col("v") % 3 > 0)
    assert expected.height > 2
    assert_frame_equal(found.inputs["in"].select(COLUMNS), expected)
    check_places(found, uneven())
    assert found.state == {}


def late_rows() -> hf.Pipeline:
    pipeline = hf.Pipeline("late")
    times = [0, 10, 100, 5, 110, 7]
    events = pl.DataFrame({"ts": times, "k": [1, 2, 1, 2, 1, 2], "v": [1.0] * 6, "s": list("abcdef")})
    rows = pipeline.source("in", hf.source.memory([events], epochs=True), event_time="ts", time_unit="s")
    counts = rows.key_by("k").window(hf.window.tumbling("50s")).agg(n=hf.count()).named("counts")
    counts.sink("out", hf.sink.collect())
    counts.late.sink("late", hf.sink.collect())
    return pipeline


def test_a_late_row_is_found_in_the_input_and_told_of_at_its_window(tmp_path: Path) -> None:
    run_stored(late_rows(), tmp_path)
    found = hf.why(late_rows(), "late", "ts = 7", store=tmp_path)
    assert found.inputs["in"].select("slice", "row", *COLUMNS).rows() == [(0, 5, 7, 2, 1.0, "f")]
    window = hf.why(late_rows(), "out", "k = 2", store=tmp_path)
    assert window.rows["n"].to_list() == [1]
    assert "2 rows came too late in these epochs and may be among its input" in window.notes


def test_files_are_named_with_their_ranges(tmp_path: Path) -> None:
    lines = [json.dumps({"k": i % 3, "v": i}) + "\n" for i in range(30)]
    (tmp_path / "in").mkdir()
    for name, some in (("a", lines[:20]), ("b", lines[20:])):
        (tmp_path / "in" / f"{name}.ndjson").write_text("".join(some))

    def build() -> hf.Pipeline:
        pipeline = hf.Pipeline("files")
        source = hf.source.files(tmp_path / "in", format="ndjson", schema={"k": pl.Int64, "v": pl.Int64})
        pipeline.source("in", source).filter(pl.col("k") == 1).select("v").sink("out", hf.sink.collect())
        return pipeline

    run_stored(build(), tmp_path / "store", Cut(rows=12, tasks=2))
    found = hf.why(build(), "out", {"v": 22}, store=tmp_path / "store")
    [row] = found.inputs["in"].rows(named=True)
    assert row["place"] == str(tmp_path / "in" / "b.ndjson")
    assert row["k"] == 1, "columns that the pipeline drops are shown, too"
    [where] = found.slices.filter(pl.col("slice") == row["slice"])["where"]
    parts = json.loads(where)["parts"]
    read = "".join((tmp_path / "in" / p["name"]).read_text()[p["start"] : p["stop"]] for p in parts)
    assert json.loads(read.splitlines()[row["row"]]) == {"k": 1, "v": 22}


def test_a_result_without_its_key_is_followed_no_further_and_says_so(tmp_path: Path) -> None:
    def ones(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
        return hf.Step(output=rows.select(one=pl.col("v")))

    pipeline = hf.Pipeline("p")
    keyed = pipeline.source("in", hf.source.memory(EVENTS)).key_by("k")
    process = keyed.process(ones, state={"n": pl.Int64}, output={"one": pl.Float64}, keep_forever=True, name="op")
    process.sink("out", hf.sink.collect())
    run_stored(pipeline, tmp_path)
    found = hf.why(pipeline, "out", {"one": 3.0}, store=tmp_path)
    assert found.inputs == {}
    assert any("do not have its key (k)" in note for note in found.notes)
    assert found.slices.height


def test_the_fragment_of_the_sink_is_found(tmp_path: Path) -> None:
    def build() -> hf.Pipeline:
        pipeline = hf.Pipeline("p")
        rows = pipeline.source("in", hf.source.memory([EVENTS[:300], EVENTS[300:]], epochs=True))
        kept = rows.persist("kept", push_up=False)
        rows.filter(pl.col("k") == 3).sink("some", hf.sink.collect())
        kept.filter(pl.col("k") == 4).sink("others", hf.sink.collect())
        return pipeline

    meta = MetaStore(tmp_path, sync=False)
    for fragment in open_cuts(build(), meta).fragments:
        run_in(tmp_path, fragment.pipeline, CUT)
    meta.close()
    found = hf.why(build(), "some", "v = 5", store=tmp_path)
    assert found.pipeline == "p.kept", "the fragment has the name of its first sink"
    assert found.inputs["in"]["k"].unique().to_list() == [3]


@pytest.mark.parametrize(
    ("sink", "where", "kind", "said"),
    [
        ("nowhere", "k = 1", DeclarationError, "has no sink 'nowhere'"),
        ("out", "j = 1", DeclarationError, "the condition cannot be used"),
        ("out", "k + 1", WrongTypeError, "the condition gives Int64"),
        ("out", "k = = 1", DeclarationError, "the condition cannot be used"),
    ],
)
def test_a_condition_that_makes_no_sense_is_refused(
    sink: str, where: str, kind: type[Exception], said: str, tmp_path: Path
) -> None:
    run_stored(KINDS["process"](), tmp_path, epochs=1)
    with pytest.raises(kind, match=said):
        hf.why(KINDS["process"](), sink, where, store=tmp_path)
