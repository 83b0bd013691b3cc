"""The tables and topics of `holdfast bench connectors`, on this machine: filled with ad events, and counted again.

Servers are those of the chaos campaigns. Each place holds the same events; a way to write them gets a new table of its
own in the same system.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import sqlalchemy as sa

from holdfast.connect.base import Sink, Source
from holdfast.connect.duckdb_file import opened_duckdb
from holdfast.connect.sinks.database import database as database_sink
from holdfast.connect.sinks.delta_sink import delta as delta_sink
from holdfast.connect.sinks.file_sink import parquet, read_output
from holdfast.connect.sinks.iceberg_sink import iceberg as iceberg_sink
from holdfast.connect.sinks.kafka_sink import kafka as kafka_sink
from holdfast.connect.sources.database_table import database
from holdfast.connect.sources.delta_source import delta
from holdfast.connect.sources.files import files
from holdfast.connect.sources.iceberg_source import iceberg
from holdfast.connect.sources.kafka_source import kafka
from holdfast.sink import Owner
from holdfast_lab.bench.kafka_speed import PARTITIONS, write_messages
from holdfast_lab.bench.polars_query import views
from holdfast_lab.chaos.connector_servers import open_servers
from holdfast_lab.chaos.kafka_server import KafkaServer
from holdfast_lab.chaos.kafka_topics import make_topic, topic_rows
from holdfast_lab.workloads.synthetic import ysb_events

__all__ = ["EVENTS", "Connector", "EventParts", "open_connectors"]

EVENTS = "events"
"""The table or topic that is read."""
_PARTS = 4


@dataclass(frozen=True, slots=True)
class EventParts:
    """The events as Parquet files, a part of them in each."""

    directory: Path
    rows: int
    schema: pl.Schema

    def paths(self) -> list[Path]:
        return sorted(self.directory.iterdir())

    def frames(self) -> Iterator[pl.DataFrame]:
        return map(pl.read_parquet, self.paths())

    @staticmethod
    def written(place: Path, rows: int) -> EventParts:
        """With a number for each row, by which a database reads them."""
        directory = place / f"{rows}.parts"
        directory.mkdir()
        wide = pl.col("ad_type", "event_type").cast(pl.Int32)  # Iceberg has no smaller integers
        events = ysb_events(rows, rows_per_second=20_000).with_columns(wide).with_row_index("n")
        events = events.with_columns(pl.col("n").cast(pl.Int64))
        size = -(-rows // _PARTS)
        for number in range(_PARTS):
            events[number * size : (number + 1) * size].write_parquet(directory / f"{number}.parquet")
        return EventParts(directory, rows, events.schema)


@dataclass(frozen=True, slots=True)
class Connector:
    """One system with the events in it. `written` counts what a reader finds in a table."""

    name: str
    events: EventParts
    source: Callable[[], Source]
    sink: Callable[[str], Sink]
    written: Callable[[str], int]
    address: str = ""
    alone: Mapping[str, Callable[[str], object]] = field(default_factory=dict)
    """The library alone, where there is one: "source" runs the query, "sink" writes the events to a table."""


@contextmanager
def open_connectors(
    place: Path, names: tuple[str, ...], rows: int, say: Callable[[str], None]
) -> Iterator[list[Connector]]:
    """Databases have a quarter of the rows: they take one row at a time from others."""
    parts, fewer = EventParts.written(place, rows), EventParts.written(place, max(_PARTS, rows // 4))
    with open_servers(set(names), say) as servers:
        found = []
        for name in names:
            say(f"{name}: writing {(fewer if name in _DATABASES else parts).rows:,} events")
            if name in _DATABASES:
                url = servers.addresses.get(name, f"{name}:///{place / f'events.{name}'}")
                found.append(_database(name, url, fewer))
            elif name == "kafka":
                assert servers.broker is not None
                found.append(_kafka(servers.broker, parts))
            else:
                found.append(_TABLES[name](place, parts))
        yield found


def _parquet(place: Path, events: EventParts) -> Connector:
    home = place / "parquet"
    return Connector(
        "parquet", events,
        lambda: files(events.directory, "parquet", events.schema),
        lambda table: parquet(home / table),
        lambda table: _rows_of_files(home / table),
        str(home),
    )  # fmt: skip


def _rows_of_files(directory: Path) -> int:
    if list(directory.glob("epoch=*")):
        return read_output(directory, "parquet").height
    return int(pl.scan_parquet(directory / "*.parquet").select(pl.len()).collect().item())


def _delta(place: Path, events: EventParts) -> Connector:
    from deltalake import write_deltalake  # noqa: PLC0415 - an extra

    home = place / "delta"

    def write(table: str) -> None:
        for frame in events.frames():
            write_deltalake(str(home / table), frame.to_arrow(compat_level=pl.CompatLevel.oldest()), mode="append")

    home.mkdir()
    write(EVENTS)
    return Connector(
        "delta", events,
        lambda: delta(home / EVENTS, grow=False),
        lambda table: delta_sink(home / table),
        lambda table: int(pl.scan_delta(str(home / table)).select(pl.len()).collect().item()),
        str(home),
        {"source": lambda _: views(pl.scan_delta(str(home / EVENTS))).collect(), "sink": write},
    )  # fmt: skip


def _iceberg(place: Path, events: EventParts) -> Connector:
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - an extra

    home = place / "iceberg"
    home.mkdir()
    settings = {"type": "sql", "uri": f"sqlite:///{home / 'catalog.db'}", "warehouse": f"file://{home / 'warehouse'}"}
    catalog = load_catalog("default", **settings)
    catalog.create_namespace("bench")

    def write(table: str) -> None:
        made: Any = None
        for frame in events.frames():
            arrow = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
            made = made or catalog.create_table(f"bench.{table}", schema=arrow.schema)
            made.append(arrow)

    def read(table: str) -> pl.DataFrame:
        found = pl.from_arrow(catalog.load_table(f"bench.{table}").scan().to_arrow())
        assert isinstance(found, pl.DataFrame)
        return found

    write(EVENTS)
    return Connector(
        "iceberg", events,
        lambda: iceberg(f"bench.{EVENTS}", settings, grow=False),
        lambda table: iceberg_sink(f"bench.{table}", settings),
        lambda table: read(table).height,
        str(home / "warehouse"),
        {"source": lambda _: views(read(EVENTS).lazy()).collect(), "sink": write},
    )  # fmt: skip


_DATABASES = ("postgresql", "sqlite", "duckdb")
_TABLES: Mapping[str, Callable[[Path, EventParts], Connector]] = {
    "parquet": _parquet, "delta": _delta, "iceberg": _iceberg,
}  # fmt: skip


def _database(name: str, url: str, events: EventParts) -> Connector:
    filled = database_sink(url, EVENTS, key="n")
    filled.attach(Owner("bench", "bench", EVENTS))
    filled.bind(events.schema)
    for epoch, frame in enumerate(events.frames()):
        filled.deliver(epoch, frame, {})

    def count(table: str) -> int:
        query = f"SELECT count(*) FROM {table}"
        if name == "duckdb":
            with opened_duckdb(url.removeprefix("duckdb:///"), write=False) as connection:
                return int(connection.execute(query).fetchall()[0][0])
        engine = sa.create_engine(url)
        with engine.connect() as connected:
            rows = int(connected.execute(sa.text(query)).scalar_one())
        engine.dispose()
        return rows

    return Connector(
        name, events,
        lambda: database(url, EVENTS, "n", grow=False, settle=0),
        lambda table: database_sink(url, table, writer=table),
        count,
        url,
    )  # fmt: skip


def _kafka(server: KafkaServer, events: EventParts) -> Connector:
    write_messages(server, events.rows, EVENTS)  # without their number, which is null then

    def topic(table: str) -> Sink:
        make_topic(server.address, table, PARTITIONS)
        return kafka_sink(server.address, table)

    return Connector(
        "kafka", events,
        lambda: kafka(server.address, EVENTS, events.schema),
        topic,
        lambda table: topic_rows(server.address, table).height,
        server.address,
    )  # fmt: skip
