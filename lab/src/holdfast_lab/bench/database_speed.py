"""How many rows per second the database sink writes, against one dictionary per row, which SQLAlchemy makes of them.

Each epoch is one transaction of the database, with its epoch number and vector, as in a run. PostgreSQL is a server of
its own on this machine, SQLite and DuckDB are files. DuckDB has no SQLAlchemy: there each row is the values of one
statement. No Spark: only the sink is at work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import sqlalchemy as sa

from holdfast.connect.duckdb_file import opened_duckdb
from holdfast.sink import Owner, database
from holdfast_lab.chaos.database_server import DatabaseServer

__all__ = ["DatabaseSpeed", "measure_database", "measure_databases", "to_json"]


@dataclass(frozen=True, slots=True)
class DatabaseSpeed:
    """Of one database, and of one way to write to it."""

    name: str
    way: str
    rows_per_second: float
    against_dictionaries: float

    def line(self) -> str:
        times = f"{self.against_dictionaries:.1f} times row dictionaries"
        return f"{self.name}, {self.way}: {self.rows_per_second:,.0f} rows/s, {times}"


def measure_databases(place: Path, seconds: float, epoch_rows: int = 100_000) -> list[DatabaseSpeed]:
    """Each way for about so many seconds, in turns, so that what else the machine does strikes all of them."""
    found: list[DatabaseSpeed] = []
    with DatabaseServer() as server:
        urls = {"postgresql": server.url, "sqlite": f"sqlite:///{place / 'speed.db'}"}
        urls["duckdb"] = f"duckdb:///{place / 'speed.duckdb'}"
        for name, url in urls.items():
            found += measure_database(name, url, seconds, epoch_rows)
    return found


def to_json(speeds: list[DatabaseSpeed]) -> dict[str, Any]:
    rows = [
        {"database": s.name, "way": s.way, "rows_per_second": s.rows_per_second, "times": s.against_dictionaries}
        for s in speeds
    ]
    return {"query": "database", "engine": "holdfast", "databases": rows}


def results(rows: int, seed: int = 1) -> pl.DataFrame:
    """Rows as a window puts them out: a key, its borders, a count and a mean."""
    numbers = np.random.default_rng(seed)
    start = pl.Series("window_start", np.arange(rows) // 100 * 1_000_000).cast(pl.Datetime("us"))
    return pl.DataFrame(
        {
            "shop": pl.Series(numbers.permutation(rows)).cast(pl.String),  # one row for each key
            "window_start": start,
            "window_end": start.dt.offset_by("1s"),
            "n": numbers.integers(0, 1_000, rows),
            "mean": numbers.random(rows),
        }
    )


def measure_database(name: str, url: str, seconds: float, epoch_rows: int = 100_000) -> Iterator[DatabaseSpeed]:
    """All ways to write to one database."""
    rows = results(epoch_rows)
    ways: dict[str, tuple[pl.DataFrame, Callable[[int, pl.DataFrame], None]]] = {
        "row dictionaries": (rows if name != "duckdb" else rows.head(epoch_rows // 20), _dictionaries(url, rows)),
        "inserted": (rows, _sink(url, "inserted", rows)),
        "updated by key": (rows, _sink(url, "updated", rows, key="shop")),
    }
    spent = dict.fromkeys(ways, 0.0)
    written = dict.fromkeys(ways, 0)
    epoch = 0
    while min(spent.values()) < seconds:
        epoch += 1
        for way, (frame, write) in ways.items():
            if spent[way] >= seconds:
                continue
            with _timed() as took:
                write(epoch, frame)
            if epoch > 1:  # the first one warms up
                spent[way] += took[0]
                written[way] += frame.height
    speeds = {way: written[way] / spent[way] for way in ways}
    for way, speed in speeds.items():
        yield DatabaseSpeed(name, way, speed, speed / speeds["row dictionaries"])


@contextmanager
def _timed() -> Iterator[list[float]]:
    took: list[float] = []
    begun = time.perf_counter()
    yield took
    took.append(time.perf_counter() - begun)


def _sink(url: str, table: str, rows: pl.DataFrame, **given: Any) -> Callable[[int, pl.DataFrame], None]:
    sink = database(url, table, **given)
    sink.attach(Owner("bench", "bench", table))
    sink.bind(rows.schema)
    return lambda epoch, some: sink.deliver(epoch, some, {"in": {"row": epoch}})


def _dictionaries(url: str, rows: pl.DataFrame) -> Callable[[int, pl.DataFrame], None]:
    """A table as the sink makes it, and rows as SQLAlchemy takes them."""
    _sink(url, "dictionaries", rows)
    if url.startswith("duckdb"):
        return _duckdb_rows(url.removeprefix("duckdb:///"), rows)
    engine = sa.create_engine(url)
    table = sa.Table("dictionaries", sa.MetaData(), autoload_with=engine)

    def write(epoch: int, some: pl.DataFrame) -> None:
        with engine.begin() as connection:
            connection.execute(table.insert(), some.to_dicts())

    return write


def _duckdb_rows(path: str, rows: pl.DataFrame) -> Callable[[int, pl.DataFrame], None]:
    """A twentieth of the rows, or nobody would wait for it."""
    marks = ", ".join("?" for _ in rows.columns)

    def write(epoch: int, some: pl.DataFrame) -> None:
        with opened_duckdb(path, write=True) as connection:
            connection.begin()
            connection.executemany(f"INSERT INTO dictionaries VALUES ({marks})", some.rows())
            connection.commit()

    return write
