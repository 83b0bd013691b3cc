"""Whatever stops a run and however it is got going again, each row is read once, but for what was passed over."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

import holdfast as hf
from holdfast.connect.base import Source
from holdfast.engine.delivery import SinkDelivery
from holdfast.engine.epoch_input import batch_taken, new_plan, take_input
from holdfast.engine.repair import Mending, repair
from holdfast.epoch.deadline import Deadlines
from holdfast.epoch.plan import EpochPlan
from holdfast.epoch.record import new_record
from holdfast.epoch.record_change import record_of
from holdfast.epoch.repair_messages import RepairOutcome, Replan, Skip
from holdfast.epoch.transaction import committing
from holdfast.errors import InputError
from holdfast.graph.nodes import SparkInput
from holdfast.meta import MetaStore, Repairs
from holdfast.plan.program import compile_program
from holdfast.state.routing import Routing

BROKEN = '{"k":\n'
REMEDIES = ("correct", "cut short", "skip file", "skip epoch")


class Site:
    """A directory of files with broken lines, and a pipeline that reads it by a driver of few lines: no Spark, but the
    real plans, repairs and transactions."""

    def __init__(self, place: Path, broken: list[list[bool]], rows: int, ahead: int) -> None:
        self.place, self.rows, self.ahead = place, rows, ahead
        self.lines: dict[str, list[tuple[int, bool]]] = {}
        for number, flags in enumerate(broken):
            name = f"f{number}"
            self.lines[name] = [(100 * number + line, bad) for line, bad in enumerate(flags)]
            self.write(name)
        pipeline = hf.Pipeline("p")
        source = hf.source.files(place, format="ndjson", schema={"k": pl.Int64}, grow=True, settle=0)
        pipeline.source("in", source).sink("out", hf.sink.collect())
        self.program = compile_program(pipeline)
        self.meta = MetaStore(place / ".store", sync=False)
        self.lease = self.meta.acquire("p", "me", 0.0, 1e9)
        self.read: list[int] = []

    def write(self, name: str) -> None:
        """As a person would who corrects a file: another size, another time."""
        text = "".join(BROKEN if bad else json.dumps({"k": key}) + "\n" for key, bad in self.lines[name])
        (self.place / name).write_text(text)

    def run(self) -> InputError | None:
        """Until all is read, or input stops it."""
        repair(
            self.program,
            self.meta,
            self.lease,
            SinkDelivery(self.program, self.meta, time.monotonic, Deadlines()),
            1,
            2,
            1.0,
        )
        try:
            while self._step():
                pass
        except InputError as error:
            return error
        return None

    def _step(self) -> bool:
        commits, planned = self.meta.history("p")
        record = record_of(commits[0]) if commits else new_record(self.program, 1)
        tail = EpochPlan.decode(planned[-1].plan) if planned else record
        if len(planned) <= self.ahead:
            epoch = (planned[-1].epoch if planned else commits[0].epoch if commits else 0) + 1
            taken = take_input(self.program, tail.positions, tail.done, self.rows, 2, epoch)
            if taken is not None:
                with committing(self.meta, self.lease, epoch) as transaction:
                    transaction.plan(new_plan(self.program, taken, 2, {}), 1.0)
                return True
        if not planned:
            return False
        epoch, plan = planned[0].epoch, EpochPlan.decode(planned[0].plan)
        try:
            keys = self._keys(plan)
        except InputError as error:
            raise error.at(epoch=epoch)  # noqa: B904
        done = structs.replace(record, positions=plan.positions, generation=plan.generation)
        with committing(self.meta, self.lease, epoch) as transaction:
            transaction.record(done, 1.0)
        self.read += keys
        return True

    def _keys(self, plan: EpochPlan) -> list[int]:
        [node] = self.program.sources
        assert isinstance(node.source, Source)
        chunks = [chunk for piece in plan.slices_of("in") for chunk in node.source.read(piece)]
        return [k for chunk in chunks for k in chunk.frame["k"].to_list()]


@settings(max_examples=40)
@given(
    broken=st.lists(st.lists(st.sampled_from([False] * 4 + [True]), min_size=1, max_size=12), min_size=1, max_size=4),
    rows=st.integers(1, 9),
    ahead=st.integers(0, 1),
    remedies=st.lists(st.sampled_from(REMEDIES), min_size=1, max_size=6),
)
def test_each_row_is_read_once_but_for_what_was_passed_over(
    broken: list[list[bool]], rows: int, ahead: int, remedies: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        site = Site(Path(directory), broken, rows, ahead)
        try:
            passed: set[int] = set()
            for number in range(60):
                error = site.run()
                if error is None:
                    break
                passed |= mend(site, error, remedies[number % len(remedies)])
            else:
                raise AssertionError("it does not get going")
        finally:
            site.meta.close()
    assert len(site.read) == len(set(site.read)), "a row was read twice"
    all_keys = {key for lines in site.lines.values() for key, bad in lines if not bad}
    assert all_keys - set(site.read) <= passed, "a row was lost"
    assert not set(site.read) - all_keys


def mend(site: Site, error: InputError, how: str) -> set[int]:
    """Do what a person would; the keys that may be passed over by it."""
    assert error.file is not None
    name = Path(error.file).name
    unread = {key for key, _ in site.lines[name]} - set(site.read)
    if how == "skip epoch" and any(planned.epoch == error.epoch for planned in site.meta.planned("p")):
        [plan] = [EpochPlan.decode(planned.plan) for planned in site.meta.planned("p") if planned.epoch == error.epoch]
        Repairs(site.meta).ask("p", Skip(epoch=error.epoch).encode(), how, 1.0)
        files = {part["name"] for piece in plan.slices_of("in") for part in piece.where["parts"]}
        return {key for file in files for key, _ in site.lines[file]} - set(site.read)
    if how == "skip file":
        Repairs(site.meta).ask("p", Skip(file=error.file).encode(), how, 1.0)
        return unread
    if how == "correct":
        site.lines[name] = [(key, False) for key, _ in site.lines[name]]
    else:  # the broken lines go
        site.lines[name] = [(key, bad) for key, bad in site.lines[name] if not bad]
    site.write(name)
    epochs = [planned.epoch for planned in site.meta.planned("p")]
    Repairs(site.meta).ask("p", Replan(tuple(epochs)).encode(), how, 1.0)
    return set()


def test_a_change_of_parallelism_that_was_planned_holds_though_its_plan_is_forgotten(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"k": 1}\n')
    pipeline = hf.Pipeline("p")
    rows = pipeline.source(
        "in", hf.source.files(tmp_path, format="ndjson", schema={"k": pl.Int64}), event_time="k", time_unit="s"
    )
    rows.key_by("k").window(hf.window.tumbling("10s"), name="counts").agg(n=hf.count()).sink("out", hf.sink.collect())
    program = compile_program(pipeline)
    record = new_record(program, 1)
    taken = take_input(program, record.positions, record.done, 10, 1, 1)
    assert taken is not None
    scaled = new_plan(program, taken, 1, {"counts": Routing.even(3)})
    mending = Mending(program, 0, record, {1: scaled}, 1, lambda epoch: None)
    assert mending.outcome(Replan((1,))) == RepairOutcome(None, (1,), ())
    assert mending.plans == {}
    mending.keep_routing()
    [bare] = mending.plans.values()
    assert bare.routing == scaled.routing
    assert bare.positions == record.positions
    assert not bare.slices_of("in")


def test_a_batch_of_spark_keeps_its_rows_when_the_plan_that_scaled_it_is_forgotten() -> None:
    pipeline = hf.Pipeline("p")
    rows = pipeline.source("in", hf.source.memory(pl.DataFrame({"k": [1], "ts": [1]})), event_time="ts", time_unit="s")
    rows.key_by("k").window(hf.window.tumbling("10s"), name="counts").agg(n=hf.count()).sink("out", hf.sink.collect())
    program = compile_program(pipeline)
    [node] = program.sources
    batches = replace(node, source=SparkInput(frame=None))
    program = replace(program, nodes={**program.nodes, "in": batches})
    record = structs.replace(new_record(program, 2), positions={"in": {"batch": 3}})
    scaled = new_plan(program, batch_taken("in", 4), 1, {"counts": Routing((0, 5, 9))})
    mending = Mending(program, 4, record, {5: scaled}, 2, lambda epoch: None)
    assert mending.outcome(Replan((5,))) == RepairOutcome(None, (5,), ())
    mending.keep_routing()
    assert mending.plans[5].routing["counts"] == scaled.routing["counts"]
    assert mending.plans[5].positions == {"in": {"batch": 4}}
    assert not mending.plans[5].passed, "its rows are read"


@pytest.mark.parametrize("what", [Skip(epoch=1), Skip(file="f0")])
@pytest.mark.parametrize("first", ["skip", "replan"])
def test_what_is_skipped_stays_so_when_the_rest_is_planned_again(tmp_path: Path, what: Skip, first: str) -> None:
    """In whichever order people ask for it before the next start."""
    site = Site(tmp_path, [[True], [False]], 1, 0)
    try:
        assert site.run() is not None
        asked: list[Skip | Replan] = [what, Replan((1,))]
        for repair in asked if first == "skip" else reversed(asked):
            Repairs(site.meta).ask("p", repair.encode(), "", 1.0)
        assert site.run() is None
        assert len(site.read) == 1, "the bad row is passed over, the other one is read"
    finally:
        site.meta.close()


def test_a_file_that_is_not_there_cannot_be_skipped(tmp_path: Path) -> None:
    site = Site(tmp_path, [[False]], 1, 0)
    try:
        Repairs(site.meta).ask("p", Skip(file="typo").encode(), "", 1.0)
        assert site.run() is None
        [asked] = Repairs(site.meta).known("p")
        assert "does not exist" in (RepairOutcome.decode(asked.outcome or "").problem or "")
    finally:
        site.meta.close()
