"""Lookup tables that change, and cannot be read at times, while lives of a run end and others begin: every row is
joined with the version that the plan of its epoch names, under every policy, whatever is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from eventual_harness import Death, Life, Script, tell
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from harness import Cut
from holdfast.epoch.plan import EpochPlan
from holdfast.errors import LookupTableError
from holdfast.graph.policies import DELTA, NONE, OPEN_ONLY, CheckpointPolicy, IntervalPolicy
from holdfast.meta import MetaStore
from holdfast.pstream.punit import read_punit
from strategies import examples

ROWS = [{"ts": n // 2, "k": n * n % 4} for n in range(24)]
SCHEMA = pl.Schema({"k": pl.Int64, "name": pl.String})
Content = list[tuple[int | None, str | None]]


class Changing(hf.lookup.Lookup):
    """A table with one content after the other; one that is None cannot be read."""

    schema, every = SCHEMA, 0.5

    def __init__(self, contents: list[Content | None], *, marked: bool = True) -> None:
        self.contents, self.at, self.reads, self._marked = contents, 0, 0, marked

    @property
    def now(self) -> Content:
        content = self.contents[self.at % len(self.contents)]
        if content is None:
            raise OSError("the disk is gone")
        return content

    def mark(self) -> str | None:
        return repr(self.now) if self._marked else None

    def read(self) -> pl.DataFrame:
        self.reads += 1
        return pl.DataFrame(self.now, schema=SCHEMA, orient="row")

    def describe(self) -> str:
        return "a table that changes"


def declared(table: hf.lookup.Lookup, how: str = "left", *, behind: bool = False) -> Callable[[], hf.Pipeline]:
    """Windows by the name of the key. With `behind`, the join is behind the windows, in a later stage."""

    def build() -> hf.Pipeline:
        pipeline = hf.Pipeline("looked-up")
        rows = pl.DataFrame(ROWS, schema={"ts": pl.Int64, "k": pl.Int64})
        events = pipeline.source("in", hf.source.memory([rows]), event_time="ts", time_unit="s")
        window = hf.window.tumbling("3s")
        if behind:
            counts = events.key_by("k").window(window).agg(n=hf.count())
            counts.join_table(table, on="k", how=how, name="names").sink("out", hf.sink.collect())
        else:
            named = events.join_table(table, on="k", how=how, name="names")
            named.sink("rows", hf.sink.collect())
            named.key_by("name").window(window).agg(n=hf.count()).sink("out", hf.sink.collect())
        return pipeline

    return build


def joined(key: int, content: Content, how: str) -> list[str | None]:
    names = [name for other, name in content if other == key]
    return names or ([None] if how == "left" else [])


class Plans:
    """What the plans of a story were, with the content of the versions that they name."""

    def __init__(self, table: Changing) -> None:
        self.rows: dict[int, int] = {}
        self.contents: dict[int, Content] = {}
        self.table = table

    def note(self, life: Life, epoch: int, replayed: bool) -> None:
        found = life.meta.look_up("looked-up", epoch)
        assert found is not None
        plan = EpochPlan.decode(found.plan)
        store = life.program.nodes["names"].versions  # type: ignore[attr-defined]
        content = read_punit(store, plan.tables["names"].unit).rows()
        if replayed:
            assert self.contents[epoch] == content, "a replay sees the same"
        self.rows[epoch], self.contents[epoch] = plan.rows_of("in"), content
        if not replayed:
            self.table.at += 1

    def expected(self, how: str) -> tuple[list[tuple[int, int, str | None]], Counter[tuple[str | None, int]]]:
        """The joined rows, and how many of each name there are in each window."""
        left, rows = list(ROWS), []
        for epoch in sorted(self.rows):
            mine, left = left[: self.rows[epoch]], left[self.rows[epoch] :]
            content = self.contents[epoch]
            rows += [(row["ts"], row["k"], name) for row in mine for name in joined(row["k"], content, how)]
        assert not left
        return rows, Counter((name, ts // 3) for ts, _, name in rows)


def check(table: Changing, script: Script, how: str) -> Plans:
    plans = Plans(table)
    story = tell(declared(table, how), script, before_commit=plans.note)
    rows, counts = plans.expected(how)
    assert sorted(map(repr, rows)) == sorted(
        text for epoch in story.outputs for text in story.rows(epoch).get("rows", ())
    )
    out = [row for epoch in story.outputs for row in story.outputs[epoch].get("out", pl.DataFrame()).rows(named=True)]
    assert Counter({(row["name"], row["window_start"] // 3): row["n"] for row in out}) == counts
    return plans


contents = st.lists(
    st.none() | st.lists(st.tuples(st.sampled_from([0, 1, 3, None]), st.sampled_from(["a", "b", None])), max_size=4),
    min_size=1, max_size=5,
).map(lambda drawn: [[(0, "first")], *drawn])  # fmt: skip
deaths = st.lists(
    st.builds(Death, st.integers(1, 4), st.sampled_from(["planned", "ran", "committed"]), st.booleans()), max_size=3
)


@examples(16)
@given(
    changes=contents,
    marked=st.booleans(),
    cut=st.builds(Cut, rows=st.sampled_from([2, 3, 5, 24]), tasks=st.integers(1, 2), partitions=st.integers(1, 2)),
    policy=st.sampled_from([DELTA, NONE, IntervalPolicy(2.0), OPEN_ONLY]),
    lost=deaths,
    how=st.sampled_from(["inner", "left"]),
)
def test_rows_are_joined_with_the_version_that_their_plan_names(
    changes: list[Content | None], marked: bool, cut: Cut, policy: CheckpointPolicy, lost: list[Death], how: str
) -> None:
    check(Changing(changes, marked=marked), Script(cut, policy, tuple(lost)), how)


def test_a_join_behind_windows_uses_the_version_of_the_epoch_that_closes_them() -> None:
    table = Changing([[(k, f"{k}-{version}") for k in range(4)] for version in range(30)])
    plans = Plans(table)
    story = tell(
        declared(table, behind=True), Script(Cut(rows=3), NONE, (Death(3), Death(2))), before_commit=plans.note
    )
    frames = {epoch: outputs["out"] for epoch, outputs in story.outputs.items() if "out" in outputs}
    rows = [(epoch, row) for epoch, frame in frames.items() for row in frame.rows(named=True)]
    assert rows
    for epoch, row in rows:
        assert row["name"] == dict(plans.contents[epoch])[row["k"]]
    assert len({row["name"] for _, row in rows}) > 4, "of several versions"


def test_a_table_that_does_not_change_is_read_once_also_after_a_restart() -> None:
    table = Changing([[(0, "zero")]])
    check(table, Script(Cut(rows=3), NONE, (Death(3), Death(2))), "left")
    assert table.reads == 1


def test_versions_that_no_plan_names_are_removed() -> None:
    table = Changing([[(0, str(version))] for version in range(100)])
    left: list[str] = []

    def then(meta: MetaStore, root: Path) -> None:
        known = [*meta.commits("looked-up"), *meta.planned("looked-up")]
        named = {EpochPlan.decode(one.plan).tables["names"].unit.name for one in known}
        left.extend(path.name for path in (root / "looked-up" / "lookups").iterdir())
        assert set(left) == named

    story = tell(declared(table), Script(Cut(rows=1), DELTA), Plans(table).note, then=then)
    assert story.epochs >= 24 > len(left)


def test_at_the_first_start_a_table_that_cannot_be_read_is_an_error_with_a_cure() -> None:
    with pytest.raises(LookupTableError, match="the disk is gone") as caught:
        tell(declared(Changing([None])), Script())
    assert caught.value.operator == "names"
    assert "start the pipeline again" in caught.value.cure
    assert "a table that changes" in caught.value.cure


class Widened(Changing):
    """Has other columns from its second content on."""

    def read(self) -> pl.DataFrame:
        rows = super().read()
        return rows if not self.at else rows.select(pl.col("k").cast(pl.String), label="name")


def test_columns_that_change_end_the_run_and_are_named() -> None:
    table = Widened([[(0, "a")], [(0, "b")]])
    with pytest.raises(LookupTableError, match=r"'k' is String instead of Int64, 'name' is missing") as caught:
        tell(declared(table), Script(Cut(rows=3)), Plans(table).note)
    assert caught.value.operator == "names"
    assert caught.value.epoch == 2
