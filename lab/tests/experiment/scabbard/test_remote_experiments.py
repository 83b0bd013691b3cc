"""The experiments with clients and disks behind a network: a client that is served, and a disk that is slow."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path

import polars as pl
import pytest
from pyspark.sql import SparkSession

from holdfast_lab.experiment.scabbard.remote_clients import NO_OPT, REDUCED, measure
from holdfast_lab.experiment.scabbard.remote_rows import batches
from holdfast_lab.experiment.scabbard.remote_storage import LOCAL, NO_DISK, REMOTE, compared
from holdfast_lab.experiment.scabbard.slow_disk import SlowDisk
from holdfast_lab.workloads.datasets import dataset
from holdfast_lab.workloads.queries import query

_SYNCING = """
import os, sys, time
for directory in sys.argv[1:]:
    began = time.perf_counter()
    for number in range(3):
        file = os.open(os.path.join(directory, str(number)), os.O_CREAT | os.O_WRONLY)
        os.write(file, bytes(500_000))
        os.fsync(file)
        os.close(file)
    print(time.perf_counter() - began)
"""


def test_rows_of_a_client_go_on_in_time_from_round_to_round() -> None:
    data = dataset("sm")
    made = pl.concat(islice(batches(data, 1, 3_000, round_rows=10_000), 12))
    assert made.height > 20_000
    assert made[data.event_time].is_sorted()


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_only_syncs_below_the_slow_directory_wait(tmp_path: Path) -> None:
    slow, fast = tmp_path / "slow", tmp_path / "fast"
    slow.mkdir()
    fast.mkdir()
    disk = SlowDisk(latency=0.1, bandwidth=5e6, operations=1e6)
    ran = subprocess.run(
        [sys.executable, "-c", _SYNCING, str(slow), str(fast)],
        env={**os.environ, **disk.environment(slow, tmp_path)}, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    in_slow, in_fast = map(float, ran.stdout.split())
    assert in_slow >= 3 * (0.1 + 0.1)  # each waits for the latency, and for its bytes
    assert in_fast < in_slow - 0.3


def test_rows_stand_beside_those_of_the_other_disks() -> None:
    rows = [
        {"query": "YSB", "epoch_s": 1.0, "disk": NO_DISK, "tuples_per_s": 100, "latency_p75_ms": 10.0},
        {"query": "YSB", "epoch_s": 1.0, "disk": LOCAL, "tuples_per_s": 90, "latency_p75_ms": 20.0},
        {"query": "YSB", "epoch_s": 1.0, "disk": REMOTE, "tuples_per_s": 80, "latency_p75_ms": 30.0},
        {"query": "SM", "epoch_s": 1.0, "disk": REMOTE, "tuples_per_s": 80, "latency_p75_ms": 30.0},
    ]
    found = compared(rows)
    assert [row["of_no_disk"] for row in found] == [1.0, 0.9, 0.8, None]
    assert [row["times_local_p75"] for row in found] == [0.5, 1.0, 1.5, None]


@pytest.mark.spark
@pytest.mark.long  # `holdfast experiment remote-clients --quick`
def test_all_that_a_client_sent_is_committed_and_reduced_rows_take_less(spark: SparkSession, tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'results.db'}"
    reduced, plain = (
        measure(spark, query("CM1"), way, tmp_path / "run", database, 1.0, 1, warm=0.2) for way in (REDUCED, NO_OPT)
    )
    for found in (reduced, plain):
        assert found.tuples > 0
        assert found.committed
        assert not found.missing
    assert plain.stream_bytes / plain.tuples > 50
    assert reduced.stream_bytes / reduced.tuples < plain.stream_bytes / plain.tuples / 4
