"""Eventual checkpoints, whatever the stream, the operator, the policy and the moment of death: the account of the log
is what the log has, state that is lost comes back as it was, and the output is that of a run without faults.

Runs have no Spark in them (`eventual_harness`), so that there can be many of them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from eventual_harness import Death, Life, Script, Story, tell
from eventual_oracle import Auditor, Kept
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from harness import Cut, _Run
from holdfast.epoch.fragments import open_cuts
from holdfast.errors import CorruptPUnitError
from holdfast.meta import MetaStore
from holdfast.pstream import PStream, PUnit, StreamEntry, read_punit
from holdfast.state.extent import Extent
from holdfast.state.policy import DELTA, NONE, Policy
from holdfast.state.tables import PANE
from strategies import FUZZ, examples

TOLD: Counter[str] = Counter()
"""What all examples together came to."""


@pytest.fixture(scope="module", autouse=True)
def enough_was_tried() -> Iterator[None]:
    """Printed with -s: how much all examples came to."""
    yield
    print(f"\neventual checkpoints: {dict(TOLD)}, examples {'x' + str(FUZZ) if FUZZ else 'as always (derandomized)'}")


# streams

KEYS: dict[str, tuple[pl.DataType, Callable[[int], Any]]] = {
    "int": (pl.Int64(), lambda n: None if n == 3 else n * n - 7),
    "string": (pl.String(), lambda n: None if n == 3 else f"k{n}" if n else ""),
}


@st.composite
def frames(draw: st.DrawFn, kind: str) -> pl.DataFrame:
    """Rows from a seed: few or many keys, skewed or not, in order or not, in bursts."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    rows = draw(st.sampled_from([2, 60, 100, 150, 0, 200]))
    width = draw(st.sampled_from([1, 4, 20, 90]))
    skew = draw(st.sampled_from([1.0, 3.0]))
    jitter = draw(st.sampled_from([0, 0, 5, 40]))
    steps = draw(st.sampled_from([(0, 1), (0, 0, 0, 0, 3), (0, 0, 0, 60), (1, 2, 9)]))
    dtype, key = KEYS[kind]
    now, ts, ks = 0, [], []
    for _ in range(rows):
        now += chance.choice(steps)
        ts.append(now - chance.randint(0, jitter))
        ks.append(key(int(width * chance.random() ** skew)))
    values = [chance.choice([None, *range(-5, 6)]) for _ in range(rows)]
    return pl.DataFrame(
        {"ts": ts, "k": ks, "v": values, "x": [chance.randint(-40, 40) / 4 for _ in range(rows)]},
        schema={"ts": pl.Int64(), "k": dtype, "v": pl.Int64(), "x": pl.Float64()},
    )


# operators

AGGREGATES: dict[str, Callable[[], hf.Aggregate]] = {
    "n": hf.count,
    "sum_v": lambda: hf.sum("v"),
    "sum_x": lambda: hf.sum("x"),
    "mean_x": lambda: hf.mean("x"),
    "least": lambda: hf.min("v"),
    "most": lambda: hf.max("x"),
    "first_v": lambda: hf.first("v"),
    "last_x": lambda: hf.last("x"),
    "top": lambda: hf.top_k("x", 2),
    "distinct": lambda: hf.approx_distinct("v"),
}
names_of_aggregates = st.lists(st.sampled_from(sorted(AGGREGATES)), min_size=1, max_size=3, unique=True)
count_shapes = st.sampled_from([(1, 1), (5, 5), (3, 1), (4, 2), (5, 3), (6, 4), (7, 5), (40, 40)])
"""Size and slide; a slide beyond the size is refused when it is declared."""
time_shapes = st.sampled_from([(10, 10), (40, 40), (200, 200), (10, 5), (30, 7), (12, 5), (60, 10)])
Build = Callable[[], hf.Pipeline]


def source(pipeline: hf.Pipeline, frame: pl.DataFrame, lateness: int, name: str = "in") -> hf.Stream:
    return pipeline.source(name, hf.memory(frame), event_time="ts", time_unit="s", lateness=f"{lateness}s")


@st.composite
def windows(draw: st.DrawFn, by_time: bool) -> Build:
    frame, lateness = draw(frames(draw(st.sampled_from(sorted(KEYS))))), draw(st.sampled_from([0, 0, 10, 100]))
    size, slide = draw(time_shapes if by_time else count_shapes)
    window = hf.sliding(f"{size}s", f"{slide}s") if by_time else hf.count_window(size, slide)
    named = draw(names_of_aggregates)
    keyed = draw(st.sampled_from([True, True, True, False]))

    def build() -> hf.Pipeline:
        pipeline = hf.Pipeline("test")
        rows = source(pipeline, frame, lateness)
        windowed = rows.key_by("k").window(window) if keyed else rows.window(window)
        windowed.agg(**{name: AGGREGATES[name]() for name in named}, name="windows").sink("out", hf.collect())
        return pipeline

    return build


@st.composite
def joins(draw: st.DrawFn) -> Build:
    kind = draw(st.sampled_from(sorted(KEYS)))
    left, right = draw(frames(kind)), draw(frames(kind)).select("ts", "k", w="v")
    size, slide = draw(time_shapes)
    how = draw(st.sampled_from(["inner", "left", "full"]))
    lateness = draw(st.sampled_from([0, 20]))

    def build() -> hf.Pipeline:
        pipeline = hf.Pipeline("test")
        ours, theirs = source(pipeline, left, lateness, "left"), source(pipeline, right, lateness, "right")
        made = ours.join(theirs, on="k", window=hf.sliding(f"{size}s", f"{slide}s"), how=how, name="pairs")
        made.sink("out", hf.collect())
        return pipeline

    return build


# policies

spends = st.sampled_from([(1e-9, 1e-3), (6e-3, 6e-3), (6e-3, 0.05), (1e6, 1e-3), (1e6, 1e-3)])
"""CI and CP. A look at the clock takes 1e-3, so the first is enough for nothing, and the second for a few windows."""


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    kind = draw(st.sampled_from(["open", "sizes", "sizes", "recovery"]))
    if kind == "open":
        return Policy("eventual", only_open=True)
    spend, period = draw(spends)
    if kind == "recovery":
        # CI/CP is at most 1 for people; only the time to spend is stretched here.
        recovery = draw(st.sampled_from([1e-9, 1e-4, 1e-2, 10.0]))
        return Policy("eventual", spend=min(spend, period), period=period, recovery=recovery)
    most = st.sampled_from([None, 1, 10, 60])
    records, rows = draw(most), draw(most)
    records = 5 if records is None and rows is None else records
    return Policy("eventual", most_records=records, most_rows=rows, spend=spend, period=period)


# deaths

moments = st.sampled_from(["planned", "ran", "committed", "committed"])


@st.composite
def scripts(draw: st.DrawFn, *, mixed: bool = False, deaths: int = 8) -> Script:
    cut = Cut(
        rows=draw(st.sampled_from([4, 8, 20])),
        tasks=draw(st.integers(1, 2)),
        partitions=draw(st.integers(1, 3)),
        scales=draw(st.just(()) | st.lists(st.integers(1, 4), min_size=2, max_size=4).map(tuple)),
    )
    other = st.sampled_from([DELTA, NONE, Policy("interval", 1e-3), Policy("interval", 1e6)])
    ends = [
        Death(
            after=draw(st.integers(1, 7)),
            moment=draw(moments),
            host=draw(st.sampled_from([True, True, True, False])),
            partitions=draw(st.sampled_from([None, None, 1, 3])),
            clean=draw(st.sampled_from([False, False, False, False, True])),
            policy=draw(policies() | other) if mixed else draw(st.none() | policies()),
        )
        for _ in range(deaths)
    ]
    return Script(
        cut=cut,
        policy=draw(policies()),
        deaths=tuple(ends),
        empty=frozenset(draw(st.lists(st.integers(1, 30), max_size=4))),
        chunk=draw(st.sampled_from([1, 2, 1_000])),
        batches=draw(st.sampled_from([1, 64, 64])),
        retain=draw(st.sampled_from([1, 3])),
    )


@lru_cache(8)
def faultless(build: Build, cut: Cut, empty: frozenset[int]) -> tuple[Story, Auditor]:
    witness = Auditor()
    return tell(build, Script(cut=cut, policy=DELTA, empty=empty), witness), witness


def check(build: Build, script: Script) -> None:
    expected, oracle = faultless(build, script.cut, script.empty)
    witness = Auditor(faultless=oracle.states)
    story = tell(build, script, witness)
    assert story.epochs == expected.epochs
    for epoch in range(1, story.epochs + 1):
        assert story.rows(epoch) == expected.rows(epoch), f"the output of epoch {epoch}"
    TOLD.update(
        runs=1, epochs=story.epochs, kills=story.kills, losses=story.losses, gathered=len(story.gathered),
        extents=witness.extents, opens=witness.opens, checks=witness.checks, recovered=witness.recovered,
        replayed=sum(story.replayed),
    )  # fmt: skip


@examples(8)
@given(build=windows(by_time=False), script=scripts())
def test_count_windows_survive_any_loss(build: Build, script: Script) -> None:
    check(build, script)


@examples(8)
@given(build=windows(by_time=True), script=scripts())
def test_time_windows_survive_any_loss(build: Build, script: Script) -> None:
    check(build, script)


@examples(5)
@given(build=joins(), script=scripts())
def test_joins_survive_any_loss(build: Build, script: Script) -> None:
    check(build, script)


@examples(5)
@given(build=windows(by_time=False) | windows(by_time=True) | joins(), script=scripts(mixed=True))
def test_policies_may_change_from_life_to_life(build: Build, script: Script) -> None:
    check(build, script)


# what was found, and what chance would rarely find

LONG = pl.DataFrame(
    {
        "ts": [i // 8 for i in range(160)],
        "k": [(i * i) % 17 for i in range(160)],
        "v": [i % 5 for i in range(160)],
        "x": [i / 4 for i in range(160)],
    }
)


def long_counts() -> hf.Pipeline:
    pipeline = hf.Pipeline("test")
    rows = source(pipeline, LONG, 0).key_by("k").window(hf.count_window(6, 4))
    rows.agg(n=hf.count(), total=hf.sum("x"), name="windows").sink("out", hf.collect())
    return pipeline


def long_panes() -> hf.Pipeline:
    pipeline = hf.Pipeline("test")
    rows = source(pipeline, LONG, 0).key_by("k").window(hf.sliding("9s", "3s"))
    rows.agg(n=hf.count(), last=hf.last("v"), name="windows").sink("out", hf.collect())
    return pipeline


def long_joins() -> hf.Pipeline:
    pipeline = hf.Pipeline("test")
    left, right = source(pipeline, LONG, 0, "left"), source(pipeline, LONG.select("ts", "k", w="v"), 0, "right")
    left.join(right, on="k", window=hf.tumbling("12s"), name="windows").sink("out", hf.collect())
    return pipeline


BUILDS = [long_counts, long_panes, long_joins]
SIZES = Policy("eventual", most_records=1, most_rows=1, spend=1e6, period=1e-3)
OPEN_ONLY = Policy("eventual", only_open=True)
SLOW = Policy("interval", 1e6)
ONE_BY_ONE = Cut(rows=10, partitions=2)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("chunk", [1, 3] if FUZZ else [3])
def test_a_window_gets_one_new_footprint_however_many_records_it_has(build: Build, chunk: int) -> None:
    """The records of one window may come in several chunks."""
    check(build, Script(cut=ONE_BY_ONE, policy=SIZES, chunk=chunk, deaths=(Death(9), Death(6))))


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize(
    ("other", "host"),
    [(SLOW, True), (SLOW, False), (NONE, True), (DELTA, True), (Policy("interval", 1e-3), True)],
    ids=["slow", "slow-process", "none", "delta", "quick"],
)
def test_footprints_begin_anew_after_another_policy(build: Build, other: Policy, host: bool) -> None:
    """Nothing is copied to the stable tier by the slow one, so a recovery still goes back to the footprints."""
    deaths = (
        Death(4, policy=other, host=host), Death(3, policy=SIZES, host=host), Death(4, policy=other, host=host),
        Death(3, host=host), Death(2, policy=OPEN_ONLY, host=host), Death(3, host=host),
    )  # fmt: skip
    check(build, Script(cut=ONE_BY_ONE, policy=OPEN_ONLY, deaths=deaths))


def renamed(name: str, was: str | None, *, persisted: bool = False) -> Build:
    def build() -> hf.Pipeline:
        pipeline = hf.Pipeline("test")
        rows = source(pipeline, LONG, 0).key_by("k").window(hf.count_window(6, 4))
        rows.agg(n=hf.count(), total=hf.sum("x"), name=name, was=was).sink("out", hf.collect())
        return pipeline

    return build


@pytest.mark.parametrize(
    ("after", "moment"),
    [(after, moment) for after in (1, 2, 3, 4) for moment in ("planned", "ran", "committed")]
    if FUZZ
    else [(1, "planned"), (2, "ran"), (3, "committed"), (1, "committed")],
)
def test_a_renamed_operator_finds_its_footprints(after: int, moment: Any) -> None:
    """Also if it dies again at once, and before the log has its new name."""
    deaths = (
        Death(6, "planned", build=renamed("b", "a")), Death(after, moment), Death(after, moment),
        Death(2, build=renamed("c", "b")), Death(1, moment), Death(3),
    )  # fmt: skip
    check(renamed("a", None), Script(cut=ONE_BY_ONE, policy=OPEN_ONLY, deaths=deaths))


# damage


def spoiling(which: Callable[[Life], list[PUnit]]) -> Callable[[Life], None]:
    """Overwrites the second quarter of some batches, which is data."""

    def damage(life: Life) -> None:
        for unit in which(life):
            path = life.root / "streams" / "test.windows.footprints" / unit.name
            data = bytearray(path.read_bytes())
            at = slice(len(data) // 4, len(data) // 2)
            data[at] = bytes(byte ^ 0x5A for byte in data[at])
            path.unlink()  # the old bytes may be mapped
            path.write_bytes(bytes(data))

    return damage


def units_of(life: Life, epochs: Callable[[Extent], set[int]]) -> list[PUnit]:
    """The batches of some epochs of the log."""
    footing = life.record.footings["windows"]
    wanted = epochs(footing.extent)
    log = PStream(life.meta, life.root, footing.stream, sync=False)
    found = [entry.control[footing.name] for entry in log.backwards()]
    return [unit for control in found if control.epoch in wanted for unit in control.units]


class LeftOut(Auditor):
    """Windows with a damaged footprint go back to an older one."""

    def _same_again(self, epoch: int, now: Mapping[int, Kept], *, footprints: bool) -> None:
        super()._same_again(epoch, now, footprints=False)


KEEP_OLD = Policy("eventual", most_rows=1, spend=6e-3, period=1e-3)


@pytest.mark.parametrize("build", BUILDS if FUZZ else BUILDS[:1])
def test_damaged_footprints_are_left_out_where_older_ones_are_there(build: Build) -> None:
    """A new footprint is damaged, and an old one of another window still holds back T."""
    lost: list[int] = []

    def left_before(life: Life) -> list[PUnit]:
        """The newest batch of which each window has an older footprint in the log."""
        log = PStream(life.meta, life.root, "test.windows.footprints", sync=False)
        extent = life.record.footings["windows"].extent
        batches = [(unit, read_punit(log.store, unit)) for unit in units_of(life, lambda e: {m.epoch for m in e.marks})]
        for number, (unit, rows) in enumerate(batches):
            names = [name for name in ("k", PANE) if name in rows.columns]
            older = [rows.select(names) for _, rows in batches[number + 1 :]]
            if older and not rows.join(pl.concat(older), on=names, how="anti").height and extent.windows:
                return [unit]
        return []

    empty = frozenset({5, 6, 8, 9, 11})  # nothing opens there
    expected, oracle = faultless(build, ONE_BY_ONE, empty)
    for after in (5, 6, 8, 9):
        witness = LeftOut(faultless=oracle.states)
        deaths = (Death(after, damage=spoiling(left_before)), Death(9))
        story = tell(build, Script(cut=ONE_BY_ONE, policy=KEEP_OLD, deaths=deaths, empty=empty, chunk=1), witness)
        assert [story.rows(epoch) for epoch in story.outputs] == [expected.rows(e) for e in expected.outputs]
        lost.append(sum(each.left_out for each in story.gathered))
    assert sum(lost)


@pytest.mark.parametrize("build", BUILDS if FUZZ else BUILDS[:1])
def test_a_window_whose_only_footprint_is_damaged_is_told_of(build: Build) -> None:
    def oldest(life: Life) -> list[PUnit]:
        return units_of(life, lambda extent: {extent.oldest})

    script = Script(cut=ONE_BY_ONE, policy=OPEN_ONLY, deaths=(Death(5, damage=spoiling(oldest)),))
    with pytest.raises(CorruptPUnitError) as told:
        tell(build, script)
    assert told.value.operator == "windows"
    assert "damaged" in told.value.problem


# p-streams before and behind the operator


def written_behind(push_up: bool) -> Build:
    """The results go into a p-stream, and the footprints between them."""

    def build() -> hf.Pipeline:
        pipeline = hf.Pipeline("test")
        rows = source(pipeline, LONG, 0).key_by("k").window(hf.tumbling("6s"))
        counts = rows.agg(n=hf.count(), total=hf.sum("x"), name="windows").persist("kept", push_up=push_up)
        counts.filter(pl.col("n") > 1).sink("out", hf.collect())
        return pipeline

    return build


def read_before(push_up: bool) -> Build:
    def build() -> hf.Pipeline:
        pipeline = hf.Pipeline("test")
        rows = source(pipeline, LONG, 0).persist("kept", push_up=push_up).key_by("k").window(hf.sliding("12s", "6s"))
        rows.agg(n=hf.count(), total=hf.sum("x"), name="windows").sink("out", hf.collect())
        return pipeline

    return build


@pytest.mark.parametrize("push_up", [False, True] if FUZZ else [False])
@pytest.mark.parametrize("policy", [OPEN_ONLY, SIZES] if FUZZ else [SIZES], ids=str)
def test_footprints_lie_between_the_results_in_a_p_stream(push_up: bool, policy: Policy) -> None:
    def prepare(meta: MetaStore, root: Path) -> hf.Pipeline:
        return open_cuts(written_behind(push_up)(), meta).fragments[0].pipeline

    def told(script: Script) -> tuple[list[str], list[int | None], int]:
        found: list[StreamEntry] = []
        rows: list[str] = []

        def then(meta: MetaStore, root: Path) -> None:
            stream = PStream(meta, root, "test.kept", sync=False)
            found.extend(stream.read(0, 10**9))
            rows.extend(repr(row) for frame in stream.load(found) for row in frame.rows())

        witness = Auditor()
        story = tell(written_behind(push_up), script, witness, prepare=prepare, then=then)
        assert witness.extents == (story.epochs if script.policy.kind == "eventual" else 0)
        epochs = [control.epoch for entry in found for control in entry.control.values()]
        assert epochs == sorted(set(epochs))
        assert [entry.lineage["epoch"] for entry in found] == sorted({entry.lineage["epoch"] for entry in found})
        assert [entry.offset for entry in found] == [sum(e.rows for e in found[:i]) for i in range(len(found))]
        return sorted(rows), [entry.after for entry in found if entry.units], len(epochs)

    deaths = (Death(4), Death(5, "ran"), Death(6, "planned"), Death(3), Death(9, clean=True), Death(2))
    plain = told(Script(cut=ONE_BY_ONE))
    eventual = told(Script(cut=ONE_BY_ONE, policy=policy, deaths=deaths))
    assert eventual[:2] == plain[:2]
    assert plain[2] == 0
    assert eventual[2] > 0


@pytest.mark.parametrize("push_up", [False, True] if FUZZ else [False])
@pytest.mark.parametrize("policy", [OPEN_ONLY, SIZES] if FUZZ else [SIZES], ids=str)
def test_what_is_to_be_replayed_stays_upstream_and_nothing_else(push_up: bool, policy: Policy) -> None:
    def prepare(meta: MetaStore, root: Path) -> hf.Pipeline:
        writer, reader = open_cuts(read_before(push_up)(), meta).fragments
        _Run(writer.pipeline, Cut(rows=7), root / writer.name, meta, root).run(10_000)
        return reader.pipeline

    class Upstream(Auditor):
        def __call__(self, life: Life, epoch: int, replayed: bool) -> None:
            super().__call__(life, epoch, replayed)
            if replayed or life.policy.kind != "eventual" or life.record.base is None:
                return
            [first, *_] = [*PStream(life.meta, life.root, "test.kept", sync=False).read(0, 1), None]
            [position] = life.checkpoints.positions.values()
            assert life.checkpoints.keep_from == life.record.base.epoch
            assert first is None or first.number == position["number"] + 1

    cut = Cut(rows=10, partitions=2)
    expected = tell(read_before(push_up), Script(cut=cut), prepare=prepare)
    deaths = (Death(4), Death(5, "ran"), Death(6, "planned"), Death(3), Death(9, clean=True), Death(2))
    witness = Upstream()
    story = tell(read_before(push_up), Script(cut=cut, policy=policy, deaths=deaths), witness, prepare=prepare)
    assert witness.extents == story.epochs == expected.epochs
    assert [story.rows(epoch) for epoch in story.outputs] == [expected.rows(epoch) for epoch in expected.outputs]


def test_enough_kill_points_were_tried() -> None:
    """Runs last; on its own it has nothing to say."""
    if TOLD["runs"] >= 20:
        assert TOLD["kills"] >= 100
        assert TOLD["gathered"] >= 30
        assert TOLD["checks"] >= 50
