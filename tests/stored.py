"""Running a pipeline without Spark on a real store: plans, commits, leases and changes of code as the driver has them.

`run_stored` may be called again and again, with the same pipeline or a changed one; each call goes on where the one
before it ended. It can be cut after some epochs, or die with an epoch planned and not committed.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import polars as pl

from harness import WHOLE, Cut, _Run
from holdfast.epoch.changes import take_changes
from holdfast.epoch.lease import LeaseKeeper
from holdfast.epoch.messages import Message
from holdfast.epoch.planning import new_plan, obey
from holdfast.epoch.record import EpochRecord
from holdfast.graph.pipeline import Pipeline
from holdfast.meta import Commands, MetaStore
from holdfast.state.routing import Routing


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
            self._record = self._begin = EpochRecord.from_json(last.record)
        self._waiting = [item.plan for item in meta.planned(pipeline.name)]
        tail = self._waiting[-1] if self._waiting else None
        self._positions = dict(tail["positions"] if tail else self._record.positions)
        self._done = dict(tail["done"] if tail else self._record.done)
        if die == "started":
            raise Killed

    def go(self, epochs: int) -> dict[str, pl.DataFrame]:
        for _ in range(epochs):
            epoch = self._committed + 1
            plan = self._waiting.pop(0) if self._waiting else self._plan()
            if plan is None:
                break
            plan = dict(self._stored.plan(self._lease, epoch, plan, time.time()))
            if self._die == "planned":
                raise Killed
            self._run_epoch(epoch, plan)
            self._committed = epoch
        return {
            node.name: pl.concat(frames) if (frames := self._rows[node.name]) else pl.DataFrame(schema=node.schema)
            for node in self._program.sinks
        }

    def _plan(self) -> dict[str, Any] | None:
        plan = super()._plan()
        if plan is None:
            return None
        commands = Commands(self._stored)
        routing = {name: Routing.from_json(bounds) for name, bounds in plan["routing"].items()}
        tasks = plan["tasks"][0]
        obeyed = obey(self._program, commands.waiting(self._program.name), routing, tasks, self._committed + 1)
        for number, answer in obeyed.answers.items():
            commands.answer(self._lease, number, answer, time.time())
        return new_plan(self._program, plan, tasks, obeyed.routing)

    def _commit(self, epoch: int, plan: dict[str, Any], messages: list[Message]) -> None:
        super()._commit(epoch, plan, messages)
        assert self._stored.commit(self._lease, epoch, self._record.to_json(), time.time())
