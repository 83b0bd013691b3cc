"""`bench` and `chaos` as a user has them: what they print, and that they leave nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def holdfast(directory: Path, *arguments: str) -> str:
    """Run a command in a process of its own with a temporary directory of its own, which must be empty afterwards."""
    temporary = directory / "t"
    temporary.mkdir()
    done = subprocess.run(
        [str(Path(sys.executable).with_name("holdfast")), *arguments],
        env={**os.environ, "TMPDIR": str(temporary)},
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(temporary.iterdir()) == []
    return done.stdout


def last_line(output: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return found


@pytest.mark.long  # its figures are tested with the bench
def test_bench_measures_a_query(tmp_path: Path) -> None:
    told = last_line(holdfast(tmp_path, "bench", "ysb", "--seconds", "1", "--latency", "0.3", "--json"))
    assert told["query"] == "YSB"
    assert told["engine"] == "holdfast"
    assert told["tuples_per_s"] > 1_000_000
    assert told["raw_bytes"] == told["tuples"] * 128
    assert 0 < told["persisted_bytes"] < told["raw_bytes"] / 100
    assert told["epoch_ms"]["p50"] <= told["epoch_ms"]["p95"]


@pytest.mark.long  # the demo kills all processes
def test_chaos_loses_and_doubles_nothing_when_workers_die(tmp_path: Path) -> None:
    output = holdfast(tmp_path, "chaos", "ysb", "--faults", "2", "--seed", "7", "--kinds", "worker", "--json")
    told = last_line(output)
    assert {key: told[key] for key in ("faults", "lost", "duplicated", "equal", "seed")} == {
        "faults": 2,
        "lost": 0,
        "duplicated": 0,
        "equal": True,
        "seed": 7,
    }
    assert told["recovery_ms"]["p95"] > 0
    assert told["output_rows"] > 0
