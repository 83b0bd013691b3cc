"""A pipeline is killed at each step of a change of parallelism, and its output is that of the run with a fixed one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal
from pyspark.sql import SparkSession
from victim import EPOCHS, POINTS, STORED, build, scaled

import holdfast as hf
from holdfast.epoch.record_change import record_of
from holdfast.meta import MetaStore
from strategies import FUZZ

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

PARTITIONS = (3, 1, 4, 2, 5, 3, 1, 4)
"""What is asked for, process by process: more and less."""


def start(home: Path, point: str, partitions: int) -> int:
    """Run a victim until it dies; its exit code."""
    with (home / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("victim.py")), str(home), point, str(partitions)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            return process.wait(240)
        finally:
            with contextlib.suppress(ProcessLookupError):  # Java, which ends by itself, but not at once
                os.killpg(process.pid, signal.SIGKILL)


def last_epoch(home: Path) -> int:
    meta = MetaStore(home / "store")
    try:
        return meta.last_epoch("victim")
    finally:
        meta.close()


def test_the_output_does_not_depend_on_where_a_change_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    plain, home = tmp_path / "plain", tmp_path / "killed"
    hf.run(build(plain), spark=spark, store=tmp_path / "store", partitions=2)
    home.mkdir()
    began = time.monotonic()
    points = POINTS if FUZZ else STORED
    for point, partitions in zip(points, PARTITIONS, strict=False):
        code = start(home, point, partitions)
        assert code == -signal.SIGKILL, f"{point} was not reached:\n{(home / 'log').read_text()[-3000:]}"
        assert last_epoch(home) < EPOCHS, "the input is too short for so many kills"
    scaled(home, PARTITIONS[-1], spark=spark)
    print(f"{len(points)} kills in {time.monotonic() - began:.0f} s")
    assert last_epoch(home) == EPOCHS
    meta = MetaStore(home / "store")
    commit = meta.last_commit("victim")
    meta.close()
    assert commit is not None
    assert record_of(commit).routing["counts"].partitions == PARTITIONS[-1]
    assert_frame_equal(hf.read_output(home / "out", "parquet"), hf.read_output(plain, "parquet"), check_row_order=False)
