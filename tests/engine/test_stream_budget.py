"""The p-streams of a run without Spark: how much they hold, who waits for whom, and what happens to damaged ones."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import holdfast as hf
from harness import WHOLE, Cut, Stepping, plain_rows, run, run_in
from holdfast.connect.base import Chunk, Position, Slice, Source, Take
from holdfast.engine.epoch_input import new_plan, take_input
from holdfast.engine.fragment_runs import open_cuts
from holdfast.engine.recovery import needed_units
from holdfast.engine.stream_links import StreamLinks
from holdfast.epoch.plan import EpochPlan
from holdfast.epoch.record import EpochRecord
from holdfast.errors import CorruptPUnitError, StreamGapError
from holdfast.meta import MetaStore
from holdfast.plan.program import Program
from holdfast.pstream import Lineage, UnitWriter
from holdfast.pstream.pstream import PStream
from holdfast.store import Private, start_in

BUDGET = 1_000_000
LEAST_ROWS = 20_000
NOISE = np.random.default_rng(3).integers(0, 2**62, LEAST_ROWS)


class NoiseSource(Source):
    """Rows of 16 bytes, half of which nothing can compress."""

    schema = pl.Schema({"ts": pl.Int64(), "v": pl.Int64()})
    bounded = True

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def start(self) -> Position:
        return {"offset": 0}

    def take(self, position: Position, rows: int, pieces: int) -> Take:
        start = position["offset"]
        stop = min(self.rows, start + rows)
        return Take((Slice(start, stop - start, {}),), {"offset": stop}, stop == self.rows)

    def read(self, piece: Slice) -> Iterator[Chunk]:
        numbers = np.arange(piece.base, piece.base + piece.rows, dtype=np.int64)
        yield Chunk(pl.DataFrame({"ts": numbers, "v": NOISE[numbers % LEAST_ROWS] ^ (numbers * 7_919)}))


def declare(source: Source, **options: Any) -> hf.Pipeline:
    pipeline = hf.Pipeline("p")
    rows = pipeline.source("in", source, event_time="ts", time_unit="s").persist("kept", push_up=False, **options)
    kept = rows.filter(pl.col("v") % 64 == 0).named("few")
    kept.select("ts", "v").sink("out", hf.sink.collect())
    return pipeline


class Two:
    """The writer and the reader of a cut pipeline, step by step."""

    def __init__(self, pipeline: hf.Pipeline, root: Path, writer: Cut = WHOLE, reader: Cut = WHOLE) -> None:
        self.root = root
        self.meta = MetaStore(root, sync=False)
        write, read = open_cuts(pipeline, self.meta).fragments
        clock = itertools.count(0.0, 0.5).__next__  # so that what nobody needs is let go after each commit
        self.writer = Stepping(root, write.pipeline, writer, clock=clock)
        self.reading = read.pipeline
        self.reader = Stepping(root, read.pipeline, reader, clock=clock)
        self.log = PStream(self.meta, root, write.writes[0], sync=False)
        self._runs = contextlib.ExitStack()
        for each in (self.writer, self.reader):
            self._runs.enter_context(each.run.seated())

    @property
    def links(self) -> StreamLinks:
        return self.writer.loop.committer.run.streams

    def close(self) -> None:
        self._runs.close()

    def on_disk(self) -> int:
        return sum(path.stat().st_size for path in (self.root / "streams").rglob("*") if path.is_file())


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Any]:
    made: list[Two] = []

    def opening(*given: Any, **options: Any) -> Two:
        made.append(Two(given[0], tmp_path, *given[1:], **options))
        return made[-1]

    yield opening
    for two in made:
        two.close()
        two.meta.close()


# budget


def test_a_long_stream_stays_within_a_small_budget_and_nothing_is_lost(opened: Any) -> None:
    """More than 20 MB through 1 MB, the reader being the slower one: never more than 10 % over it."""
    source = NoiseSource(3_000_000)
    two = opened(declare(source, budget=BUDGET), Cut(LEAST_ROWS, 2, 1), Cut(LEAST_ROWS, 1, 1))
    largest, waited, more = 0, 0, True
    while more:
        for _ in range(3):
            if not two.writer.epoch():
                waited += not two.log.state().ended
                break
            largest = max(largest, two.on_disk())
        more = two.reader.epoch()
    assert two.log.state().ended
    assert largest <= 1.1 * BUDGET
    assert largest > 0.7 * BUDGET, "and the budget is made use of"
    assert waited > 10
    written = sum(report.streamed_bytes for report in two.writer.outcome.reports)
    assert written > 20 * BUDGET
    assert two.on_disk() == 0
    expected = next(source.read(Slice(0, source.rows, {}))).frame.filter(pl.col("v") % 64 == 0)
    assert two.reader.outcome.sinks["out"].equals(expected)


def test_what_is_planned_and_not_yet_written_takes_room(opened: Any) -> None:
    two = opened(declare(NoiseSource(1_000_000), budget=BUDGET), Cut(LEAST_ROWS, 1, 1))
    links = two.links
    assert links.room(500, 0) == 500
    two.writer.epoch()
    written = links._written[0]
    per_row = written.bytes_per_row
    assert per_row is not None
    assert per_row * LEAST_ROWS == pytest.approx(two.on_disk())
    assert two.on_disk() == written.held
    free = (BUDGET - written.held) / per_row
    assert free * 0.99 < links.room(1_000_000, 0) <= free
    assert links.room(1_000_000, 10_000) <= free - 10_000 + 1
    assert links.room(1_000_000, int(free * 0.99)) == 0


def test_the_writer_waits_for_the_slowest_of_several_readers(tmp_path: Path) -> None:
    pipeline = declare(NoiseSource(200_000), budget=BUDGET)
    hf.Stream(pipeline, "kept").select("ts").sink("times", hf.sink.collect())
    meta = MetaStore(tmp_path, sync=False)
    write, *read = open_cuts(pipeline, meta).fragments
    runs = {f.name: Stepping(tmp_path, f.pipeline, Cut(LEAST_ROWS, 1, 1)) for f in (write, *read)}
    links = runs["p.kept"].loop.committer.run.streams
    with contextlib.ExitStack() as seated:
        for each in runs.values():
            seated.enter_context(each.run.seated())
        while runs["p.kept"].epoch():
            pass
        written = rows_read(runs["p.kept"])
        held = links._written[0].held
        assert held > 0.9 * BUDGET
        assert written > 2 * LEAST_ROWS, "plain or compressed, as the load of the machine has it"
        while runs["p.out"].epoch():
            pass
        assert rows_read(runs["p.out"]) == written, "one reader has read all there is"
        assert not links.room(LEAST_ROWS, 0)
        assert links._written[0].held == held, "the other one has not"
        runs["p.times"].epoch()
        assert links.room(LEAST_ROWS, 0)
        assert links._written[0].held < held
    meta.close()


def rows_read(run: Stepping) -> int:
    return sum(report.rows for report in run.outcome.reports)


def test_a_writer_that_starts_again_knows_what_the_stream_holds(opened: Any, tmp_path: Path) -> None:
    two = opened(declare(NoiseSource(100_000), budget=BUDGET), Cut(LEAST_ROWS, 1, 1))
    two.writer.epoch()
    UnitWriter(two.log.store).write("lost-attempt.arrow", pl.DataFrame({"v": NOISE}))
    held = two.log.retained()[2]
    assert two.on_disk() > held
    again = StreamLinks(two.writer.run.program, two.meta, tmp_path, False)
    again.recover(Private("the only run"))
    assert again._written[0].held == held == two.on_disk()


# damage


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_p_unit_stops_the_reader_by_name_and_nothing_is_committed(opened: Any, damage: str) -> None:
    two = opened(declare(NoiseSource(30_000)), Cut(10_000, 1, 1), Cut(10_000, 1, 1))
    while two.writer.epoch():
        pass
    two.reader.epoch()
    before = two.log.markers()
    unit = two.log.read(1, 1)[0].units[0]
    victim = two.log.store.existing(unit.name)
    data, start = victim.read_bytes(), start_in(victim, unit.name) or 0
    if damage == "flip":
        at = start + unit.bytes // 2
        victim.write_bytes(data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :])
    elif damage == "truncate":
        victim.write_bytes(data[: start + unit.bytes // 2])
    else:
        victim.unlink()
    with pytest.raises(CorruptPUnitError, match=rf"operator 'kept', epoch 2: .*{victim.name}") as caught:
        two.reader.epoch()
    assert caught.value.cure
    assert two.log.markers() == before
    assert two.reader.outcome.epochs == 1
    victim.write_bytes(data)
    two.close()
    first, rest = two.reader.outcome, run_in(two.root, two.reading, Cut(10_000, 1, 1))
    expected = run(declare_uncut(NoiseSource(30_000)))
    assert plain_rows(pl.concat([first.sinks["out"], rest.sinks["out"]])) == plain_rows(expected.sinks["out"])


def declare_uncut(source: Source) -> hf.Pipeline:
    pipeline = hf.Pipeline("p")
    rows = pipeline.source("in", source, event_time="ts", time_unit="s")
    rows.filter(pl.col("v") % 64 == 0).named("few").select("ts", "v").sink("out", hf.sink.collect())
    return pipeline


# lineage


def test_an_entry_tells_the_epoch_and_the_vector_it_comes_from(opened: Any) -> None:
    two = opened(declare(NoiseSource(25_000)), Cut(10_000, 2, 1))
    while two.writer.epoch():
        pass
    entries = two.log.read(0, 1_000_000)
    assert [entry.lineage for entry in entries] == [
        Lineage("p.kept", epoch, {"in": {"offset": offset}})
        for epoch, offset in ((1, 10_000), (2, 20_000), (3, 25_000))
    ]
    assert [entry.ended for entry in entries] == [False, False, True]
    two.reader.epoch()
    [checkpoint] = [m for m in two.log.markers() if m.kind == "checkpoint"]
    assert (checkpoint.by, checkpoint.number, checkpoint.offset, checkpoint.epoch) == ("p.out", 3, 25_000, 1)


# gaps


@pytest.mark.parametrize("more", [True, False])
def test_a_reader_that_left_and_comes_back_too_late_is_told_and_reads_nothing(opened: Any, more: bool) -> None:
    two = opened(declare(NoiseSource(50_000)), Cut(10_000, 1, 1), Cut(10_000, 1, 1))
    for _ in range(3):
        two.writer.epoch()
    two.reader.epoch()
    two.log.unsubscribe("p.out")
    two.log.subscribe("another")
    with two.meta.writing() as connection:
        two.log.checkpoint(connection, "another", 3, 30_000, 1)
    two.log.trim()
    if more:
        two.writer.epoch()
    with pytest.raises(StreamGapError, match=r"'p\.kept' no longer has entry 2, which 'p\.out' reads next"):
        two.reader.epoch()


# what a recovery needs


def test_only_the_p_units_of_planned_epochs_are_needed(opened: Any, tmp_path: Path) -> None:
    two = opened(declare(NoiseSource(50_000)), Cut(10_000, 1, 1), Cut(10_000, 1, 1))
    while two.writer.epoch():
        pass
    two.reader.epoch()
    program, record = two.reader.run.program, two.reader.loop.committer.run.progress.record
    second = next_plan(program, record, 2)
    third = next_plan(program, second, 3)
    entries = two.log.read(0, 1_000_000)
    assert [entry.number for entry in entries] == [2, 3, 4, 5]
    needed = needed_units(program, record, 1, {2: second, 3: third}, two.log.store, tmp_path)
    assert [(one.unit, one.operator, one.epoch) for one in needed] == [
        (entries[0].units[0], "kept", 2),
        (entries[1].units[0], "kept", 3),
    ]
    assert not needed_units(program, record, 1, {}, two.log.store, tmp_path)


def next_plan(program: Program, before: EpochRecord | EpochPlan, epoch: int) -> EpochPlan:
    taken = take_input(program, before.positions, before.done, 10_000, 1, epoch)
    assert taken is not None
    return new_plan(program, taken, 1, {})
