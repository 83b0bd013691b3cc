"""Where a fragment would begin again, as its commits go by: it only ever moves forward. Without Spark."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from msgspec import structs

import holdfast as hf
from holdfast.durability.checkpoints import Checkpoints, CheckpointSettings
from holdfast.durability.policy_choice import Amounts
from holdfast.engine.options import RunOptions
from holdfast.epoch.record import Base, EpochRecord, new_record
from holdfast.errors import DeclarationError, WrongTypeError
from holdfast.graph.policies import DELTA, NONE, CheckpointPolicy, IntervalPolicy
from holdfast.plan.program import Program, compile_program
from holdfast.pstream import write_punit
from holdfast.state.manifest import Manifest, Piece
from holdfast.store import Private, Tiers


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Run:
    """A fragment that commits an epoch each second, of 5 s of event time; its state is one p-unit per epoch."""

    def __init__(self, place: Path, policy: CheckpointPolicy | None, **settings: object) -> None:
        pipeline = hf.Pipeline("p")
        frame = pl.DataFrame({"ts": [1], "k": [1]})
        events = pipeline.source("in", hf.source.memory(frame), event_time="ts", time_unit="s")
        events.key_by("k").window(hf.window.tumbling("20s"), name="op").agg(n=hf.count()).sink("out", hf.sink.collect())
        self.program: Program = compile_program(pipeline)
        self.tiers = Tiers(place / "state", place / "volatile", sync=False)
        self.clock = Clock()
        given = CheckpointSettings(policy, **settings)  # type: ignore[arg-type]
        self.checkpoints = Checkpoints(
            self.program, self.tiers, given, Private("the only run"), self.clock, lambda report: None
        )
        self.record = new_record(self.program, 1)
        self.checkpoints.begin(self.record, Base(0), {0: self.record}, None)
        self.epoch = 0

    def commit(self, *, rows: int = 10, written: int = 1_000) -> EpochRecord:
        self.epoch += 1
        self.clock.now += 1.0
        unit = write_punit(
            self.tiers.at(self.checkpoints.tier), f"op/t/{self.epoch:012d}.arrow", pl.DataFrame({"x": [1]})
        )
        whole = self.record.routing["op"].interval(0)
        record = structs.replace(
            self.record,
            greatest={"in": 5 * self.epoch},
            positions={"in": {"offset": self.epoch}},
            state={"op": (Manifest(whole, (Piece("t", unit, whole, whole),)),)},
        )
        self.record = structs.replace(record, base=self.checkpoints.base_of(self.epoch, record))
        self.checkpoints.committed(self.epoch, self.record, Amounts(rows, written))
        return self.record

    def settle(self) -> None:
        """Let the copy that is being made be done."""
        if self.checkpoints._job._work is not None:
            self.checkpoints._job._work.result()


def test_delta_never_begins_again(tmp_path: Path) -> None:
    run = Run(tmp_path, DELTA)
    assert {run.commit().base for _ in range(5)} == {None}
    assert run.checkpoints.keep_from == 5
    assert list(run.checkpoints._known) == [5], "what is known of earlier epochs is let go"


def test_interval_begins_again_from_its_last_checkpoint(tmp_path: Path) -> None:
    run = Run(tmp_path, IntervalPolicy(3.0))
    bases = []
    for _ in range(12):
        bases.append(run.commit().base)
        run.settle()
    run.checkpoints.close()
    found = [base.epoch for base in bases if base is not None]
    assert len(found) == 12
    assert found == sorted(found)
    assert set(found) == {0, 3, 6, 9}
    assert run.checkpoints.positions == {"in": {"offset": 9}}


def test_none_begins_again_with_nothing_where_the_oldest_open_window_begins(tmp_path: Path) -> None:
    run = Run(tmp_path, NONE)
    bases = [run.commit().base for _ in range(12)]
    last = bases[-1]
    assert last is not None
    assert last.empty
    # Event time is at 60 after epoch 12; the first open window begins at 60, and epoch 11 ended before it.
    assert last.epoch == 11


def test_a_change_of_policy_never_moves_the_base_back(tmp_path: Path) -> None:
    run = Run(tmp_path, NONE)
    for _ in range(10):
        run.commit()
    before = run.checkpoints.keep_from
    assert before > 0
    run.checkpoints.policy = IntervalPolicy(60.0)
    run.checkpoints._copy_began = run.clock.now
    base = run.commit().base
    assert base == Base(before, empty=True)
    assert run.checkpoints.keep_from == before
    assert run.checkpoints.positions == {"in": {"offset": before}}


def test_the_policy_that_costs_least_is_taken(tmp_path: Path) -> None:
    """All state is new in every epoch, and little of it is left at the end of an interval."""
    run = Run(tmp_path, None, interval=4.0)
    assert run.checkpoints.policy == DELTA
    assert run.checkpoints.reason == "nothing measured yet"
    for _ in range(10):
        run.commit(rows=10, written=10_000_000)
        run.settle()
    run.checkpoints.close()
    assert isinstance(run.checkpoints.policy, IntervalPolicy) or run.checkpoints.policy == NONE
    assert run.checkpoints.reason is not None
    assert "costs least" in run.checkpoints.reason


def test_memory_of_other_machines_holds_no_state(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match="where the others cannot read it"):
        Run(tmp_path, NONE, shared=False)
    run = Run(tmp_path, None, interval=1.0, shared=False)
    for _ in range(5):
        run.commit(written=10_000_000)
    assert run.checkpoints.policy == DELTA


def test_options_may_be_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = RunOptions(store="here", volatile="there", backups=("one",), memory="2 GB")  # type: ignore[arg-type]
    assert options.memory_bytes == 2_000_000_000
    tiers = options.tiers("p", "id")
    assert tiers.volatile == Path("there").resolve() / "id" / "p"
    assert tiers.backups == (Path("one").resolve() / "id" / "p",)
    with pytest.raises((DeclarationError, WrongTypeError), match="memory"):
        RunOptions(memory="much")
