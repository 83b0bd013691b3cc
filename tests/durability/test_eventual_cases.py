"""Eventual checkpoints where chance would rarely go: small chunks, changes of policy, renames, damaged footprints, and
p-streams before and behind the operator. As in `test_eventual_properties.py` there is no Spark in the runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from eventual_checks import Build, check, faultless, source
from eventual_harness import Death, Life, Script, tell
from eventual_oracle import Auditor, Kept

import holdfast as hf
from harness import Cut, run_in
from holdfast.engine.fragment_runs import open_cuts
from holdfast.errors import CorruptPUnitError
from holdfast.graph.policies import DELTA, NONE, OPEN_ONLY, CheckpointPolicy, EventualPolicy, IntervalPolicy
from holdfast.hidden_columns import PANE
from holdfast.meta import MetaStore
from holdfast.pstream import PUnit, StreamEntry, read_punit, stream_store
from holdfast.pstream.pstream import PStream
from holdfast.state.extent import LogExtent
from holdfast.state.goals import FootprintRules
from holdfast.store import start_in
from strategies import long_cases

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
    rows = source(pipeline, LONG, 0).key_by("k").window(hf.window.count(6, 4))
    rows.agg(n=hf.count(), total=hf.sum("x")).named("windows").sink("out", hf.sink.collect())
    return pipeline


def long_panes() -> hf.Pipeline:
    pipeline = hf.Pipeline("test")
    rows = source(pipeline, LONG, 0).key_by("k").window(hf.window.sliding("9s", "3s"))
    rows.agg(n=hf.count(), last=hf.last("v")).named("windows").sink("out", hf.sink.collect())
    return pipeline


def long_joins() -> hf.Pipeline:
    pipeline = hf.Pipeline("test")
    left, right = source(pipeline, LONG, 0, "left"), source(pipeline, LONG.select("ts", "k", w="v"), 0, "right")
    left.join(right, on="k", window=hf.window.tumbling("12s"), name="windows").sink("out", hf.sink.collect())
    return pipeline


BUILDS = [long_counts, long_panes, long_joins]
SIZES = EventualPolicy(FootprintRules(most_records=1, most_rows=1, spend=1e6, period=1e-3))
SLOW = IntervalPolicy(1e6)
ONE_BY_ONE = Cut(rows=10, partitions=2)


@pytest.mark.parametrize("build", [*long_cases(BUILDS[0]), *BUILDS[1:]])
@pytest.mark.parametrize("chunk", [3, *long_cases(1)])
def test_a_window_gets_one_new_footprint_however_many_records_it_has(build: Build, chunk: int) -> None:
    """The records of one window may come in several chunks."""
    check(build, Script(cut=ONE_BY_ONE, policy=SIZES, chunk=chunk, deaths=(Death(9), Death(6))))


# With the quick one it is left to the machine which epochs are copied.
OTHERS = [(SLOW, True), (SLOW, False), (NONE, True), (DELTA, True), (IntervalPolicy(1e-3), True)]
QUICKLY = [(BUILDS[0], OTHERS[3]), (BUILDS[0], OTHERS[1]), (BUILDS[1], OTHERS[2]), (BUILDS[2], OTHERS[0])]


@pytest.mark.parametrize(
    ("build", "then"),
    [*QUICKLY, *long_cases(*(each for each in itertools.product(BUILDS, OTHERS) if each not in QUICKLY))],
)
def test_footprints_begin_anew_after_another_policy(build: Build, then: tuple[CheckpointPolicy, bool]) -> None:
    """Nothing is copied to the stable tier by the slow one, so a recovery still goes back to the footprints."""
    other, host = then
    deaths = (
        Death(4, policy=other, host=host), Death(3, policy=SIZES, host=host), Death(4, policy=other, host=host),
        Death(3, host=host), Death(2, policy=OPEN_ONLY, host=host), Death(3, host=host),
    )  # fmt: skip
    check(build, Script(cut=ONE_BY_ONE, policy=OPEN_ONLY, deaths=deaths))


MOMENTS = ("planned", "ran", "committed")
RENAMED = [(1, "planned"), (1, "committed")]


def renamed(name: str, was: str | None, *, persisted: bool = False) -> Build:
    def build() -> hf.Pipeline:
        pipeline = hf.Pipeline("test")
        rows = source(pipeline, LONG, 0).key_by("k").window(hf.window.count(6, 4), name=name, was=was)
        rows.agg(n=hf.count(), total=hf.sum("x")).sink("out", hf.sink.collect())
        return pipeline

    return build


@pytest.mark.parametrize(
    ("after", "moment"),
    [*RENAMED, *long_cases(*(each for each in itertools.product((1, 2, 3, 4), MOMENTS) if each not in RENAMED))],
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
            path = stream_store(life.root, "test.windows.footprints").existing(unit.name)
            data, begin = bytearray(path.read_bytes()), start_in(path, unit.name) or 0
            at = slice(begin + unit.bytes // 4, begin + unit.bytes // 2)
            data[at] = bytes(byte ^ 0x5A for byte in data[at])
            path.unlink()  # the old bytes may be mapped
            path.write_bytes(bytes(data))

    return damage


def units_of(life: Life, epochs: Callable[[LogExtent], set[int]]) -> list[PUnit]:
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


KEEP_OLD = EventualPolicy(FootprintRules(most_rows=1, spend=6e-3, period=1e-3))


@pytest.mark.parametrize("build", [BUILDS[0], *long_cases(*BUILDS[1:])])
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
        lost.append(sum(gathering.left_out for gathering in story.gathered))
    assert sum(lost)


@pytest.mark.parametrize("build", [BUILDS[0], *long_cases(*BUILDS[1:])])
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
        rows = source(pipeline, LONG, 0).key_by("k").window(hf.window.tumbling("6s"))
        counts = rows.agg(n=hf.count(), total=hf.sum("x")).named("windows").persist("kept", push_up=push_up)
        counts.filter(pl.col("n") > 1).sink("out", hf.sink.collect())
        return pipeline

    return build


def read_before(push_up: bool) -> Build:
    def build() -> hf.Pipeline:
        pipeline = hf.Pipeline("test")
        rows = (
            source(pipeline, LONG, 0)
            .persist("kept", push_up=push_up)
            .key_by("k")
            .window(hf.window.sliding("12s", "6s"))
        )
        rows.agg(n=hf.count(), total=hf.sum("x")).named("windows").sink("out", hf.sink.collect())
        return pipeline

    return build


@pytest.mark.parametrize("push_up", [False, *long_cases(True)])
@pytest.mark.parametrize("policy", [SIZES, *long_cases(OPEN_ONLY)], ids=str)
def test_footprints_lie_between_the_results_in_a_p_stream(push_up: bool, policy: CheckpointPolicy) -> None:
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
        assert witness.extents == (story.epochs if script.policy.footprints else 0)
        epochs = [control.epoch for entry in found for control in entry.control.values()]
        assert epochs == sorted(set(epochs))
        assert [entry.lineage.epoch for entry in found] == sorted({entry.lineage.epoch for entry in found})
        assert [entry.offset for entry in found] == [sum(e.rows for e in found[:i]) for i in range(len(found))]
        return sorted(rows), [entry.after for entry in found if entry.units], len(epochs)

    deaths = (Death(4), Death(5, "ran"), Death(6, "planned"), Death(3), Death(9, clean=True), Death(2))
    plain = told(Script(cut=ONE_BY_ONE))
    eventual = told(Script(cut=ONE_BY_ONE, policy=policy, deaths=deaths))
    assert eventual[:2] == plain[:2]
    assert plain[2] == 0
    assert eventual[2] > 0


@pytest.mark.parametrize("push_up", [False, *long_cases(True)])
@pytest.mark.parametrize("policy", [SIZES, *long_cases(OPEN_ONLY)], ids=str)
def test_what_is_to_be_replayed_stays_upstream_and_nothing_else(push_up: bool, policy: CheckpointPolicy) -> None:
    def prepare(meta: MetaStore, root: Path) -> hf.Pipeline:
        writer, reader = open_cuts(read_before(push_up)(), meta).fragments
        run_in(root, writer.pipeline, Cut(rows=7))
        return reader.pipeline

    class Upstream(Auditor):
        def __call__(self, life: Life, epoch: int, replayed: bool) -> None:
            super().__call__(life, epoch, replayed)
            if replayed or life.policy.footprints is None or life.record.base is None:
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
