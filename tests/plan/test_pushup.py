"""Where a p-stream cuts its pipeline: chosen by measured bytes, kept with the stream, refused when it cannot hold."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import holdfast as hf
from harness import Cut, plain_rows, run, run_fragments
from holdfast.engine.fragment_runs import kept_placements, open_cuts
from holdfast.errors import PipelineChangedError
from holdfast.meta import MetaStore, StreamMeta
from holdfast.plan import pushup
from holdfast.plan.places import by_rule, cuts_of, places_of
from holdfast.plan.pushup import decide
from holdfast.plan.source_sample import place_cuts
from holdfast.pstream.description import MeasuredPlace, Place, Placement, StreamDescription
from strategies import examples

RANDOM = random.Random(5)
NOISE = [RANDOM.getrandbits(60) for _ in range(20_000)]


def events(share: float = 0.01, keys: int = 4, count: int = 20_000) -> pl.DataFrame:
    """`share` of the rows are wanted; `blob` cannot be compressed and nobody reads it."""
    return pl.DataFrame(
        {
            "ts": range(count),
            "k": [i % keys for i in range(count)],
            "v": [noise % 1_000_003 for noise in NOISE[:count]],
            "wanted": [(i % 1_000) < share * 1_000 for i in range(count)],
            "blob": NOISE[:count],
        }
    )


def declare(frame: pl.DataFrame, **options: object) -> hf.Pipeline:
    """Uncompressed: which encodings are chosen depends on how fast the machine is at the moment."""
    pipeline = hf.Pipeline("p")
    options = {"compress": False, **options}
    rows = pipeline.source("in", hf.source.memory(frame), event_time="ts", time_unit="s").persist("kept", **options)  # type: ignore[arg-type]
    small = rows.filter("wanted").named("filter").with_columns(w=pl.col("v") * 2).named("double")
    small.key_by("k").window(hf.window.tumbling("1000s"), name="window").agg(w=hf.sum("w")).sink(
        "out", hf.sink.collect()
    )
    return pipeline


def placed(pipeline: hf.Pipeline, frame: pl.DataFrame | None = None) -> Placement:
    [cut] = cuts_of(pipeline.nodes)
    return decide(pipeline.nodes, cut, {} if frame is None else {"in": frame})


@pytest.fixture
def meta(tmp_path: Path) -> Iterator[MetaStore]:
    store = MetaStore(tmp_path, sync=False)
    yield store
    store.close()


# the choice


def test_the_places_go_from_the_declared_one_up_to_the_partials() -> None:
    pipeline = declare(events())
    [cut] = cuts_of(pipeline.nodes)
    assert [(p.after, p.columns, p.window) for p in places_of(pipeline.nodes, cut)] == [
        ("in", ("ts", "k", "v", "wanted", "blob"), None),
        ("in", ("ts", "k", "v", "wanted"), None),
        ("filter", ("ts", "k", "v"), None),
        ("double", ("ts", "k", "w"), None),
        ("double", ("ts", "k", "w"), "window"),
    ]


@pytest.mark.parametrize(
    ("share", "keys", "expected"),
    [
        (1.0, 4, ("double", "window")),  # few groups: partials are the least, even where the filter does nothing
        (0.01, 20_000, ("filter", None)),  # as many groups as rows: partials save nothing, the filter does
    ],
)
def test_the_choice_follows_the_data(share: float, keys: int, expected: tuple[str, str | None]) -> None:
    frame = events(share, keys)
    found = placed(declare(frame), frame)
    assert (found.place.after, found.place.window) == expected
    assert found.sample == frame.height
    assert "fewest bytes of 5 places" in found.reason


def test_what_was_measured_is_what_the_stream_then_writes(meta: MetaStore, tmp_path: Path) -> None:
    frame = events(0.1)
    pipeline = declare(frame)
    [cut] = cuts_of(pipeline.nodes)
    measured = {measured.place: measured for measured in placed(pipeline, frame).measured}
    for place in places_of(pipeline.nodes, cut):
        outcomes = run_fragments(pipeline, Cut(1_000_000, 1, 1), placements={"kept": Placement(place, "for the test")})
        [report] = outcomes["p.kept"].reports
        written = report.streamed_bytes
        told = measured[place].bytes_per_row * frame.height
        # The file of a p-unit has a head of a few kilobytes besides its columns.
        assert told * 0.8 <= written <= told * 1.2 + 8_000


@given(sizes=st.lists(st.floats(0.01, 100.0), min_size=1, max_size=6))
@example(sizes=[100.0, 96.0])
@example(sizes=[100.0, 94.0, 93.0])
@examples(60)
def test_the_fewest_bytes_win_and_near_ties_go_to_the_declared_place(sizes: list[float]) -> None:
    """The choice among places with given sizes: nothing is more than 5 % smaller than what is chosen, and what comes
    before it is larger."""
    frame = events(count=10)
    pipeline = declare(frame)
    [cut] = cuts_of(pipeline.nodes)
    places = [Place(f"op{i}", ("ts",)) for i in range(len(sizes))]
    wanted = dict(zip(places, sizes, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pushup, "places_of", lambda nodes, cut: places)
        patch.setattr(
            pushup, "_measure", lambda nodes, cut, place, *rest: MeasuredPlace(place, wanted[place], wanted[place], 1)
        )
        found = decide(pipeline.nodes, cut, {"in": frame})
    chosen = wanted[found.place]
    assert chosen * 0.95 <= min(sizes)
    assert all(size > chosen for size in sizes[: places.index(found.place)])
    assert found.place == places[0] or chosen < 0.95 * sizes[0], "it does not move for next to nothing"
    assert [measured.place for measured in found.measured] == places


def test_without_a_sample_rules_decide() -> None:
    pipeline = declare(events())
    found = placed(pipeline)
    assert (found.place.after, found.place.window) == ("filter", None)
    assert "by rule" in found.reason


def test_rules_stop_at_what_may_make_rows_larger() -> None:
    pipeline = hf.Pipeline("p")
    rows = pipeline.source("in", hf.source.memory(events(count=10)), event_time="ts", time_unit="s").persist("kept")
    rows.with_columns(w=pl.col("v") + 1).filter("wanted").sink("out", hf.sink.collect())
    [cut] = cuts_of(pipeline.nodes)
    places = places_of(pipeline.nodes, cut)
    assert [p.after for p in places] == ["in", "with_columns", "filter"]
    assert by_rule(pipeline.nodes, places).after == "in"


def test_a_placement_survives_its_way_through_the_store() -> None:
    frame = events()
    found = placed(declare(frame), frame)
    description = StreamDescription({"k": "Int64"}, "ts", "in", found)
    assert StreamDescription.decode(description.encode()) == description


# two cuts


def test_columns_that_the_second_of_two_cuts_keeps_are_kept_by_the_first() -> None:
    """The first is written plainly, so that a column that nobody reads is worth leaving out; in the second, which is
    compressed, it costs nothing."""
    frame = events().with_columns(blob=pl.lit(0))

    def build(persisted: bool) -> hf.Pipeline:
        pipeline = hf.Pipeline("p")
        rows = pipeline.source("in", hf.source.memory(frame), event_time="ts", time_unit="s")
        if persisted:
            rows = rows.persist("raw", compress=False)
        rows = rows.filter(pl.col("v") > 5_000)
        if persisted:
            rows = rows.persist("kept")
        rows.key_by("k").window(hf.window.tumbling("1000s")).agg(v=hf.sum("v")).sink("out", hf.sink.collect())
        return pipeline

    seen = run_fragments(build(True), Cut(5_000, 2, 2), Cut(700, 1, 2))
    assert sorted(seen["p.out"].rows()) == sorted(run(build(False)).rows())


def test_a_cut_right_behind_a_cut() -> None:
    pipeline = hf.Pipeline("p")
    rows = pipeline.source("in", hf.source.memory(events(count=500)), event_time="ts", time_unit="s")
    rows.persist("a").persist("b").select("ts", "v").sink("out", hf.sink.collect())
    outcomes = run_fragments(pipeline, Cut(100, 2, 1), Cut(70, 1, 1))
    assert set(outcomes) == {"p.a", "p.b", "p.out"}
    assert plain_rows(outcomes["p.out"].sinks["out"]) == events(count=500).select("ts", "v").rows()


# later runs


def test_the_placement_stays_when_the_data_would_now_suggest_another(meta: MetaStore) -> None:
    first, second = events(1.0, 4), events(0.01, 20_000)
    assert placed(declare(first), first).place != placed(declare(second), second).place
    kept = open_cuts(declare(first), meta).streams[0].placement
    assert kept.place.window == "window"
    again = open_cuts(declare(second), meta).streams[0].placement
    assert again == kept, "with its reason and its figures"
    assert StreamDescription.decode(StreamMeta(meta).state("p.kept").description).placement == kept


def test_looking_decides_nothing(meta: MetaStore) -> None:
    """What `explain` does: the places that would be chosen now, without a word to the store."""
    seen = declare(events(1.0, 4))
    assert place_cuts(seen, kept_placements(seen, meta))["kept"].place.window == "window"
    assert StreamMeta(meta).streams() == []
    frame = events(0.01, 20_000)
    assert open_cuts(declare(frame), meta).streams[0].placement.place == placed(declare(frame), frame).place


def changed(frame: pl.DataFrame, how: str) -> hf.Pipeline:
    pipeline = hf.Pipeline("p")
    if how == "drops a column of the source":
        frame = frame.drop("v").with_columns(u=pl.col("k"))
    rows = pipeline.source("in", hf.source.memory(frame), event_time="ts", time_unit="s")
    if how == "other operator before":
        rows = rows.with_columns(v=pl.col("v") + 1).named("inc")
    kept = rows.persist("kept", push_up=how != "no push-up", compress=False)
    value = "u" if how == "drops a column of the source" else "v"
    name = "other" if how == "renames the filter" else "filter"
    if how != "drops the filter":
        kept = kept.filter("wanted").named(name)
    small = kept.with_columns(w=pl.col(value) * 2).named("double")
    if how == "reads a column more":
        small = small.with_columns(w=pl.col("w") + pl.col("blob") % 2).named("more")
    if how == "another type":
        small = small.with_columns(w=pl.col("w").cast(pl.Float64)).named("double2")
    small.key_by("k").window(hf.window.tumbling("1000s"), name="window").agg(w=hf.sum("w")).sink(
        "out", hf.sink.collect()
    )
    return pipeline


@pytest.mark.parametrize(
    "how",
    ["drops the filter", "renames the filter", "reads a column more", "no push-up", "drops a column of the source"],
)
def test_a_change_that_does_not_fit_the_placement_is_refused_by_name(meta: MetaStore, how: str) -> None:
    frame = events(0.01, 20_000)
    assert open_cuts(changed(frame, "nothing"), meta).streams[0].placement.place.after == "filter"
    before = StreamMeta(meta).state("p.kept")
    with pytest.raises(PipelineChangedError, match="operator 'kept': pipeline 'p' has changed") as caught:
        open_cuts(changed(frame, how), meta)
    assert caught.value.operator == "kept"
    assert caught.value.cure
    assert StreamMeta(meta).state("p.kept") == before


def test_a_change_of_what_the_stream_holds_is_refused(meta: MetaStore) -> None:
    """The writer must not put rows of another type behind those that are there."""
    frame = events(0.01, 20_000)
    open_cuts(changed(frame, "nothing"), meta)
    other = changed(frame.with_columns(pl.col("v").cast(pl.Int32)), "nothing")
    with pytest.raises(PipelineChangedError, match=r"operator 'kept': .*'v': 'Int64'.* now it is .*'v': 'Int32'"):
        open_cuts(other, meta)


def test_a_change_of_the_aggregates_is_refused_where_the_stream_has_their_partials(meta: MetaStore) -> None:
    def pipeline(**more: hf.Aggregate) -> hf.Pipeline:
        made = hf.Pipeline("p")
        rows = made.source("in", hf.source.memory(events()), event_time="ts", time_unit="s").persist(
            "kept", compress=False
        )
        rows.key_by("k").window(hf.window.tumbling("1000s"), name="w").agg(v=hf.sum("v"), **more).sink(
            "out", hf.sink.collect()
        )
        return made

    assert open_cuts(pipeline(), meta).streams[0].placement.place.window == "w"
    with pytest.raises(PipelineChangedError, match=r"operator 'kept': .* the schema of p-stream 'kept' was"):
        open_cuts(pipeline(n=hf.count()), meta)


def test_a_column_that_the_stream_keeps_and_the_source_has_no_more_is_named(meta: MetaStore) -> None:
    open_cuts(declare(events(), push_up=False), meta)
    with pytest.raises(PipelineChangedError, match=r"operator 'kept': .*'in' no longer has the column 'blob'"):
        open_cuts(declare(events().drop("blob"), push_up=False), meta)


def test_a_change_behind_the_cut_is_welcome(meta: MetaStore) -> None:
    frame = events(0.01, 20_000)
    kept = open_cuts(changed(frame, "nothing"), meta).streams[0].placement
    assert open_cuts(changed(frame, "another type"), meta).streams[0].placement == kept


def test_two_processes_that_start_at_once_agree(meta: MetaStore, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = events(1.0, 4), events(0.01, 20_000)
    declared = StreamMeta.declare

    def overtaken(own: StreamMeta, stream: str, description: str) -> object:
        monkeypatch.setattr(StreamMeta, "declare", declared)
        open_cuts(declare(first), meta)
        return declared(own, stream, description)

    monkeypatch.setattr(StreamMeta, "declare", overtaken)
    made = open_cuts(declare(second), meta)
    assert made.streams[0].placement.place.window == "window"
    assert made.fragments[1].pipeline.nodes["kept"].schema.names()[:2] == ["k", "__hf_pane"]
