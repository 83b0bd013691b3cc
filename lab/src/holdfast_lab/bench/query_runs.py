"""Running a query for a while and measuring it: on Holdfast, and its twin on Structured Streaming."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from holdfast.connect.sinks.file_sink import parquet
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.options import RunOptions
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.graph.durations import ticks
from holdfast.graph.pipeline import Pipeline
from holdfast.graph.policies import DELTA
from holdfast.plan.executor_choice import ExecutorName
from holdfast.scale.pool import OwnCluster
from holdfast.spark import session as spark_session
from holdfast.spark.session import close_spark, open_spark
from holdfast_lab.bench.bench_figures import Figures, Meter, figures, first_results
from holdfast_lab.bench.dense_input import DenseInput, dense, dense_table
from holdfast_lab.workloads.queries import Query
from holdfast_lab.workloads.spark_run import SparkRun, run_spark

__all__ = [
    "BenchOptions",
    "cluster_session",
    "measure",
    "measure_on_spark",
    "measure_pipeline",
    "session",
    "spark_figures",
    "workplace",
]

_LEAST_ROWS = 1_000_000
_CLUSTER_CORES = 4
"""Slots of a worker of a cluster: enough for a crew, and for what takes its place when the other one is lost."""
_SPARK_ROWS = 400_000  # of a table that Spark broadcasts to every task; each row is then read several times

_SPARK_AT_ITS_BEST = {
    # The settings for small Python jobs that `open_spark` makes would slow down Spark's own operators.
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.driver.memory": "4g",
}


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """How to measure. `slide` is in seconds of event time; `durable=False` is durability `none`. `store` is where the
    store is, if not beside input and output; `keys` how many keys the benchmarks of keyed state have."""

    seconds: float = 10.0
    latency: float = 1.0
    slide: int | None = None
    durable: bool = True
    partitions: int = 2
    overlap: bool = True
    store: Path | None = None
    keys: int | None = None
    executor: ExecutorName | None = None

    def run_options(self, place: Path, least_rows: int, most_rows: int) -> RunOptions:
        """Of a run that is measured. State is durable with each epoch, whatever another policy might cost."""
        return RunOptions(
            store=self.store or place / "store",
            latency=self.latency,
            partitions=self.partitions,
            least_rows=least_rows,
            most_rows=most_rows,
            durable=self.durable,
            overlap=self.overlap,
            executor=self.executor,
            checkpoint=DELTA,
        )


@contextmanager
def session(engine: str, master: str | None = None, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A Spark session for the engine: `holdfast`, or `spark` as it is at its best."""
    config: dict[str, str] = {}
    if engine == "spark":
        logging = Path(spark_session.__file__).with_name("log4j2.properties")
        config = {
            **_SPARK_AT_ITS_BEST,
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logging.as_uri()}",
        }
        master = master or f"local[{os.cpu_count()}]"
    spark = open_spark(master, app="holdfast bench", config={**config, **(conf or {})})
    try:
        yield spark
    finally:
        close_spark(spark)


@contextmanager
def cluster_session(workers: int, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session on a Spark standalone cluster of so many workers on this machine, which ends with it."""
    with OwnCluster(workers, 0, _CLUSTER_CORES) as cluster:
        yield cluster.session("holdfast bench", conf)


@contextmanager
def workplace() -> Iterator[Path]:
    """A directory for input, store and output of a benchmark, removed at its end."""
    with TemporaryDirectory(prefix="holdfast-bench-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


def measure(
    spark: SparkSession,
    query: Query,
    options: BenchOptions,
    place: Path,
    *,
    name: str | None = None,
    given: DenseInput | None = None,
) -> Figures:
    """Run a query on Holdfast. `name` keeps several runs in one place apart."""
    name = name or query.name.lower()
    made = given or dense(query.dataset)
    pipeline = query.build(
        made.source(place / "input"), parquet(place / f"{name}-out"), pipeline_name=name, slide=options.slide
    )
    slide = ticks(query.checked_slide(options.slide), query.dataset.time_unit) if query.sizes else None
    # An epoch of so many rows must fit into the latency asked for, or it is not what is measured.
    least = round(_LEAST_ROWS * min(1.0, options.latency))
    meter = measure_pipeline(spark, pipeline, options, place, least_rows=least)
    return figures(
        meter,
        query.name,
        query.tuple_bytes,
        slide,
        durability="delta" if options.durable else "none",
        slide_s=query.checked_slide(options.slide) if query.sizes else None,
        rows_per_event_second=round(made.rows_per_event_second),
        warm_up_epochs=meter.warm,
        **_costs(meter),
    )


def _costs(meter: Meter) -> dict[str, float | None]:
    """What state an epoch has, how much of it is written, and how long its commit takes once its job is done."""
    epochs = meter.measured()
    if not epochs:
        return {}
    commits = [epoch.committed - epoch.started - epoch.seconds for epoch in epochs]
    return {
        "state_bytes": round(mean(epoch.state_bytes for epoch in epochs)),
        "written_bytes_per_epoch": round(mean(epoch.written_bytes for epoch in epochs)),
        "commit_ms": round(1_000 * mean(commits), 2),
    }


def measure_pipeline(
    spark: SparkSession,
    pipeline: Pipeline,
    options: BenchOptions,
    place: Path,
    *,
    least_rows: int = _LEAST_ROWS,
    most_rows: int = 1_000_000_000,
    warm_epochs: int = 6,
) -> Meter:
    """Run a pipeline until enough is measured."""
    meter = Meter(options.seconds, warm_epochs=warm_epochs)
    settings = options.run_options(place, least_rows, most_rows)
    running = FragmentRun(pipeline, SparkPlatform(spark), settings, observer=meter)
    meter.stop = running.stop
    running.run()
    return meter


def measure_on_spark(spark: SparkSession, query: Query, options: BenchOptions) -> Figures:
    """Run the query's twin on Structured Streaming, its results discarded and its state in RocksDB.

    The load is that of `measure`: as many tuples in a second of event time, so that windows close as often per tuple.
    """
    made = dense_table(query.dataset, _SPARK_ROWS)
    run = run_spark(
        spark, query.name, options.seconds, events=made.input.frame, repeat=made.repeat, slide=options.slide
    )
    return spark_figures(query, run, made.rows_per_event_second, options.slide)


def spark_figures(query: Query, run: SparkRun, rows_per_event_second: float, slide: int | None) -> Figures:
    """The figures of a run of the twin: a batch is its epoch."""
    slide_ms = 1_000 * query.checked_slide(slide)
    latency = first_results(run.batches, [batch.greatest for batch in run.batches], slide_ms)
    notes = {
        "rows_per_event_second": round(rows_per_event_second),
        "persisted_is": "growth of the checkpoint directory on disk",
    }
    if not latency:
        notes["latency_missing"] = "no window closed that holds a measured batch's last tuples: measure longer"
    return Figures(
        query=query.name,
        engine="spark",
        tuples=run.tuples,
        seconds=run.seconds,
        epochs=len(run.batches),
        epoch_seconds=tuple(batch.seconds for batch in run.batches),
        latency_seconds=tuple(latency),
        raw_bytes=run.tuples * query.tuple_bytes,
        persisted_bytes=run.persisted_bytes,
        output_rows=run.output_rows,
        notes=notes,
    )
