"""From reports of epochs to decisions that are carried out; and the coordinator's steps, one after the other."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import holdfast as hf
from holdfast.engine.scaling_rules import Scaling, ScalingDecision
from holdfast.epoch.record import new_record
from holdfast.epoch.report import EpochReport
from holdfast.epoch.task_commit import PartitionWork
from holdfast.errors import DeclarationError, HoldfastError, ScaleAbortedError
from holdfast.hidden_columns import POSITION
from holdfast.meta import Commands, MetaStore
from holdfast.plan.program import Program, compile_program
from holdfast.plan.scale_command import ScaleAnswer, ScaleCommand
from holdfast.plan.scaled_routing import rerouted, retasked
from holdfast.scale.autoscaler import Autoscaler
from holdfast.scale.coordinator import STEPS, Coordinator
from holdfast.scale.policy import ScaleAction
from holdfast.state.key_load import measure
from holdfast.state.position import key_positions
from holdfast.state.routing import Routing
from observers import watching
from stored_texts import commit_epoch, plan_epoch, plan_text

NONE = dict.fromkeys(
    ["output_rows", "late_rows", "bad_rows", "state_rows", "state_bytes", "written_bytes", "streamed_rows"], 0
)


def work(routing: Routing, cpu: float, keys: list[int]) -> tuple[PartitionWork, ...]:
    """An epoch's work, CPU seconds by the number of rows."""
    column = pl.Series("k", keys, dtype=pl.Int64)
    rows = pl.DataFrame([column, pl.Series(POSITION, key_positions([column]))])
    parts = routing.assign(rows[POSITION].to_numpy())
    frames = [rows.filter(parts == number) for number in range(routing.partitions)]
    return tuple(
        PartitionWork(cpu * frame.height / len(keys), frame.height, measure([frame], ["k"], routing.interval(number)))
        for number, frame in enumerate(frames)
    )


def report(epoch: int, parts: tuple[PartitionWork, ...], fragment: str = "p", **more: Any) -> EpochReport:
    return EpochReport(
        fragment=fragment, epoch=epoch, rows=0, entered=0, started=epoch - 1.0, committed=float(epoch), seconds=1.0,
        greatest={"in": None}, watermark=None, lag=None, streamed_bytes=0, work={"counts": parts}, **NONE, **more,
    )  # fmt: skip


class Running:
    """A pipeline that does as it is told, at once or not at all."""

    def __init__(self, scaling: Scaling, refuse: HoldfastError | None = None) -> None:
        self.routing = Routing()
        self.refuse = refuse
        self.told: list[ScalingDecision] = []
        self.epoch = 0
        self.scaler = Autoscaler(
            scaling, 4, self.act, observer=watching(scaling_decided=self.told.append), background=lambda work: work()
        )

    def act(self, fragment: str, scale: ScaleAction) -> int:
        if self.refuse is not None:
            raise self.refuse
        assert scale.bounds is not None
        self.routing = Routing(scale.bounds)
        return self.epoch + 1

    def run(self, epochs: int, cpu: float, keys: list[int], fragment: str = "p") -> None:
        for _ in range(epochs):
            self.epoch += 1
            self.scaler.epoch_committed(report(self.epoch, work(self.routing, cpu, keys), fragment))


def test_an_operator_that_is_too_busy_for_two_reports_is_split() -> None:
    running = Running(Scaling(report=2.0))
    running.run(3, 0.9, list(range(500)))
    assert running.routing.partitions == 1
    running.run(1, 0.9, list(range(500)))
    assert running.routing.partitions == 2
    [decision] = running.scaler.log
    assert decision.epoch == 5
    assert str(decision).startswith("scaling counts of p: 1 → 2; partition 0 used 0.90 of a CPU")
    assert [told.epoch for told in running.told] == [None, 5]
    running.run(40, 0.9, list(range(500)))
    assert len(running.scaler.log) == 1


def test_a_hot_key_is_isolated_and_then_left_alone() -> None:
    running = Running(Scaling(report=1.0, cooldown=3.0))
    running.run(60, 1.6, [7] * 700 + list(range(300)))
    place = int(key_positions([pl.Series([7])])[0])
    assert {place, place + 1} <= set(running.routing.bounds)
    reasons = [decision.reason for decision in running.scaler.log]
    assert sum("key k=7 (70% of the rows)" in reason for reason in reasons) == 1
    assert "key k=7, which cannot be split further" in reasons[-1]
    assert not running.scaler.log[-1].acts
    assert str(running.scaler.log[-1]).startswith("scaling counts of p: stays at ")


def test_epochs_that_were_planned_before_a_change_are_not_decided_on_again() -> None:
    """Two epochs may be in flight: the one before the change is committed when the change is answered already."""
    running = Running(Scaling(report=1.0, cooldown=0.0, reports=1))
    before = running.routing
    running.act = lambda fragment, scale: 5  # type: ignore[method-assign]
    running.scaler._act = running.act
    for epoch in (1, 2, 3, 4):
        running.scaler.epoch_committed(report(epoch, work(before, 0.9, list(range(500)))))
    assert len(running.scaler.log) == 1
    running.scaler.epoch_committed(report(5, work(before, 0.9, list(range(500)))))
    assert len(running.scaler.log) == 2


def test_what_is_given_up_is_told_and_tried_again_after_the_pause() -> None:
    running = Running(Scaling(report=1.0, cooldown=5.0), ScaleAbortedError("no", cure="wait"))
    running.run(5, 0.9, list(range(100)))
    assert [decision.problem for decision in running.scaler.log] == ["no"]
    assert str(running.scaler.log[0]).endswith("(not done: no)")
    running.run(10, 0.9, list(range(100)))
    assert len(running.scaler.log) > 1


def test_what_is_refused_is_not_asked_for_again() -> None:
    running = Running(Scaling(report=1.0, cooldown=5.0), DeclarationError("no", cure="change the pipeline"))
    running.run(40, 0.9, list(range(100)))
    assert [decision.problem for decision in running.scaler.log] == ["no"]


def test_fragments_are_reported_on_their_own() -> None:
    running = Running(Scaling(report=2.0))
    for _ in range(6):
        running.epoch += 1
        busy, idle = work(Routing(), 0.9, [1, 2, 3]), work(Routing(), 0.1, [1, 2, 3])
        running.scaler.epoch_committed(report(running.epoch, busy, "p.busy"))
        running.scaler.epoch_committed(report(running.epoch, idle, "p.idle"))
    assert {decision.fragment for decision in running.scaler.log} == {"p.busy"}


def test_tasks_that_read_are_scaled_under_their_sources_name() -> None:
    asked: list[ScaleAction] = []

    def act(fragment: str, scale: ScaleAction) -> int:
        asked.append(scale)
        return 1

    for sources in (True, False):
        scaler = Autoscaler(Scaling(report=1.0, sources=sources), 4, act, background=lambda work: work())
        for epoch in range(1, 5):
            scaler.epoch_committed(report(epoch, (), reading=(PartitionWork(0.9, 10), PartitionWork(0.5, 10))))
    assert [(scale.operator, scale.before, scale.partitions) for scale in asked] == [("in", 2, 3)]


# commands


def program(name: str = "p") -> Program:
    pipeline = hf.Pipeline(name)
    rows = pipeline.source("in", hf.source.memory(pl.DataFrame({"ts": [1], "k": [1]})), event_time="ts", time_unit="s")
    rows.key_by("k").window(hf.window.tumbling("10s"), name="counts").agg(n=hf.count()).sink("out", hf.sink.collect())
    return compile_program(pipeline)


def test_a_command_may_say_where_partitions_begin() -> None:
    command = ScaleCommand.decode(ScaleCommand("counts", 3, (0, 5, 6), "hot").encode())
    assert rerouted(program(), {}, command) == {"counts": Routing((0, 5, 6))}


@pytest.mark.parametrize("bounds", [(0, 5), (1, 5, 6), (0, 6, 5), (0, 5, 5), (0, 5, 1 << 64)])
def test_bounds_that_are_none_are_refused(bounds: tuple[int, ...]) -> None:
    with pytest.raises(DeclarationError, match="no bounds of 3 partitions"):
        rerouted(program(), {}, ScaleCommand("counts", 3, bounds))


@pytest.mark.parametrize(
    "text",
    ["", "7", "{}", '{"do": "dance"}', '{"do": "scale", "operator": "counts", "partitions": 3, "bounds": ["0"]}'],
)
def test_a_command_that_nobody_knows_is_refused(text: str) -> None:
    with pytest.raises(DeclarationError, match="cannot do"):
        ScaleCommand.decode(text)


def test_a_command_that_names_a_source_sets_the_tasks_that_read() -> None:
    assert retasked(program(), ScaleCommand("in", 3)) == 3
    assert retasked(program(), ScaleCommand("counts", 3)) is None
    with pytest.raises(DeclarationError, match="1 to 1024"):
        retasked(program(), ScaleCommand("in", 0))


# the coordinator


class Pool:
    def __init__(self, most: int = 99) -> None:
        self.most, self.held = most, 0

    def acquire(self, executors: int) -> None:
        if self.held + executors > self.most:
            raise HoldfastError("no executors left", cure="wait")
        self.held += executors

    def release(self, executors: int) -> None:
        self.held -= executors


class Driver:
    """Does with commands what the driver does: plan, answer, commit. Each epoch takes no time."""

    def __init__(self, meta: MetaStore) -> None:
        self._meta, self._program = meta, program()
        self._lease = meta.acquire("p", "test", 0.0, 1e9)
        self._record = new_record(self._program, 2)
        self._epoch = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self.epoch()
        self._thread.start()

    def stop(self) -> None:
        """Returns when no epoch is under way any more."""
        self._stopped.set()
        self._thread.join()

    def epoch(self) -> None:
        self._epoch += 1
        commands = Commands(self._meta)
        routing = dict(self._record.routing)
        for command in commands.waiting("p"):
            try:
                routing = rerouted(self._program, routing, ScaleCommand.decode(command.what))
                answer = ScaleAnswer(self._epoch)
            except HoldfastError as error:
                answer = ScaleAnswer.refused(error)
            commands.answer(self._lease, command.number, answer.encode(), 0.0)
        self._record = self._record.routed(routing)
        plan_epoch(self._meta, self._lease, self._epoch, plan_text({}), 0.0)
        commit_epoch(self._meta, self._lease, self._epoch, self._record.encode(), 0.0)

    def _run(self) -> None:
        while not self._stopped.wait(0.01):
            self.epoch()

    @property
    def partitions(self) -> int:
        return self._record.routing["counts"].partitions


@pytest.fixture
def driver(tmp_path: Path) -> Any:
    meta = MetaStore(tmp_path, sync=False)
    driver = Driver(meta)
    driver.start()
    yield driver
    driver.stop()
    meta.close()


def test_the_steps_are_those_of_the_algorithm_in_order(driver: Driver, tmp_path: Path) -> None:
    steps: list[str] = []
    pool = Pool()
    meta = MetaStore(tmp_path, sync=False)
    coordinator = Coordinator(meta, pool, on_step=steps.append, pause=0.01)
    epoch = coordinator.scale_out_operator("p", "counts", 5, reason="test")
    assert epoch > 1
    assert tuple(steps) == STEPS
    assert (driver.partitions, pool.held) == (5, 3)
    coordinator.scale_out_operator("p", "counts", 1)
    assert (driver.partitions, pool.held) == (1, -1)
    meta.close()


@pytest.mark.parametrize("step", STEPS[:4])
def test_a_step_that_fails_gives_back_what_was_acquired(driver: Driver, tmp_path: Path, step: str) -> None:
    pool = Pool()
    meta = MetaStore(tmp_path, sync=False)

    def fail(name: str) -> None:
        if name == step:
            raise RuntimeError(name)

    with pytest.raises(RuntimeError, match=step):
        Coordinator(meta, pool, on_step=fail, pause=0.01).scale_out_operator("p", "counts", 5)
    assert (driver.partitions, pool.held) == (2, 0)
    meta.close()


def test_what_is_refused_or_not_taken_up_changes_nothing(driver: Driver, tmp_path: Path) -> None:
    pool = Pool(most=3)
    meta = MetaStore(tmp_path, sync=False)
    coordinator = Coordinator(meta, pool, pause=0.01, wait=0.1)
    with pytest.raises(HoldfastError, match="no executors left"):
        coordinator.scale_out_operator("p", "counts", 9)
    with pytest.raises(HoldfastError, match="are no bounds of 3 partitions"):
        coordinator.scale_out_operator("p", "counts", 3, (0, 2, 1))
    driver.stop()
    with pytest.raises(ScaleAbortedError, match="no epoch started"):
        coordinator.scale_out_operator("p", "counts", 3)
    assert not Commands(meta).waiting("p")
    coordinator.ending = True
    with pytest.raises(ScaleAbortedError, match="the run ended"):
        coordinator.scale_out_operator("p", "counts", 3)
    assert (driver.partitions, pool.held) == (2, 0)
    meta.close()


def test_what_an_observer_raises_while_a_decision_is_carried_out_is_raised_by_the_next_epoch() -> None:
    running = Running(Scaling(report=1.0))

    def fail_when_done(decision: ScalingDecision) -> None:
        if decision.epoch is not None:
            raise ValueError("of the observer")

    running.scaler = Autoscaler(
        Scaling(report=1.0), 4, running.act, observer=watching(scaling_decided=fail_when_done),
        background=lambda work: work(),
    )  # fmt: skip
    running.run(2, 0.9, list(range(500)))
    assert [decision.after for decision in running.scaler.log] == [2]
    with pytest.raises(ValueError, match="of the observer"):
        running.run(1, 0.9, list(range(500)))
    running.run(1, 0.1, list(range(500)))
