"""A process that runs a pipeline, has it scaled, and dies by SIGKILL at a given point of that.

`python victim.py HOME POINT PARTITIONS`. The points are those steps of the change after which the store, or what is
under way, is different.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import holdfast as hf
from commits import around_commits
from holdfast.engine import planner
from holdfast.engine.epoch_input import Obeyed
from holdfast.epoch.report import EpochReport
from holdfast.epoch.transaction import Transaction
from holdfast.meta import Lease, MetaStore
from holdfast.scale.coordinator import Coordinator
from holdfast.spark.executor_switch import ExecutorSwitch

POINTS = (
    "get-new-executors",  # of the coordinator: nothing was asked yet
    "obeyed",  # the driver has the new routing in memory
    "planned",  # and in a plan; the command is not answered
    "partition-buffer-state",  # of the coordinator: it has its answer
    "handed over",  # the tasks can restore their parts of the state
    "before commit",
    "after commit",
)
STORED = ("handed over",)
"""What an ordinary run of the tests tries; the others with HOLDFAST_FUZZ."""
ROWS, EPOCHS = 300, 48 if os.environ.get("HOLDFAST_FUZZ") else 16


def build(out: Path) -> hf.Pipeline:
    frames = [
        pl.DataFrame({"ts": range(at, at + ROWS), "k": [i * 7 % 53 for i in range(ROWS)], "v": range(ROWS)})
        for at in range(0, EPOCHS * ROWS, ROWS)
    ]
    pipeline = hf.Pipeline("victim")
    rows = pipeline.source("in", hf.source.memory(frames, epochs=True), event_time="ts", time_unit="s")
    counts = rows.key_by("k").window(hf.window.sliding("900s", "300s"), name="counts").agg(n=hf.count(), v=hf.sum("v"))
    counts.sink("out", hf.sink.parquet(out))
    return pipeline


class Death:
    """Dies at its point, once a command to scale is being carried out."""

    def __init__(self, point: str) -> None:
        self.point = point
        self.epoch: int | None = None

    def reached(self, point: str) -> None:
        if point == self.point:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        real = planner.obey

        def watched(*args: Any) -> Obeyed:
            obeyed = real(*args)
            self._obeyed(args[-1], obeyed.answers)
            return obeyed

        planner.obey = watched
        self._planned()
        self._around(ExecutorSwitch, "hand_over", after=lambda epoch, _: self._at(epoch, "handed over"))
        around_commits(
            before=lambda _, __, epoch: self._at(epoch, "before commit"),
            after=lambda _, __, epoch: self._at(epoch, "after commit"),
        )

    def _planned(self) -> None:
        """After the transaction that writes a plan, with its answers, is committed."""
        real = planner.committing

        @contextlib.contextmanager
        def watched(meta: MetaStore, lease: Lease, epoch: int | None = None, **named: bool) -> Iterator[Transaction]:
            with real(meta, lease, epoch, **named) as transaction:
                yield transaction
            if epoch is not None:
                self._at(epoch, "planned")

        planner.committing = watched

    def _obeyed(self, epoch: int, answers: dict[int, Any]) -> None:
        if answers:
            self.epoch = epoch
            self.reached("obeyed")

    def _at(self, epoch: int, point: str) -> None:
        if epoch == self.epoch:
            self.reached(point)

    def _around(
        self,
        kind: type,
        name: str,
        *,
        before: Callable[[int], None] = lambda epoch: None,
        after: Callable[[int, Any], None] = lambda epoch, result: None,
        number: int = 0,
    ) -> None:
        """Look on at a method; `number` is where the epoch is among its arguments."""
        real = getattr(kind, name)

        def watched(self: Any, *args: Any, **named: Any) -> Any:
            before(args[number])
            result = real(self, *args, **named)
            after(args[number], result)
            return result

        setattr(kind, name, watched)


def main(home: Path, point: str, partitions: int) -> None:
    death = Death(point)
    death.watch()
    scaled(home, partitions, death.reached)


def scaled(
    home: Path, partitions: int, on_step: Callable[[str], None] = lambda step: None, spark: SparkSession | None = None
) -> None:
    """A run to the end of the input that is asked for another number of partitions after its first epoch."""
    meta = MetaStore(home / "store")
    coordinator = Coordinator(meta, on_step=on_step, pause=0.01)
    scaling = threading.Thread(
        target=coordinator.scale_out_operator, args=("victim", "counts", partitions), daemon=True
    )

    class Starting(hf.Observer):
        def epoch_committed(self, report: EpochReport) -> None:
            if not scaling.ident:
                scaling.start()

    hf.run(build(home / "out"), spark=spark, store=home / "store", partitions=2, observer=Starting())
    scaling.join(60)
    meta.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
