"""Every connector beside Structured Streaming's, in one run: YSB from the connector, and a copy of its rows into it.

The input is the same for all of them, with all that starting and ending a run takes. "source" is YSB over the events
that are there, "sink" a copy of the events from Parquet files into a new table. Holdfast's runs come first, then those
of Structured Streaming, each with its connector for the system in a session of its own that has run the same before;
where a connector does not run on this Spark, the table has its error, and a line for what is nearest. What a library
does alone, in this process and without a guarantee, is there for tables.

Rows that a sink has written are counted by a reader of the system; fewer or more are an error.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shutil import rmtree
from statistics import median
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from holdfast.connect.sinks.file_sink import parquet
from holdfast.connect.sources.files import files
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.errors import HoldfastError
from holdfast.graph.pipeline import Pipeline
from holdfast_lab.bench.bench_figures import Reports
from holdfast_lab.bench.connector_peers import PEERS, Reading, Writing
from holdfast_lab.bench.connector_places import Connector
from holdfast_lab.bench.database_speed import measure_database
from holdfast_lab.bench.query_runs import BenchOptions, session
from holdfast_lab.experiment.definition import Bar, at_least
from holdfast_lab.experiment.scabbard.jars import fetch
from holdfast_lab.workloads.queries import query
from holdfast_lab.workloads.spark_queries import spark_query
from holdfast_lab.workloads.spark_run import seconds_for_all

__all__ = [
    "CONNECTORS",
    "ROUNDS",
    "ROWS",
    "ConnectorRun",
    "ConnectorSpeed",
    "compare_dictionaries",
    "measure_alone",
    "measure_connectors",
    "measure_peers",
]

CONNECTORS = tuple(PEERS)
ROWS = 1_000_000
ROUNDS = 3
TIMES_SPARK = 3.0
"""From Kafka: rows per second over those of Structured Streaming, at least."""
TIMES_DICTIONARIES = 10.0
"""Into PostgreSQL: rows per second over those of a dictionary per row, at least."""
_HOLDFAST = "holdfast"
_MOST_TOLD = 160
_RAISED = re.compile(r"^\s*(?:Caused by: |: )?([\w.$]+(?:Exception|Error)\b.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ConnectorRun:
    """One run, or why there is none."""

    connector: str
    direction: str
    engine: str
    rows: int
    rows_per_s: float | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ConnectorSpeed:
    """All runs, and how many times as fast the sink of PostgreSQL is as row dictionaries."""

    runs: tuple[ConnectorRun, ...]
    dictionaries: float | None

    def speed(self, connector: str, direction: str, engine: str) -> float | None:
        """The median."""
        asked = (connector, direction, engine)
        of = [run for run in self.runs if (run.connector, run.direction, run.engine) == asked]
        found = [run.rows_per_s for run in of if run.rows_per_s is not None]
        return median(found) if found else None

    def table(self) -> list[dict[str, Any]]:
        """`times` is Holdfast's speed over that of the line."""
        lines = dict.fromkeys((run.connector, run.direction, run.engine) for run in self.runs)
        found = []
        for connector, direction, engine in sorted(lines, key=lambda line: CONNECTORS.index(line[0])):
            speed, mine = self.speed(connector, direction, engine), self.speed(connector, direction, _HOLDFAST)
            of = [
                run for run in self.runs if (run.connector, run.direction, run.engine) == (connector, direction, engine)
            ]
            found.append(
                {
                    "connector": connector,
                    "direction": direction,
                    "engine": engine,
                    "rows": of[-1].rows,
                    "krows_per_s": None if speed is None else round(speed / 1e3),
                    "times": None if speed is None or mine is None else round(mine / speed, 2),
                    "error": of[-1].error,
                }
            )
        return found

    def bars(self) -> list[Bar]:
        """Those of connectors that were measured."""
        named = {run.connector for run in self.runs}
        mine, other = (self.speed("kafka", "source", engine) for engine in (_HOLDFAST, "Structured Streaming"))
        found = []
        if "kafka" in named:
            ratio = round(mine / other, 2) if mine and other else None
            found.append(at_least("from Kafka, over Structured Streaming", ratio, TIMES_SPARK))
        if "postgresql" in named:
            name = "into PostgreSQL, over row dictionaries"
            found.append(at_least(name, self.dictionaries, TIMES_DICTIONARIES))
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "query": "connectors",
            "table": self.table(),
            "runs": [asdict(run) for run in self.runs],
            "bars": [asdict(bar) for bar in self.bars()],
        }


Say = Callable[[str], None]


def measure_connectors(
    spark: SparkSession, connectors: Sequence[Connector], options: BenchOptions, place: Path, say: Say,
    rounds: int = ROUNDS,
) -> list[ConnectorRun]:  # fmt: skip
    """Holdfast, in turns."""
    runs = []
    for number in range(-1, rounds):  # the first one warms up
        for connector in connectors:
            for direction, pipeline in (("source", _reading(connector, place)), ("sink", _writing(connector, number))):
                seconds = _timed(spark, pipeline, connector, options, place)
                _check_written(connector, direction, _table(_HOLDFAST, number))
                runs += _counted(number, _run(connector, direction, _HOLDFAST, seconds), say)
    return runs


def _reading(connector: Connector, place: Path) -> Pipeline:
    out = place / "holdfast" / "out"
    return query("YSB").build(connector.source(), parquet(out), pipeline_name=f"from-{connector.name}")


def _writing(connector: Connector, number: int) -> Pipeline:
    pipeline = Pipeline(f"into-{connector.name}")
    events = pipeline.source("events", files(connector.events.directory, "parquet", connector.events.schema))
    events.sink("copied", connector.sink(_table(_HOLDFAST, number)))
    return pipeline


def _table(engine: str, number: int) -> str:
    """A new one for each run."""
    return f"{engine}_{number + 1}"


def _timed(spark: SparkSession, pipeline: Pipeline, connector: Connector, options: BenchOptions, place: Path) -> float:
    """With all that starting and ending it takes, as of Spark's queries."""
    home = place / "holdfast"
    rmtree(home, ignore_errors=True)
    settings = replace(options.run_options(home, 20_000, 1_000_000_000), until_idle=True)
    reports = Reports()
    made = FragmentRun(pipeline, SparkPlatform(spark), settings, observer=reports)
    began = time.perf_counter()
    made.run()
    seconds = time.perf_counter() - began
    read = sum(report.rows for report in reports.epochs)
    if read != connector.events.rows:
        raise HoldfastError(
            f"{read} of {connector.events.rows} rows were read from {connector.name}",
            cure="report this: rows are lost or doubled",
        )
    return seconds


def _check_written(connector: Connector, direction: str, table: str) -> None:
    if direction == "sink" and (found := connector.written(table)) != connector.events.rows:
        raise HoldfastError(
            f"{found} of {connector.events.rows} rows were written to {connector.name}",
            cure="report this: rows are lost or doubled",
        )


def _run(connector: Connector, direction: str, engine: str, seconds: float) -> ConnectorRun:
    return ConnectorRun(connector.name, direction, engine, connector.events.rows, connector.events.rows / seconds)


def _counted(number: int, run: ConnectorRun, say: Say) -> list[ConnectorRun]:
    warm = " (warm-up)" if number < 0 else ""
    say(f"{run.connector}, {run.direction}, {run.engine}: {(run.rows_per_s or 0) / 1e3:,.0f} k rows/s{warm}")
    return [run] if number >= 0 else []


def measure_alone(connectors: Sequence[Connector], say: Say, rounds: int = ROUNDS) -> list[ConnectorRun]:
    """The libraries of tables."""
    runs = []
    for connector in connectors:
        for direction, work in connector.alone.items():
            for number in range(-1, rounds):
                began = time.perf_counter()
                work(_table("alone", number))
                run = _run(connector, direction, "library alone", time.perf_counter() - began)
                runs += _counted(number, run, say)
    return runs


def measure_peers(
    connectors: Sequence[Connector], master: str | None, conf: dict[str, str], place: Path, say: Say,
    rounds: int = ROUNDS,
) -> list[ConnectorRun]:  # fmt: skip
    """Structured Streaming, with a session for each connector."""
    runs: list[ConnectorRun] = []
    for connector in connectors:
        peer = PEERS[connector.name]
        settings = {**conf, **peer.conf(connector)}
        if peer.artifacts:
            name = "-".join(peer.artifacts[0].split(":")[1:])
            jars = fetch(f"spark-{name}", peer.artifacts, say, alone=True)
            settings["spark.jars"] = ",".join(map(str, sorted(jars.glob("*.jar"))))
        with session("spark", master, settings) as spark:
            spark.sparkContext.setLogLevel("OFF")  # what fails is in the table
            work = place / f"spark-{connector.name}"
            ways: dict[str, Sequence[Reading | Writing]] = {"source": peer.readings, "sink": peer.writings}
            for direction, tried in ways.items():
                runs += _first_that_runs(spark, connector, direction, tried, work / direction, say, rounds)
    return runs


def _first_that_runs(
    spark: SparkSession, connector: Connector, direction: str, ways: Sequence[Reading | Writing], work: Path,
    say: Say, rounds: int,
) -> Iterator[ConnectorRun]:  # fmt: skip
    for choice, way in enumerate(ways):
        try:
            for number in range(-1, rounds):
                checkpoint = work / f"{choice}-{number + 1}"
                table = _table(f"spark_{choice}", number)
                if isinstance(way, Reading):
                    seconds = _seconds_to_read(spark, connector, way, checkpoint)
                else:
                    seconds = _seconds_to_write(spark, connector, way, table, checkpoint)
                    if way.counted:
                        _check_written(connector, direction, table)
                yield from _counted(number, _run(connector, direction, way.engine, seconds), say)
            return
        except (PySparkException, Py4JError) as error:
            told = _told(error)
            say(f"{connector.name}, {direction}, {way.engine}: {told}")
            yield ConnectorRun(connector.name, direction, way.engine, connector.events.rows, None, told)


def _told(error: BaseException) -> str:
    """The exception at the bottom, which Java or the function of a batch has raised."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while java is not None and java.getCause() is not None:
        java = java.getCause()
    text = str(error if java is None else java.toString())
    raised = _RAISED.findall(text)
    said = " ".join((raised[-1] if raised else text).split())
    return said if len(said) <= _MOST_TOLD else said[:_MOST_TOLD] + "…"


def _seconds_to_read(spark: SparkSession, connector: Connector, way: Reading, checkpoint: Path) -> float:
    frame = way.frame(spark, connector)
    if frame.isStreaming:
        return seconds_for_all(spark, "YSB", frame, checkpoint)
    began = time.perf_counter()
    spark_query("YSB", frame).write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def _seconds_to_write(spark: SparkSession, connector: Connector, way: Writing, table: str, checkpoint: Path) -> float:
    directory = str(connector.events.directory)
    events = spark.readStream.schema(spark.read.parquet(directory).schema).parquet(directory)
    if connector.name == "kafka":
        connector.sink(table)  # makes the topic
    writer = way.writer(events, connector, table).option("checkpointLocation", str(checkpoint))
    began = time.perf_counter()
    running = writer.trigger(availableNow=True).start()
    try:
        running.awaitTermination()
        return time.perf_counter() - began
    finally:
        running.stop()


def compare_dictionaries(connectors: Sequence[Connector], seconds: float) -> float | None:
    """How many times as fast the sink inserts into PostgreSQL as SQLAlchemy with a dictionary per row."""
    for connector in connectors:
        if connector.name == "postgresql":
            speeds = measure_database("postgresql", connector.address, seconds)
            return next(round(speed.against_dictionaries, 1) for speed in speeds if speed.way == "inserted")
    return None
