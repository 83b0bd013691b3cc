"""`holdfast bench`: how fast a query runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.group import LongCommand
from holdfast.cli.shared_options import LocalPath, SecondsRange, conf_option, json_option
from holdfast_lab.chaos.s3_server import serve_process
from holdfast_lab.cli.bench_output import show_barred, show_figures, show_table

if TYPE_CHECKING:
    from holdfast.plan.executor_choice import ExecutorName
    from holdfast_lab.bench.query_runs import BenchOptions
    from holdfast_lab.bench.special_runs import SpecialResult

__all__ = ["bench"]


@click.command(cls=LongCommand)
@click.argument("query")
@click.option(
    "--seconds", type=SecondsRange(min=0, min_open=True), default=10.0, show_default=True,
    help="Total time to measure after the warm-up.",
)  # fmt: skip
@click.option("--engine", type=click.Choice(["holdfast", "spark", "flink"]), default="holdfast", show_default=True,
              help="For queries and linear-road: what runs it. flink: only linear-road.")  # fmt: skip
@click.option(
    "--latency", type=SecondsRange(min=0, min_open=True), default=1.0, show_default=True, metavar="DURATION",
    help="How long an epoch may take.",
)  # fmt: skip
@click.option("--slide", type=click.IntRange(min=1), metavar="SECONDS", help="Override the query's slide.")
@click.option(
    "--durability", type=click.Choice(["delta", "interval", "none"]), default="delta", show_default=True,
    help="delta: sync every epoch to disk before its commit. interval (only linear-road): sync the state every 5 s.",
)  # fmt: skip
@click.option(
    "--partitions", type=click.IntRange(min=1), default=2, show_default=True, help="Partitions of stateful operators."
)
@click.option(
    "--keys", type=click.IntRange(min=1), help="For keyed, keyed-scale (the maximum) and repartition: number of keys."
)
@click.option("--executor", type=click.Choice(["crew", "jobs"]),
              help="How Holdfast's epochs run.  [default: a crew if possible]")  # fmt: skip
@click.option("--rates", metavar="N,N", default="10000,100000,1000000", show_default=True,
              help="For latency: rows per second.")  # fmt: skip
@click.option("--alone", is_flag=True, help="For latency: Holdfast only, without Structured Streaming and Flink.")
@click.option("--plots", type=LocalPath(file_okay=False), metavar="DIR", help="For latency: directory for its plot.")
@click.option("--l", "expressways", type=click.IntRange(min=1), default=100, show_default=True,
              help="For linear-road: number of expressways.")  # fmt: skip
@click.option("--minutes", type=click.FloatRange(min=0.5, max=179), default=1.0, show_default=True,
              help="For linear-road: how many of its last, heaviest minutes to measure.")  # fmt: skip
@click.option("--warm-up", type=click.FloatRange(min=0.5, max=179), default=1.0, show_default=True,
              help="For linear-road: how many earlier minutes to process first, at once.")  # fmt: skip
@click.option("--compress", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True,
              help="For linear-road: how many times faster than real time rows arrive.")  # fmt: skip
@click.option(
    "--profile", is_flag=True, help="For linear-road: where its CPU time goes, by part, in this process alone."
)
@click.option("--search", is_flag=True, help="For linear-road: find the greatest L that holds, starting with --l.")
@click.option("--only", metavar="NAME,NAME", help="For connectors: which of them.  [default: all]")
@click.option("--master", metavar="URL", help="Spark master.  [default: this machine]")
@click.option(
    "--cluster",
    type=click.IntRange(min=1, max=16),
    metavar="N",
    help="For recovery and executor-recovery: start a Spark standalone cluster of N workers.",
)
@conf_option
@json_option
def bench(
    query: str, seconds: float, engine: str, latency: float, slide: int | None, durability: str, partitions: int,
    keys: int | None, executor: ExecutorName | None, rates: str, alone: bool, plots: Path | None,
    expressways: int, minutes: float, warm_up: float, compress: float, profile: bool, search: bool,
    only: str | None, master: str | None, cluster: int | None, conf: dict[str, str], as_json: bool,
) -> None:  # fmt: skip
    """Measure QUERY with a Parquet sink, on input that is never the bottleneck; the warm-up does not count.

    Queries of the papers: CM1 CM2 SG1 SG2 SG3 LRB1 LRB2 LRB3 YSB NQ SM, and words, topk, cec. Other benchmarks: idle
    (cost of an empty epoch), keyed (updates of a million keys), keyed-scale (the same, and its memory, with ten
    thousand to ten million keys), repartition (a gigabyte of state is split and merged while in use), sliding (CM1 60/1
    compared to 60/60), durability (YSB with and without syncs), recovery and executor-recovery (the pause after the
    kill of a worker, or of an executor of --master or --cluster), ingress (rows from one client, acknowledged when
    durable), files (YSB from Parquet, NDJSON and CSV files, compared to plain Polars and Structured Streaming), kafka
    (YSB from a broker on this machine, compared to Structured Streaming's Kafka source), objectstore (YSB from and to
    an S3 server on this machine, compared to local files), commits (cost of a commit with few and many partitions),
    database (rows per second into PostgreSQL, SQLite and DuckDB), connectors (from and to Parquet files, Delta and
    Iceberg tables, databases and Kafka, compared to Structured Streaming with its connectors), latency (of rows that
    arrive at fixed rates, in Structured Streaming and Flink), dashboard (how soon it opens with a day of events, and
    what a pipeline pays for being watched), quiet (CPU use of a pipeline without input), linear-road (the whole Linear
    Road Benchmark: rows arrive in real time, every answer is timed and checked; other engines give its toll
    notifications alone). With --json the last line is JSON.
    """
    from holdfast_lab.bench.query_runs import (
        BenchOptions,
        cluster_session,
        measure,
        measure_on_spark,
        session,
        workplace,
    )
    from holdfast_lab.bench.special_runs import SPECIAL
    from holdfast_lab.workloads.queries import query as named

    if cluster is not None and (query.lower() not in ("recovery", "executor-recovery") or master is not None):
        raise click.UsageError("--cluster is for recovery and executor-recovery, without --master")
    if query.lower() == "ingress":
        _ingress(seconds, as_json)
        return
    if query.lower() == "latency":
        _latency(seconds, [int(rate) for rate in rates.split(",")], alone, plots, as_json)
        return
    if query.lower() == "commits":
        _commits(as_json)
        return
    if query.lower() == "dashboard":
        _dashboard(seconds, as_json)
        return
    if query.lower() == "database":
        _database(seconds, as_json)
        return
    if query.lower() == "linear-road" and profile:
        _road_profile(expressways, latency, durability, partitions, as_json)
        return
    if query.lower() == "linear-road":
        _linear_road(engine, expressways, minutes, warm_up, compress, latency, durability, partitions, search, as_json)
        return
    if engine == "flink":
        raise click.UsageError("--engine flink is for linear-road")
    if durability == "interval":
        raise click.UsageError(f"'{query}' is measured with --durability delta or none")
    options = BenchOptions(seconds, latency, slide, durability == "delta", partitions, keys=keys, executor=executor)
    if query.lower() == "files":
        _files(options, master, conf)
        return
    if query.lower() == "kafka":
        _kafka(options, master, conf)
        return
    if query.lower() == "objectstore":
        _objectstore(options, master, conf, as_json)
        return
    if query.lower() == "connectors":
        _connectors(options, only, master, conf)
        return
    special = SPECIAL.get(query.lower())
    if special is not None and engine == "spark":
        raise click.UsageError(f"'{query}' is a benchmark of Holdfast only")
    asked = None if special is not None else named(query)
    if asked is not None:
        asked.checked_slide(slide)
    opened = session(engine, master, conf) if cluster is None else cluster_session(cluster, conf)
    with workplace() as place, opened as spark:
        result: SpecialResult
        if asked is None:
            assert special is not None
            result = special(spark, options, place)
        elif engine == "spark":
            result = measure_on_spark(spark, asked, options)
        else:
            result = measure(spark, asked, options, place)
    show_figures(result)
    if as_json:
        click.echo(json.dumps(result.to_json()))


def _ingress(seconds: float, as_json: bool) -> None:
    """The receivers need no Spark."""
    from holdfast_lab.bench.ingress_load import measure_ingress
    from holdfast_lab.bench.query_runs import workplace

    with workplace() as place:
        result = measure_ingress(seconds, place)
    for line in result.lines():
        click.echo(line)
    if as_json:
        click.echo(json.dumps(result.to_json()))


def _latency(seconds: float, rates: list[int], alone: bool, plots: Path | None, as_json: bool) -> None:
    from holdfast_lab.bench.latency_bench import measure_latency
    from holdfast_lab.bench.query_runs import workplace

    with workplace() as place:
        result = measure_latency(seconds, place, rates=rates, elsewhere=not alone, told=click.echo)
    for note in result.notes():
        click.echo(f"- {note}")
    for bar in result.bars():
        click.echo(f"{bar['name']}: {bar['value']} (at most {bar['bar']}: {'reached' if bar['ok'] else 'missed'})")
    for path in result.plot(plots) if plots is not None else ():
        click.echo(f"plot: {path}")
    if as_json:
        click.echo(json.dumps(result.to_json()))


def _linear_road(
    engine: str, expressways: int, minutes: float, warm_up: float, compress: float, latency: float, durability: str,
    partitions: int, searches: bool, as_json: bool,
) -> None:  # fmt: skip
    from holdfast_lab.bench.query_runs import workplace
    from holdfast_lab.bench.road_engines import opened_engine
    from holdfast_lab.bench.road_rating import RoadRating, search
    from holdfast_lab.bench.road_run import RoadFigures, RoadOptions, RoadTraffic

    options = RoadOptions(
        minutes, warm_up, compress, latency=latency, partitions=partitions,
        checkpoint="interval(5s)" if durability == "interval" else durability,
    )  # fmt: skip
    traffic = RoadTraffic.heaviest(options)
    with opened_engine(engine, traffic, options) as measure:

        def measured(count: int) -> RoadFigures:
            with workplace() as place:
                found = measure(count, place)
            for line in found.lines():
                click.echo(line)
            return found

        result = RoadRating(tuple(search(measured, expressways) if searches else [measured(expressways)]))
    for line in result.lines():
        click.echo(line)
    if as_json:
        click.echo(json.dumps(result.to_json()))


def _road_profile(expressways: int, latency: float, durability: str, partitions: int, as_json: bool) -> None:
    from holdfast_lab.bench.road_profile import ProfileOptions, profiled_apart

    checkpoint = "interval(5s)" if durability == "interval" else durability
    result = profiled_apart(ProfileOptions(expressways, latency, partitions=partitions, checkpoint=checkpoint))
    for line in result.lines():
        click.echo(line)
    if as_json:
        click.echo(json.dumps(result.to_json()))


def _files(options: BenchOptions, master: str | None, conf: dict[str, str]) -> None:
    """The last line is JSON in any case, for its bars."""
    from holdfast_lab.bench.file_speed import FileSpeed, measure_files, measure_files_on_spark
    from holdfast_lab.bench.query_runs import session, workplace

    with workplace() as place:
        with session("holdfast", master, conf) as spark:
            measured, written = measure_files(spark, options, place, click.echo)
        with session("spark", master, conf) as spark:
            result = FileSpeed((*measured.runs, *measure_files_on_spark(spark, place, written)))
    show_barred(result)


def _kafka(options: BenchOptions, master: str | None, conf: dict[str, str]) -> None:
    """The last line is JSON in any case, for its bars."""
    from holdfast_lab.bench.kafka_speed import (
        ROWS,
        KafkaSpeed,
        connector_jars,
        measure_kafka,
        measure_kafka_on_spark,
        write_messages,
    )
    from holdfast_lab.bench.query_runs import session, workplace
    from holdfast_lab.chaos.kafka_server import KafkaServer

    connector = connector_jars(click.echo)
    with workplace() as place, KafkaServer(light=False, memory="1g", say=click.echo) as server:
        click.echo(f"writing {ROWS:,} messages")
        backlog = write_messages(server, ROWS)
        with session("holdfast", master, conf) as spark:
            runs = measure_kafka(spark, server, backlog, options, place, click.echo)
        if connector is not None:
            version, jars = connector
            with session("spark", master, {**conf, "spark.jars": ",".join(map(str, jars))}) as spark:
                runs += measure_kafka_on_spark(spark, server, backlog, place, version, click.echo)
    result = KafkaSpeed(tuple(runs), round(backlog.message_bytes, 1))
    show_barred(result)


def _objectstore(options: BenchOptions, master: str | None, conf: dict[str, str], as_json: bool) -> None:
    from holdfast_lab.bench.bucket_speed import BucketSpeed, measure_clients, measure_objects
    from holdfast_lab.bench.file_speed import measure_files_on_spark
    from holdfast_lab.bench.query_runs import session, workplace

    with workplace() as place, serve_process() as server:
        clients = measure_clients(server, click.echo)
        with session("holdfast", master, conf) as spark:
            runs, written = measure_objects(spark, server, options, place, click.echo)
        with session("spark", master, conf) as spark:
            elsewhere = measure_files_on_spark(spark, place, written)
    result = BucketSpeed(clients, (*runs, *elsewhere))
    show_table(result.client_table())
    show_table(result.table())
    if as_json:
        click.echo(json.dumps(result.to_json()))


def _connectors(options: BenchOptions, only: str | None, master: str | None, conf: dict[str, str]) -> None:
    """The last line is JSON in any case, for its bars."""
    from holdfast_lab.bench.connector_places import open_connectors
    from holdfast_lab.bench.connector_speed import (
        CONNECTORS,
        ROWS,
        ConnectorSpeed,
        compare_dictionaries,
        measure_alone,
        measure_connectors,
        measure_peers,
    )
    from holdfast_lab.bench.query_runs import session, workplace

    names = tuple(only.split(",")) if only else CONNECTORS
    for name in names:
        if name not in CONNECTORS:
            raise click.UsageError(f"'{name}' is not one of {', '.join(CONNECTORS)}")
    with workplace() as place, open_connectors(place, names, ROWS, click.echo) as connectors:
        with session("holdfast", master, conf) as spark:
            runs = measure_connectors(spark, connectors, options, place, click.echo)
        runs += measure_alone(connectors, click.echo)
        runs += measure_peers(connectors, master, conf, place, click.echo)
        result = ConnectorSpeed(tuple(runs), compare_dictionaries(connectors, options.seconds / 6))
    show_barred(result)


def _commits(as_json: bool) -> None:
    """Nor do commits."""
    from holdfast_lab.bench.commit_cost import measure_commits, to_json
    from holdfast_lab.bench.query_runs import workplace

    with workplace() as place:
        costs = measure_commits(place)
    for cost in costs:
        click.echo(cost.line())
    if as_json:
        click.echo(json.dumps(to_json(costs)))


def _dashboard(seconds: float, as_json: bool) -> None:
    """Nor does the dashboard."""
    from holdfast_lab.bench.dashboard_cost import measure_dashboard
    from holdfast_lab.bench.query_runs import workplace

    with workplace() as place:
        cost = measure_dashboard(place, seconds)
    click.echo("\n".join(cost.lines()))
    if as_json:
        click.echo(json.dumps(cost.to_json()))


def _database(seconds: float, as_json: bool) -> None:
    """Nor does the database sink."""
    from holdfast_lab.bench.database_speed import measure_databases, to_json
    from holdfast_lab.bench.query_runs import workplace

    with workplace() as place:
        speeds = measure_databases(place, seconds / 6)
    for speed in speeds:
        click.echo(speed.line())
    if as_json:
        click.echo(json.dumps(to_json(speeds)))
