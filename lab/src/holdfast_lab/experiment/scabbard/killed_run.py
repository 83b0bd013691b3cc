"""The run that the `recovery` experiment kills: a query on an input that arrives at a fixed rate, whoever reads it.

`python -m holdfast_lab.experiment.scabbard.killed_run SETTINGS` where SETTINGS is the `VictimSettings` of chaos as
JSON, with the file of a pickled source as `input` and the seconds in which an epoch's rows arrive as `pause`. Like the
victim of chaos it writes what happens to a file of JSON lines; beyond that, the steps of its start, its recovery and
every take.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.connect.sinks.file_sink import parquet
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.options import RunOptions
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.graph.policies import DELTA
from holdfast_lab.chaos.run_events import EventWriter, WriteEvent, run_with_events
from holdfast_lab.chaos.victim import VictimSettings
from holdfast_lab.chaos.victim_process import VictimProcess
from holdfast_lab.experiment.arriving_source import ArrivingSource
from holdfast_lab.workloads.queries import query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["KilledProcess", "epoch_options"]


def epoch_options(store: Path, rows: int) -> RunOptions:
    """Epochs of exactly so many rows."""
    return RunOptions(store=store, least_rows=rows, most_rows=rows, poll=0.005, checkpoint=DELTA)


class KilledProcess(VictimProcess):
    """The process as its parent sees it; started, watched and killed like a victim of chaos."""

    module = "holdfast_lab.experiment.scabbard.killed_run"


def main(settings: VictimSettings) -> int:
    """Run the query to the end of its input, wherever an earlier process has left it."""

    def prepare(tell: WriteEvent) -> Callable[[SparkSession], object]:
        source = ArrivingSource(
            pickle.loads(Path(settings.input).read_bytes()),
            settings.epoch_rows,
            settings.pause,
            on_take=lambda number, arrived: tell("taken", number=number, arrived=arrived),
        )
        pipeline = query(settings.query).build(source, parquet(settings.output), pipeline_name="victim")
        return lambda spark: FragmentRun(
            pipeline,
            SparkPlatform(spark),
            epoch_options(settings.store, settings.epoch_rows),
            observer=EventWriter(tell),
        ).run()

    return run_with_events(settings.events, prepare, app="holdfast recovery", warm=Path(settings.home) / "warm")


if __name__ == "__main__":
    sys.exit(main(VictimSettings(**json.loads(sys.argv[1]))))
