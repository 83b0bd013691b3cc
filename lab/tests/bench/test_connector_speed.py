"""The comparison of connectors: what it makes of runs, and that all its places hold what was written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.errors import HoldfastError
from holdfast.source import Chunk
from holdfast_lab.bench import connector_speed
from holdfast_lab.bench.connector_peers import PEERS
from holdfast_lab.bench.connector_places import Connector, open_connectors
from holdfast_lab.bench.connector_speed import ConnectorRun, ConnectorSpeed, measure_alone

SPARK = "Structured Streaming"
RUNS = (
    ConnectorRun("kafka", "source", "holdfast", 10, 900.0),
    ConnectorRun("delta", "source", "holdfast", 10, 4_000.0),
    ConnectorRun("kafka", "source", "holdfast", 10, 1_100.0),
    ConnectorRun("delta", "source", SPARK, 10, None, "no such method"),
    ConnectorRun("delta", "source", f"{SPARK}, Parquet files", 10, 1_000.0),
    ConnectorRun("kafka", "source", SPARK, 10, 200.0),
)


def test_a_line_is_the_median_of_its_runs_and_one_that_did_not_run_has_its_error() -> None:
    table = ConnectorSpeed(RUNS, None).table()
    assert [(row["connector"], row["engine"], row["times"], row["error"]) for row in table] == [
        ("delta", "holdfast", 1.0, None),
        ("delta", SPARK, None, "no such method"),
        ("delta", f"{SPARK}, Parquet files", 4.0, None),
        ("kafka", "holdfast", 1.0, None),
        ("kafka", SPARK, 5.0, None),
    ]


def test_bars_are_those_of_the_connectors_that_were_measured() -> None:
    assert [(bar.value, bar.ok) for bar in ConnectorSpeed(RUNS, None).bars()] == [(5.0, True)]
    only_mine = ConnectorSpeed((*RUNS[:1], ConnectorRun("postgresql", "sink", "holdfast", 10, 1.0)), 9.0)
    assert [(bar.value, bar.ok) for bar in only_mine.bars()] == [(None, False), (9.0, False)]


@pytest.mark.parametrize(
    "name", ["parquet", "delta", "sqlite", pytest.param("iceberg", marks=pytest.mark.long), "duckdb"]
)
def test_a_place_holds_the_events_and_counts_what_is_written(name: str, tmp_path: Path) -> None:
    said: list[str] = []
    with open_connectors(tmp_path, (name,), 40, said.append) as [connector]:
        rows = connector.events.rows
        assert rows == sum(frame.height for frame in connector.events.frames())
        assert sum(chunk.frame.height for chunk in _chunks(connector)) == rows
        measure_alone([connector], said.append, rounds=1)
        if connector.alone:
            assert connector.written("alone_1") == rows
    assert name in PEERS


def _chunks(connector: Connector) -> Iterator[Chunk]:
    source = connector.source()
    position, done = source.start(), False
    while not done:
        take = source.take(position, 1_000, 1)
        position, done = take.position, take.done
        for piece in take.slices:
            yield from source.read(piece)


def test_a_sink_that_loses_rows_is_an_error(tmp_path: Path) -> None:
    with open_connectors(tmp_path, ("parquet",), 40, lambda text: None) as [connector]:
        lost = replace(connector, written=lambda table: next(connector.events.frames()).height)
        with pytest.raises(HoldfastError, match="10 of 40 rows"):
            connector_speed._check_written(lost, "sink", "t")


def test_of_a_long_trace_the_exception_at_its_bottom_is_told() -> None:
    trace = (
        "Traceback:\n  File x\nPy4JJavaError: calling o1.save.\n: java.sql.SQLException: locked\n\tat org.X(X.java)\n"
    )
    assert connector_speed._told(RuntimeError(trace)) == "java.sql.SQLException: locked"
    assert connector_speed._told(RuntimeError("nothing known")) == "nothing known"
