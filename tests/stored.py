"""Running a pipeline without Spark on a real store: plans, commits, leases and changes of code as the driver has them.

`run_stored` may be called again and again, with the same pipeline or a changed one; each call goes on where the one
before it ended. It can be cut after some epochs, or die with an epoch planned and not committed.
"""

from __future__ import annotations

import time
from pathlib import Path

import polars as pl

from harness import WHOLE, Cut, _Run
from holdfast.engine.code_changes import take_changes
from holdfast.engine.epoch_input import Taken, new_plan, obey
from holdfast.engine.lease import LeaseKeeper
from holdfast.epoch.messages import Message
from holdfast.epoch.plan import EpochPlan
from holdfast.epoch.record import EpochRecord
from holdfast.graph.pipeline import Pipeline
from holdfast.meta import Commands, MetaStore


class Killed(BaseException):
    """What a run dies of when the test says so."""


def run_stored(
    pipeline: Pipeline, store: Path, cut: Cut = WHOLE, *, epochs: int = 10_000, die: str | None = None
) -> dict[str, pl.DataFrame]:
    """Run at most so many epochs; the rows of each sink. `die` is `started`, or `planned`: after the first new plan."""
    meta = MetaStore(store, sync=False)
    try:
        with LeaseKeeper(meta, pipeline.name, time.time) as keeper:
            run = _StoredRun(pipeline, cut, store, meta, keeper, die)
            return run.go(epochs)
    except Killed:
        return {}
    finally:
        meta.close()


class _StoredRun(_Run):
    def __init__(
        self, pipeline: Pipeline, cut: Cut, store: Path, meta: MetaStore, keeper: LeaseKeeper, die: str | None
    ) -> None:
        super().__init__(pipeline, cut, store.resolve() / pipeline.name)
        self._stored, self._lease, self._die = meta, keeper.lease, die
        self._committed = take_changes(self._program, meta, keeper.lease, cut.partitions, time.time())
        last = meta.last_commit(pipeline.name)
        if last is not None:
            self._record = self._begin = EpochRecord.decode(last.record)
        self._waiting = [EpochPlan.decode(item.plan) for item in meta.planned(pipeline.name)]
        tail = self._waiting[-1] if self._waiting else None
        self._positions = dict(tail.positions if tail else self._record.positions)
        self._done = dict(tail.done if tail else self._record.done)
        if die == "started":
            raise Killed

    def go(self, epochs: int) -> dict[str, pl.DataFrame]:
        for _ in range(epochs):
            epoch = self._committed + 1
            plan = self._waiting.pop(0) if self._waiting else self._plan()
            if plan is None:
                break
            plan = EpochPlan.decode(self._stored.plan(self._lease, epoch, plan.encoded_as, time.time()))
            if self._die == "planned":
                raise Killed
            self._run_epoch(epoch, plan)
            self._committed = epoch
        return {
            node.name: pl.concat(frames) if (frames := self._rows[node.name]) else pl.DataFrame(schema=node.schema)
            for node in self._program.sinks
        }

    def _plan(self) -> EpochPlan | None:
        plan = super()._plan()
        if plan is None:
            return None
        commands = Commands(self._stored)
        tasks = plan.tasks[0]
        obeyed = obey(self._program, commands.waiting(self._program.name), plan.routing, tasks, self._committed + 1)
        for number, answer in obeyed.answers.items():
            commands.answer(self._lease, number, answer.encode(), time.time())
        taken = Taken(plan.slices, dict(plan.positions), dict(plan.done), dict(plan.open))
        return new_plan(self._program, taken, tasks, obeyed.routing, plan.now)

    def _commit(self, epoch: int, plan: EpochPlan, messages: list[Message]) -> None:
        super()._commit(epoch, plan, messages)
        assert self._stored.commit(self._lease, epoch, self._record.encode(), time.time())
