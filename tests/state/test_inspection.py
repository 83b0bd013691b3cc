"""State as a table for people: whole, by key, in Spark, and what changed between two epochs."""

from __future__ import annotations

from collections import Counter as Bag
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from pyspark.sql import SparkSession

import holdfast as hf
from harness import Cut
from holdfast.errors import CorruptPUnitError, HoldfastError, UnknownColumnError, UnknownStateError, WrongTypeError
from holdfast.state import inspection as inspect
from stateful import EVENTS, KINDS, lasting_process
from stored import run_stored

CUT = Cut(rows=100, tasks=2, partitions=3)
KEYED = [kind for kind in KINDS if "of all" not in kind]


@pytest.mark.parametrize("kind", KEYED)
def test_the_state_of_keys_is_what_the_whole_state_has_of_them(kind: str, tmp_path: Path) -> None:
    run_stored(KINDS[kind](), tmp_path, CUT, epochs=4)
    whole = hf.state(tmp_path, "kinds", "op")
    names = ["k", "s"] if kind == "sessions" else ["k"]
    keys = whole.select(names).unique(maintain_order=True)
    some = pl.concat([keys[::3], pl.DataFrame([{"k": 999, "s": "none"}]).select(names)])
    expected = whole.join(some, on=names, how="semi", nulls_equal=True)
    assert 0 < expected.height < whole.height
    for given in (some, some.to_dicts()):
        assert_frame_equal(hf.state(tmp_path, "kinds", "op", key=given), expected, check_row_order=False)
    one = keys.row(0, named=True)
    expected = whole.join(keys[:1], on=names, how="semi", nulls_equal=True)
    assert_frame_equal(hf.state(tmp_path, "kinds", "op", key=one), expected, check_row_order=False)


def test_a_key_is_found_without_opening_the_other_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_stored(lasting_process(), tmp_path, Cut(rows=100, partitions=8), epochs=3)
    opened = []
    real = inspect.read_piece

    def counting(*arguments: object) -> pl.DataFrame:
        opened.append(arguments[1])
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(inspect, "read_piece", counting)
    found = hf.state(tmp_path, "kinds", "op", key={"k": 7})
    some = len(opened)
    assert found.height == 1
    hf.state(tmp_path, "kinds", "op")
    assert 0 < some <= 3
    assert len(opened) - some > 3 * some


def test_every_retained_epoch_can_be_read(tmp_path: Path) -> None:
    run_stored(lasting_process(), tmp_path, CUT, epochs=3)
    seen = [hf.state(tmp_path, "kinds", "op", epoch=epoch) for epoch in (1, 2, 3)]
    assert_frame_equal(seen[2], hf.state(tmp_path, "kinds", "op"))
    assert not seen[0].sort("k").equals(seen[1].sort("k"))
    with pytest.raises(UnknownStateError, match="epoch 4 is not retained"):
        hf.state(tmp_path, "kinds", "op", epoch=4)


@pytest.mark.parametrize(
    ("key", "kind", "said"),
    [
        ({"x": 1}, UnknownColumnError, "the key has the columns k, not x"),
        ({"k": 1, "s": "a"}, UnknownColumnError, "the key has the columns k, not k, s"),
        ([{"k": 1}, {}], UnknownColumnError, "not none"),
        ({"k": "1"}, WrongTypeError, "key column 'k' is Int64"),
        (pl.DataFrame({"k": ["a"]}), WrongTypeError, "key column 'k' is Int64: the given column is String"),
        (pl.DataFrame({"s": [1]}), UnknownColumnError, "the key has the columns k, not s"),
    ],
)
def test_a_key_of_other_columns_or_types_is_refused(
    key: inspect.Keys, kind: type[HoldfastError], said: str, tmp_path: Path
) -> None:
    run_stored(lasting_process(), tmp_path, CUT, epochs=1)
    with pytest.raises(kind, match=said):
        hf.state(tmp_path, "kinds", "op", key=key)


def test_an_operator_without_a_key_says_so(tmp_path: Path) -> None:
    run_stored(KINDS["count of all"](), tmp_path, CUT, epochs=1)
    with pytest.raises(UnknownColumnError, match="it has no key"):
        hf.state(tmp_path, "kinds", "op", key={"k": 1})
    assert hf.state(tmp_path, "kinds", "op").columns == ["seen", "open"]


def test_columns_are_there_when_rows_are_not(tmp_path: Path) -> None:
    pipeline = hf.Pipeline("kinds")
    rows = pipeline.source("in", hf.source.memory(EVENTS), event_time="ts", time_unit="s").filter(pl.col("v") < 0)
    rows.key_by("k").window(hf.window.tumbling("5s"), name="op").agg(n=hf.count()).sink("out", hf.sink.collect())
    run_stored(pipeline, tmp_path, CUT)
    assert hf.state(tmp_path, "kinds", "op").schema == {
        "k": pl.Int64, "pane": pl.Int64, "from": pl.Int64, "n.n": pl.Int64,
    }  # fmt: skip


def test_files_that_a_running_pipeline_removes_meanwhile_are_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_stored(lasting_process(), tmp_path, CUT, epochs=2)
    real, calls = inspect.read_piece, []

    def removed(*arguments: object) -> pl.DataFrame:
        if not calls:
            calls.append(run_stored(lasting_process(), tmp_path, CUT, epochs=1))
            raise CorruptPUnitError("missing", cure="none")
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(inspect, "read_piece", removed)
    found = hf.state(tmp_path, "kinds", "op")
    assert_frame_equal(found, hf.state(tmp_path, "kinds", "op", epoch=3))
    calls.clear()
    with pytest.raises(CorruptPUnitError):
        hf.state(tmp_path, "kinds", "op", epoch=3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_diff_leads_from_one_epoch_to_the_other(kind: str, tmp_path: Path) -> None:
    run_stored(KINDS[kind](), tmp_path, CUT, epochs=4)
    old, new = (hf.state(tmp_path, "kinds", "op", epoch=epoch) for epoch in (2, 4))
    diff = hf.state_diff(tmp_path, "kinds", "op", 2, 4)
    assert diff.height
    values = [name.removesuffix("_before") for name in diff.columns if name.endswith("_before")]
    same = [name for name in old.columns if name not in values]

    def side(rows: pl.DataFrame, ending: str) -> pl.DataFrame:
        return rows.select(*same, *(pl.col(f"{name}{ending}").alias(name) for name in values)).select(old.columns)

    gone = side(diff.filter(pl.col("change") != "added"), "_before")
    came = side(diff.filter(pl.col("change") != "removed"), "_after")
    assert bag(old) - bag(gone) == bag(new) - bag(came)
    assert not bag(gone) - bag(old)
    assert not bag(came) - bag(new)
    assert hf.state_diff(tmp_path, "kinds", "op", 4, 4).height == 0


def bag(rows: pl.DataFrame) -> Bag:
    return Bag(repr(row) for row in rows.iter_rows())


def test_a_diff_by_key_names_what_became_of_each(tmp_path: Path) -> None:
    def keep(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
        return hf.Step(
            upserts=rows.filter(pl.col("v") > 0).select("k", n="v"), deletes=rows.filter(pl.col("v") < 0).select("k")
        )

    frames = [pl.DataFrame({"k": [1, 2, 3], "v": [1, 1, 1]}), pl.DataFrame({"k": [1, 3, 4], "v": [2, -1, 1]})]
    pipeline = hf.Pipeline("p")
    keyed = pipeline.source("in", hf.source.memory(frames, epochs=True)).key_by("k")
    keyed.process(keep, state={"n": pl.Int64}, output={"k": pl.Int64}, keep_forever=True, name="op").sink(
        "out", hf.sink.collect()
    )
    run_stored(pipeline, tmp_path, CUT)
    assert hf.state_diff(tmp_path, "p", "op", 1, 2).sort("k").rows() == [
        ("changed", 1, 1, 2),
        ("removed", 3, 1, None),
        ("added", 4, None, 1),
    ]


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["process with timers", "sliding", "join"])
def test_state_is_a_spark_dataframe_where_a_session_is_given(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    run_stored(KINDS[kind](), tmp_path, CUT, epochs=3)
    plain = hf.state(tmp_path, "kinds", "op")
    frame = hf.state(tmp_path, "kinds", "op", spark=spark)
    assert frame.columns == plain.columns
    assert frame.count() == plain.height
    assert frame.where("k = 7").count() == hf.state(tmp_path, "kinds", "op", key={"k": 7}).height
