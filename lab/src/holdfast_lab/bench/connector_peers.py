"""What the connectors of Holdfast are compared with: Structured Streaming with the connector of each system.

A peer has ways to read and ways to write, the best first. Connectors are made for one version of Spark, and are not
there for each: a way that fails is told with its own error, and the next one is tried. The last one is what is nearest
and always runs: the same rows from Parquet files, or into them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every PySpark program uses
from pyspark.sql.streaming.readwriter import DataStreamWriter

from holdfast_lab.bench.connector_places import EVENTS, Connector
from holdfast_lab.bench.kafka_speed import KAFKA_JARS, spark_messages

__all__ = ["PEERS", "Peer", "Reading", "Writing"]

_PARTITIONS = 2
_STREAMING, _BATCH = "Structured Streaming", "Spark, one batch"


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read the events, as a stream or at once."""

    engine: str
    frame: Callable[[SparkSession, Connector], DataFrame]


@dataclass(frozen=True, slots=True)
class Writing:
    """One way to write a stream into a table."""

    engine: str
    writer: Callable[[DataFrame, Connector, str], DataStreamWriter]
    counted: bool = True
    """Whether a reader of the connector's finds the rows."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Spark's connector: jars of the Maven repository, settings of the session, and the ways to use it."""

    artifacts: tuple[str, ...]
    readings: Sequence[Reading]
    writings: Sequence[Writing]
    conf: Callable[[Connector], Mapping[str, str]] = field(default=lambda connector: {})


def _parquet_stream(spark: SparkSession, connector: Connector) -> DataFrame:
    directory = str(connector.events.directory)
    return spark.readStream.schema(spark.read.parquet(directory).schema).parquet(directory)


def _parquet_writer(frame: DataFrame, connector: Connector, table: str) -> DataStreamWriter:
    directory = Path(connector.events.directory).parent / f"{connector.name}-parquet" / table
    return frame.writeStream.format("parquet").option("path", str(directory))


_FROM_PARQUET = Reading(f"{_STREAMING}, Parquet files", _parquet_stream)
_TO_PARQUET = Writing(f"{_STREAMING}, Parquet files", _parquet_writer, counted=False)


def _to_directory(format: str) -> Callable[[DataFrame, Connector, str], DataStreamWriter]:
    def writer(frame: DataFrame, connector: Connector, table: str) -> DataStreamWriter:
        return frame.writeStream.format(format).option("path", f"{connector.address}/{table}")

    return writer


def _iceberg_settings(connector: Connector) -> Mapping[str, str]:
    name = "spark.sql.catalog.lake"
    return {name: "org.apache.iceberg.spark.SparkCatalog", f"{name}.type": "hadoop",
            f"{name}.warehouse": f"{connector.address}-spark"}  # fmt: skip


def _to_iceberg(frame: DataFrame, connector: Connector, table: str) -> DataStreamWriter:
    frame.sparkSession.createDataFrame([], frame.schema).writeTo(f"lake.bench.{table}").create()
    return frame.writeStream.format("iceberg").option("path", f"lake.bench.{table}")


def _jdbc(connector: Connector, table: str) -> dict[str, str]:
    """The driver is named: those of `spark.jars` are not found by their URL, as Java looks in its own class path."""
    found = sa.make_url(connector.address)
    if connector.name == "postgresql":
        url = f"jdbc:postgresql://{found.host}:{found.port}/{found.database}?user={found.username}"
        return {"url": f"{url}&reWriteBatchedInserts=true", "driver": "org.postgresql.Driver", "dbtable": table}
    driver = {"sqlite": "org.sqlite.JDBC", "duckdb": "org.duckdb.DuckDBDriver"}[connector.name]
    return {"url": f"jdbc:{connector.name}:{found.database}", "driver": driver, "dbtable": table}


def _from_jdbc(spark: SparkSession, connector: Connector) -> DataFrame:
    ranges = {"partitionColumn": "n", "lowerBound": "0", "upperBound": str(connector.events.rows)}
    reader = spark.read.format("jdbc").options(**_jdbc(connector, EVENTS), **ranges, fetchsize="10000")
    found = reader.option("numPartitions", str(_PARTITIONS)).load()
    types = spark.read.parquet(str(connector.events.directory)).schema  # SQLite has none of its own
    return found.select(*(F.col(column.name).cast(column.dataType) for column in types))


def _to_jdbc(frame: DataFrame, connector: Connector, table: str) -> DataStreamWriter:
    def write(batch: DataFrame, number: int) -> None:
        writer = batch.coalesce(_PARTITIONS if connector.name == "postgresql" else 1).write.format("jdbc")
        writer.options(**_jdbc(connector, table), batchsize="10000").mode("append").save()

    return frame.writeStream.foreachBatch(write)


def _to_kafka(frame: DataFrame, connector: Connector, table: str) -> DataStreamWriter:
    rows = frame.select(F.to_json(F.struct("*")).alias("value"))
    return rows.writeStream.format("kafka").option("kafka.bootstrap.servers", connector.address).option("topic", table)


def _database(artifact: str) -> Peer:
    return Peer(
        (artifact,),
        [Reading(f"{_BATCH}, JDBC", _from_jdbc), _FROM_PARQUET],
        [Writing(f"{_STREAMING}, JDBC for each batch", _to_jdbc), _TO_PARQUET],
    )


_DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}

PEERS: Mapping[str, Peer] = {
    "parquet": Peer((), [Reading(_STREAMING, _parquet_stream)], [Writing(_STREAMING, _to_directory("parquet"))]),
    "delta": Peer(
        ("io.delta:delta-spark_4.1_2.13:4.2.0", "io.delta:delta-storage:4.2.0"),
        [
            Reading(_STREAMING, lambda spark, to: spark.readStream.format("delta").load(f"{to.address}/{EVENTS}")),
            Reading(_BATCH, lambda spark, to: spark.read.format("delta").load(f"{to.address}/{EVENTS}")),
            _FROM_PARQUET,
        ],
        [Writing(_STREAMING, _to_directory("delta")), _TO_PARQUET],
        lambda connector: _DELTA_SETTINGS,
    ),
    "iceberg": Peer(
        ("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0",),
        [
            Reading(_STREAMING, lambda spark, to: spark.readStream.table(_iceberg_filled(spark, to))),
            Reading(_BATCH, lambda spark, to: spark.read.table(_iceberg_filled(spark, to))),
            _FROM_PARQUET,
        ],
        [Writing(_STREAMING, _to_iceberg, counted=False), _TO_PARQUET],
        _iceberg_settings,
    ),
    "postgresql": _database("org.postgresql:postgresql:42.7.8"),
    "sqlite": _database("org.xerial:sqlite-jdbc:3.50.3.0"),
    "duckdb": _database("org.duckdb:duckdb_jdbc:2.0.0.0"),
    "kafka": Peer(
        KAFKA_JARS,
        [Reading(_STREAMING, lambda spark, to: spark_messages(spark, to.address, to.events.schema))],
        [Writing(_STREAMING, _to_kafka)],
    ),
}  # fmt: skip
"""By connector: the newest that repositories have."""


def _iceberg_filled(spark: SparkSession, connector: Connector) -> str:
    """A table of Spark's own catalog, which is not Python's."""
    name = f"lake.bench.{EVENTS}"
    if not spark.catalog.tableExists(name):
        spark.read.parquet(str(connector.events.directory)).writeTo(name).create()
    return name
