"""Where the rows of a campaign come from and go to: one connector as its source, one as its sink.

Before the runs, the input is written to where the source reads it, in the order of event times. Each run has an output
of its own, which is read as anybody would read it.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import sqlalchemy as sa

from holdfast.connect.base import Owner, Sink, Source
from holdfast.connect.duckdb_file import opened_duckdb
from holdfast.connect.object_store.bucket import bucket_at
from holdfast.connect.sinks.database import database as database_sink
from holdfast.connect.sinks.delta_sink import delta as delta_sink
from holdfast.connect.sinks.file_sink import parquet, read_output
from holdfast.connect.sinks.iceberg_sink import iceberg as iceberg_sink
from holdfast.connect.sources.database_table import database
from holdfast.connect.sources.delta_source import delta
from holdfast.connect.sources.files import files
from holdfast.connect.sources.iceberg_source import iceberg
from holdfast.errors import HoldfastError
from holdfast_lab.chaos import kafka_topics
from holdfast_lab.chaos.connector_servers import BUCKET
from holdfast_lab.chaos.victim import MeteredSource, VictimSettings, bounded_input
from holdfast_lab.workloads.queries import Query, query

__all__ = [
    "INPUT_KEY",
    "INPUT_TABLE",
    "SINKS",
    "SOURCES",
    "connector_source",
    "output_of",
    "prepare_output",
    "sink_of",
    "source_of",
    "thinned",
    "write_input",
]

SOURCES = ("replay", "files", "kafka", "s3", "delta", "iceberg", "postgresql", "sqlite", "duckdb")
SINKS = ("parquet", "kafka", "s3", "delta", "iceberg", "postgresql", "sqlite", "duckdb")

_DATABASES = ("postgresql", "sqlite", "duckdb")
_AT_ONCE = 500_000
_MOST_ROWS = 5_000
"""Of an epoch, where the input has to be written first."""
INPUT_TABLE, INPUT_KEY = "campaign_input", "row_number"
_OUTPUT = "campaign_output"
_RHYTHM = "1s"
"""Of tables that get files: so that there are several commits in a run."""


def thinned(epoch_rows: int) -> int:
    """One event of how many is written, so that epochs of so many rows do not take long to write."""
    return max(1, epoch_rows // _MOST_ROWS)


def write_input(settings: VictimSettings, every: int) -> None:
    """One of so many of the query's events."""
    frames = _frames(query(settings.query), settings.rows, every, Path(settings.input))
    place = Path(settings.input)
    match settings.source:
        case "replay":
            return
        case "kafka":
            kafka_topics.write_frames(settings.servers["kafka"], frames)
        case "files":
            place.joinpath("files").mkdir(parents=True, exist_ok=True)
            for number, frame in enumerate(frames):
                frame.write_parquet(place / "files" / f"{number:06d}.parquet")
        case "s3":
            found = bucket_at(f"s3://{BUCKET}", _s3(settings), "the input")
            assert found is not None
            for number, frame in enumerate(frames):
                content = io.BytesIO()
                frame.write_parquet(content)
                found[0].put(f"input/{number:06d}.parquet", content.getvalue())
        case "delta":
            for frame in frames:
                frame.write_delta(str(place / "delta"), mode="append")
        case "iceberg":
            _write_iceberg(place, frames)
        case _:
            _write_table(_url(settings.source, settings, place), frames)


def _frames(asked: Query, rows: int, every: int, directory: Path) -> Iterator[pl.DataFrame]:
    """In order, with times as they are in the stream."""
    source = bounded_input(asked, rows * every, directory)
    position, done, made = source.start(), False, 0
    while not done:
        take = source.take(position, _AT_ONCE // every * every, 1)
        for piece in take.slices:
            for chunk in source.read(piece):
                at = pl.col(asked.dataset.event_time)
                kind = chunk.frame.schema[asked.dataset.event_time]
                frame = chunk.frame.with_columns((at.to_physical() + chunk.shift).cast(kind)).gather_every(every)
                made += frame.height
                yield frame
        position, done = take.position, take.done
    if made != rows:
        raise HoldfastError(f"{made} of {rows} rows were written", cure="report this: the input is cut wrongly")


def _write_iceberg(place: Path, frames: Iterator[pl.DataFrame]) -> None:
    catalog = _catalog(place)
    table = None
    for frame in frames:
        rows = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
        table = catalog.create_table(f"db.{INPUT_TABLE}", schema=rows.schema) if table is None else table
        table.append(rows)


def _write_table(url: str, frames: Iterator[pl.DataFrame]) -> None:
    sink = database_sink(url, INPUT_TABLE, key=INPUT_KEY)
    sink.attach(Owner("campaign", "campaign", "input"))
    first = 0
    for number, frame in enumerate(frames, 1):
        rows = frame.with_row_index(INPUT_KEY, first).cast({INPUT_KEY: pl.Int64})
        if not first:
            sink.bind(rows.schema)
        sink.deliver(number, rows, {"in": {"row": number}})
        first += rows.height


def source_of(settings: VictimSettings, asked: Query) -> Source:
    """What a run under faults reads: ends behind the last row, and takes its time between epochs."""
    if settings.source == "kafka":
        schema = asked.dataset.load(1).schema
        return kafka_topics.input_source(settings.servers["kafka"], schema, settings.rows, settings.pause)
    return MeteredSource(connector_source(settings, asked), settings.pause)


def connector_source(settings: VictimSettings, asked: Query) -> Source:
    """The connector itself, up to the end of what it has now."""
    place, schema = Path(settings.input), asked.dataset.load(1).schema
    match settings.source:
        case "replay":
            return bounded_input(asked, settings.rows, place)
        case "files":
            return files(place / "files" / "*.parquet", "parquet", schema)
        case "s3":
            return files(f"s3://{BUCKET}/input/*.parquet", "parquet", schema, storage_options=_s3(settings))
        case "delta":
            return delta(place / "delta", grow=False, order="file")
        case "iceberg":
            return iceberg(f"db.{INPUT_TABLE}", _iceberg(place), grow=False, order="file")
        case _:
            url = _url(settings.source, settings, place)
            return database(url, INPUT_TABLE, INPUT_KEY, schema=schema, grow=False)


def prepare_output(settings: VictimSettings) -> None:
    """What has to be there before the first run."""
    if settings.sink == "kafka":
        kafka_topics.make_topic(settings.servers["kafka"], kafka_topics.output_topic(settings.home))
    elif settings.sink == "iceberg":
        _catalog(Path(settings.home))


def sink_of(settings: VictimSettings) -> Sink:
    """Where a run writes: each has a place of its own."""
    home = Path(settings.home)
    match settings.sink:
        case "parquet":
            return parquet(settings.output)
        case "kafka":
            from holdfast.connect.sinks.kafka_sink import kafka  # noqa: PLC0415 - an extra

            return kafka(settings.servers["kafka"], kafka_topics.output_topic(settings.home))
        case "s3":
            return parquet(_output_address(home), every=_RHYTHM, storage_options=_s3(settings))
        case "delta":
            return delta_sink(home / "delta", every=_RHYTHM)
        case "iceberg":
            return iceberg_sink(f"db.{_OUTPUT}", _iceberg(home), every=_RHYTHM)
        case _:
            return database_sink(_url(settings.sink, settings, home), _output_table(home), writer=home.name)


def output_of(settings: VictimSettings) -> pl.DataFrame:
    """What readers of a run's output see."""
    home = Path(settings.home)
    match settings.sink:
        case "parquet":
            return read_output(settings.output, "parquet")
        case "kafka":
            return kafka_topics.topic_rows(settings.servers["kafka"], kafka_topics.output_topic(settings.home))
        case "s3":
            return read_output(_output_address(home), "parquet", storage_options=_s3(settings))
        case "delta":
            return pl.read_delta(str(home / "delta"))
        case "iceberg":
            found = pl.from_arrow(_catalog(home).load_table(f"db.{_OUTPUT}").scan().to_arrow())
            assert isinstance(found, pl.DataFrame)
            return found
        case "duckdb":
            with opened_duckdb(str(home / "campaign.duckdb")) as connection:
                found = pl.from_arrow(connection.sql(f"SELECT * FROM {_output_table(home)}").to_arrow_table())
                assert isinstance(found, pl.DataFrame)
                return found
        case _:
            engine = sa.create_engine(_url(settings.sink, settings, home), poolclass=sa.NullPool)
            with engine.connect() as connection:
                return pl.read_database(f"SELECT * FROM {_output_table(home)}", connection, infer_schema_length=None)


def _url(name: str, settings: VictimSettings, place: Path) -> str:
    if name not in _DATABASES:
        raise HoldfastError(f"there is no campaign with '{name}'", cure=f"use one of {', '.join((*SOURCES, *SINKS))}")
    if name == "postgresql":
        return settings.servers["postgresql"].replace("postgresql:", "postgresql+psycopg:")
    place.mkdir(parents=True, exist_ok=True)
    return f"{name}:///{place / f'campaign.{name}'}"


def _output_table(home: Path) -> str:
    """The database may be one for all runs."""
    return f"{_OUTPUT}_{home.name.replace('-', '_')}"


def _output_address(home: Path) -> str:
    return f"s3://{BUCKET}/output-{home.name}"


def _s3(settings: VictimSettings) -> dict[str, str | int | float | bool]:
    return {"endpoint": settings.servers["s3"], "region": "us-east-1"}


def _iceberg(place: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{place / 'catalog.db'}", "warehouse": f"file://{place / 'warehouse'}"}


def _catalog(place: Path) -> Any:
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - an extra

    place.mkdir(parents=True, exist_ok=True)
    catalog = load_catalog("default", **_iceberg(place))
    catalog.create_namespace_if_not_exists("db")
    return catalog
