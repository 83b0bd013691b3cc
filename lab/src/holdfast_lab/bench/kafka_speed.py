"""YSB from Kafka: Holdfast against Structured Streaming's Kafka source, and what the broker alone delivers.

One broker on the same cores holds a backlog of JSON messages of about 100 bytes in two partitions. What counts is rows
per second from the start of the first epoch, before a row is read, to the commit of the last result. Structured
Streaming reads the same messages in one go, from its start to its end, in a session of its own that has run the query
before. Kafka's own consumer, in its performance test, says what the broker delivers to somebody who does nothing else.

Where there is no connector for the version of Spark that is installed, the newest one that there is takes its place:
the table names it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shutil import rmtree
from statistics import median
from typing import Any

import polars as pl
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every PySpark program uses

from holdfast.connect.sinks.file_sink import parquet, read_output
from holdfast.connect.sources.kafka_source import kafka
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.errors import HoldfastError
from holdfast_lab.bench.bench_figures import Reports
from holdfast_lab.bench.query_runs import BenchOptions
from holdfast_lab.chaos.kafka_server import KafkaServer
from holdfast_lab.chaos.kafka_topics import make_topic
from holdfast_lab.experiment.definition import Bar, at_least
from holdfast_lab.experiment.scabbard.jars import fetch
from holdfast_lab.workloads.queries import query
from holdfast_lab.workloads.spark_run import seconds_for_all, sql_schema
from holdfast_lab.workloads.synthetic import ysb_events

__all__ = [
    "KAFKA_JARS",
    "KafkaRun",
    "KafkaSpeed",
    "connector_jars",
    "measure_kafka",
    "measure_kafka_on_spark",
    "spark_messages",
    "write_messages",
]

PARTITIONS = 2
ROWS = 2_000_000
ROUNDS = 3
TIMES_SPARK = 3.0
"""Rows per second over those of Structured Streaming, at least."""
_ROWS_PER_EVENT_SECOND = 20_000
_TOPIC = "events"
_CONNECTOR = "4.2.0"
KAFKA_JARS = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{_CONNECTOR}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)
"""The newest that repositories have. Spark has the rest of what the connector names."""
_AT_ITS_BEST = {
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.receive.buffer.bytes": str(1 << 20),
}
"""Of Structured Streaming's consumer, for a backlog: larger polls and fetches than by default."""
_DELIVERED = re.compile(r"^\d[^\n]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class KafkaRun:
    """One run over the backlog."""

    engine: str
    rows: int
    rows_per_s: float
    epochs: int | None = None


@dataclass(frozen=True, slots=True)
class KafkaSpeed:
    """All runs, in the order of rounds."""

    runs: tuple[KafkaRun, ...]
    message_bytes: float

    def speed(self, engine: str) -> float | None:
        found = [run.rows_per_s for run in self.runs if run.engine == engine]
        return median(found) if found else None

    def bars(self) -> list[Bar]:
        mine, other = (
            self.speed("holdfast"),
            next((self.speed(name) for name in self._engines() if "spark" in name), None),
        )
        ratio = round(mine / other, 2) if mine and other else None
        return [at_least("from Kafka, over Structured Streaming", ratio, TIMES_SPARK)]

    def _engines(self) -> list[str]:
        return list(dict.fromkeys(run.engine for run in self.runs))

    def table(self) -> list[dict[str, Any]]:
        found = []
        for engine in self._engines():
            speed = self.speed(engine)
            assert speed is not None
            runs = [run for run in self.runs if run.engine == engine]
            found.append(
                {
                    "engine": engine,
                    "rows": runs[-1].rows,
                    "krows_per_s": round(speed / 1e3),
                    "mb_per_s": round(speed * self.message_bytes / 1e6),
                    "epochs": runs[-1].epochs,
                }
            )
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "query": "kafka",
            "message_bytes": self.message_bytes,
            "table": self.table(),
            "runs": [asdict(run) for run in self.runs],
            "bars": [asdict(bar) for bar in self.bars()],
        }


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is in the topic."""

    rows: int
    schema: pl.Schema
    message_bytes: float


def write_messages(server: KafkaServer, rows: int, topic: str = _TOPIC) -> Backlog:
    """Ad events as JSON, in turns to the partitions."""
    from confluent_kafka import Producer  # noqa: PLC0415 - an extra

    make_topic(server.address, topic, PARTITIONS)
    producer = Producer(
        {"bootstrap.servers": server.address, "linger.ms": 20, "batch.size": 1 << 20, "acks": "all",
         "queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 1 << 20}
    )  # fmt: skip
    events = ysb_events(rows, rows_per_second=_ROWS_PER_EVENT_SECOND)
    size = 0
    for start in range(0, rows, 100_000):
        lines = events[start : start + 100_000].write_ndjson().encode().splitlines()
        size += sum(map(len, lines))
        for partition in range(PARTITIONS):
            for line in lines[partition::PARTITIONS]:
                while True:
                    try:
                        producer.produce(topic, line, partition=partition)
                        break
                    except BufferError:
                        producer.poll(0.1)
        producer.poll(0)
    if producer.flush(120):
        raise HoldfastError("the broker did not take all messages", cure="see whether its disk is full")
    return Backlog(rows, events.schema, size / rows)


def measure_kafka(
    spark: SparkSession, server: KafkaServer, backlog: Backlog, options: BenchOptions, place: Path,
    say: Callable[[str], None], rounds: int = ROUNDS,
) -> list[KafkaRun]:  # fmt: skip
    """Holdfast, and the broker alone."""
    runs = []
    for number in range(-1, rounds):  # the first one warms up
        for measure in (_on_holdfast, _broker_alone) if number >= 0 else (_on_holdfast,):
            run = measure(spark, server, backlog, options, place)
            say(f"{run.engine}: {run.rows_per_s / 1e6:,.2f} M rows/s" + (" (warm-up)" if number < 0 else ""))
            runs += [run] if number >= 0 else []
    return runs


def _on_holdfast(
    spark: SparkSession, server: KafkaServer, backlog: Backlog, options: BenchOptions, place: Path
) -> KafkaRun:
    home = place / "kafka"
    rmtree(home, ignore_errors=True)
    source = kafka(server.address, _TOPIC, backlog.schema)
    pipeline = query("YSB").build(source, parquet(home / "out"), pipeline_name="kafka")
    reports = Reports()
    settings = replace(options.run_options(home, 20_000, 1_000_000_000), until_idle=True)
    made = FragmentRun(pipeline, SparkPlatform(spark), settings, observer=reports)
    began = time.perf_counter()  # as of Spark's query, with all that starting and ending it takes
    made.run()
    seconds = time.perf_counter() - began
    epochs = [report for report in reports.epochs if report.rows]
    read = sum(report.rows for report in epochs)
    if read != backlog.rows or not read_output(home / "out", "parquet").height:
        raise HoldfastError(f"{read} of {backlog.rows} rows were read", cure="report this: rows are lost or doubled")
    return KafkaRun("holdfast", read, read / seconds, len(epochs))


def _broker_alone(
    spark: SparkSession, server: KafkaServer, backlog: Backlog, options: BenchOptions, place: Path
) -> KafkaRun:
    """Kafka's own performance test of a consumer, after it has its partitions."""
    told = server.call(
        "org.apache.kafka.tools.ConsumerPerformance", "--bootstrap-server", server.address, "--topic", _TOPIC,
        "--num-records", str(backlog.rows), "--group", f"perf-{time.time_ns()}",
    )  # fmt: skip
    lines = _DELIVERED.findall(told)
    if not lines:
        raise HoldfastError(f"the performance test of Kafka said nothing usable: {told[-300:]}", cure="run it again")
    figures = lines[-1].split(", ")
    return KafkaRun("broker alone (Kafka's consumer)", int(figures[4]), float(figures[-1]))


def connector_jars(say: Callable[[str], None]) -> tuple[str, list[Path]] | None:
    """Spark's connector for Kafka, with its version; None if there is none."""
    try:
        found = fetch(f"spark-kafka-{_CONNECTOR}", KAFKA_JARS, say, alone=True)
    except HoldfastError as error:
        say(f"Structured Streaming is left out: {error.problem[:200]}")
        return None
    return _CONNECTOR, sorted(found.glob("*.jar"))


def measure_kafka_on_spark(
    spark: SparkSession, server: KafkaServer, backlog: Backlog, place: Path, version: str, say: Callable[[str], None],
    rounds: int = ROUNDS,
) -> list[KafkaRun]:  # fmt: skip
    """Structured Streaming over the same messages, all in one go."""
    runs = []
    for number in range(-1, rounds):
        stream = spark_messages(spark, server.address, backlog.schema)
        seconds = seconds_for_all(spark, "YSB", stream, place / f"spark-{number}")
        run = KafkaRun(f"spark (connector {version})", backlog.rows, backlog.rows / seconds)
        say(f"{run.engine}: {run.rows_per_s / 1e6:,.2f} M rows/s" + (" (warm-up)" if number < 0 else ""))
        runs += [run] if number >= 0 else []
    return runs


def spark_messages(spark: SparkSession, address: str, schema: pl.Schema) -> DataFrame:
    """The topic's rows as a stream, as fast as Spark's connector reads them."""
    read = spark.readStream.format("kafka").option("kafka.bootstrap.servers", address)
    stream = read.option("subscribe", _TOPIC).option("startingOffsets", "earliest").options(**_AT_ITS_BEST).load()
    row = F.from_json(F.col("value").cast("string"), sql_schema(schema))
    return stream.select(row.alias("row")).select("row.*")
