"""A host of the word count, as a process that can be lost: the word counter, the splitter before it, or both.

`python -m holdfast_lab.experiment.seep.word_count_host SETTINGS` where SETTINGS is a `WordCountSettings` as JSON. Like
the run that the `recovery` experiment kills, it writes the steps of its start, recovery, takes, commits and checkpoints
to a file of JSON lines. Losing the host is kill -9 of the process with all it started, and the loss of its volatile
directory.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pyspark.sql import SparkSession

from holdfast.connect.sinks.file_sink import parquet
from holdfast.engine.fragment_runs import FragmentsRun
from holdfast.engine.options import RunOptions
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.graph.pipeline import Pipeline
from holdfast.graph.policies import as_policy
from holdfast_lab.chaos.run_events import EventWriter, WriteEvent, run_with_events
from holdfast_lab.chaos.victim import VictimSettings
from holdfast_lab.chaos.victim_process import VictimProcess
from holdfast_lab.experiment.arriving_source import ArrivingSource
from holdfast_lab.workloads.words import COUNTS, SPLIT, WORDS_PER_FRAGMENT, Fragments, fragments, word_count

__all__ = ["Role", "WordCountHost", "WordCountSettings"]

Role = Literal["all", "split", "counts"]
_WINDOW_SECONDS = 30


@dataclass(frozen=True, slots=True)
class WordCountSettings(VictimSettings):
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
           role: Role = "all", partitions: int = 2) -> WordCountSettings:  # fmt: skip
        """Fragments come at `rate` per second, in epochs of `pause` seconds of event time."""
        return WordCountSettings(
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

    def in_role(self, role: Role) -> WordCountSettings:
        """Another host of the same pipeline. The splitter has no state."""
        return replace(self, role=role, policy="delta" if role == "split" else self.policy)


class WordCountHost(VictimProcess):
    """The process as its parent sees it."""

    settings: WordCountSettings
    module = "holdfast_lab.experiment.seep.word_count_host"


def main(settings: WordCountSettings) -> int:
    """Run until somebody kills it, wherever an earlier process has left it."""

    def prepare(tell: WriteEvent) -> Callable[[SparkSession], object]:
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
            SparkPlatform(spark),
            settings.options(),
            only=only,
            observer=EventWriter(tell),
        ).run()

    place = Path(settings.home) / f"warm-{settings.role}"
    return run_with_events(settings.events, prepare, app="holdfast word count", warm=place)


if __name__ == "__main__":
    sys.exit(main(WordCountSettings(**json.loads(sys.argv[1]))))
