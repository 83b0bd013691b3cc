"""The bench of databases: every way writes, and is measured against row dictionaries."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast_lab.bench.database_speed import measure_databases, to_json


@pytest.mark.long
def test_all_ways_are_measured_in_all_databases(tmp_path: Path) -> None:
    speeds = measure_databases(tmp_path, 0.01, epoch_rows=1_000)
    assert [(speed.name, speed.way) for speed in speeds] == [
        (name, way)
        for name in ("postgresql", "sqlite", "duckdb")
        for way in ("row dictionaries", "inserted", "updated by key")
    ]
    assert all(speed.rows_per_second > 0 for speed in speeds)
    assert to_json(speeds)["databases"][0]["times"] == 1.0
