"""A host of the word count, as a process that can be lost: the word counter, the splitter before it, or both.

`python -m holdfast.experiment.host SETTINGS` where SETTINGS is a `HostSettings` as JSON. Like the run that the
`recovery` experiment kills, it tells of the steps of its start, of recovery, takes, commits and checkpoints in a file
of JSON lines. Losing the host is kill -9 of the process with all it started, and the loss of its volatile directory.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from holdfast.chaos.process import VictimProcess
from holdfast.chaos.telling import Tell, commit_facts, recovery_facts, telling_run
from holdfast.chaos.victim import VictimSettings
from holdfast.connect.file_sink import parquet
from holdfast.epoch.checkpoints import CheckpointReport
from holdfast.epoch.driver import RunOptions
from holdfast.experiment.killed import ArrivingSource
from holdfast.graph.pipeline import Pipeline
from holdfast.graph.policies import as_policy
from holdfast.workloads.words import COUNTS, SPLIT, WORDS_PER_FRAGMENT, Fragments, fragments, word_count

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["HostProcess", "HostSettings", "Role"]

Role = Literal["all", "split", "counts"]
_WINDOW_SECONDS = 30


@dataclass(frozen=True, slots=True)
class HostSettings(VictimSettings):
    """`role` says which part of the pipeline runs here: all of it in one piece, or one of the two fragments of a
    pipeline that is cut behind the splitter. `ahead` seconds of input are there at the start."""

    role: Role = "all"
    policy: str = "delta"
    words: int = 10_000
    seed: int = 0
    ahead: float = _WINDOW_SECONDS
    recovery_partitions: int | None = None
    until_idle: bool = False

    @staticmethod
    def of(home: Path, rate: float, policy: str, *, pause: float = 1.0, words: int = 10_000, seed: int = 0,
           role: Role = "all", partitions: int = 2) -> HostSettings:  # fmt: skip
        """Fragments come at `rate` per second, in epochs of `pause` seconds of event time."""
        return HostSettings(
            query="words", rows=0, epoch_rows=max(1, round(rate * pause)), pause=pause, home=str(home), input="",
            partitions=partitions, role=role, policy=policy, words=words, seed=seed,
        )  # fmt: skip

    @property
    def rate(self) -> float:
        return self.epoch_rows / self.pause

    @property
    def events(self) -> Path:
        return Path(self.home) / f"events-{self.role}.jsonl"

    @property
    def volatile(self) -> Path:
        return Path(self.home) / f"volatile-{self.role}"

    @property
    def made(self) -> Fragments:
        return Fragments(self.words, self.rate, self.seed)

    def pipeline(self, source: ArrivingSource) -> Pipeline:
        return word_count(source, parquet(self.output), cut=self.role != "all")

    def options(self) -> RunOptions:
        """Epochs of exactly the rows of one take; of one entry of the p-stream behind the cut."""
        rows = self.epoch_rows * (WORDS_PER_FRAGMENT if self.role == "counts" else 1)
        return RunOptions(
            store=self.store,
            partitions=self.partitions,
            least_rows=rows,
            most_rows=rows,
            poll=0.02,
            checkpoint=as_policy(self.policy),
            volatile=self.volatile,
            recovery_partitions=self.recovery_partitions,
            until_idle=self.until_idle,
        )

    def in_role(self, role: Role) -> HostSettings:
        """Another host of the same pipeline. The splitter has no state."""
        return replace(self, role=role, policy="delta" if role == "split" else self.policy)


class HostProcess(VictimProcess):
    """The process as its parent sees it."""

    settings: HostSettings

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.started_at = time.time()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.experiment.host", self.settings.to_json()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "TMPDIR": str(self._temporary)},
                start_new_session=True,
            )

    def lose(self) -> None:
        """The host is gone, with what it held in memory."""
        self.kill_all()
        shutil.rmtree(self.settings.volatile, ignore_errors=True)


def _checkpointed(report: CheckpointReport) -> Mapping[str, object]:
    return {"epoch": report.epoch, "bytes": report.bytes, "seconds": report.seconds}


def main(settings: HostSettings) -> int:
    """Run until somebody kills it, wherever an earlier process has left it."""
    from holdfast.epoch.fragments import FragmentsRun

    def prepare(tell: Tell) -> Callable[[SparkSession], object]:
        source = ArrivingSource(
            fragments(settings.made),
            settings.epoch_rows,
            settings.pause,
            on_take=lambda number, arrived: tell("taken", number=number, arrived=arrived),
            ahead=round(settings.ahead / settings.pause),
        )
        only = {"all": (), "split": (SPLIT,), "counts": (COUNTS,)}[settings.role]
        return lambda spark: FragmentsRun(
            settings.pipeline(source),
            spark,
            settings.options(),
            only=only,
            on_epoch=lambda report: tell("commit", **commit_facts(report)),
            on_recovery=lambda report: tell("recovered", **recovery_facts(report)),
            on_checkpoint=lambda report: tell("checkpoint", **_checkpointed(report)),
        ).run()

    place = Path(settings.home) / f"warm-{settings.role}"
    return telling_run(settings.events, prepare, app="holdfast word count", warm=place)


if __name__ == "__main__":
    sys.exit(main(HostSettings(**json.loads(sys.argv[1]))))
