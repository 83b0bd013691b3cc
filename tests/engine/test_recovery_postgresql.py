"""Runs whose meta store is in PostgreSQL, while the driver or the database is killed."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from test_recovery import ROWS_PER_WINDOW, Victim, frames, output, run, same, start, sums

import holdfast as hf
from holdfast.cli import main as cli
from holdfast.connect.sources.memory import Item
from holdfast.epoch.report import EpochReport
from holdfast.meta import MetaStore
from holdfast_lab.chaos.database_server import DatabaseServer
from observers import watching
from postgres import fresh_url

pytestmark = pytest.mark.spark

__all__ = ["start"]


def crashing(home: Path) -> hf.source.Source:
    first, *rest = frames(1000)
    items: list[Item] = [first, hf.source.Crash(home / "crashed"), *rest]
    return hf.source.memory(items)


def victim_with_postgresql(home: Path) -> None:
    run(home, crashing(home), meta=os.environ["HF_TEST_META"], least_rows=300, most_rows=300)


@pytest.mark.long  # the same as on SQLite, of which there are many
def test_a_driver_that_is_killed_goes_on_from_what_the_database_knows(
    start: Callable[..., Victim], tmp_path: Path, postgresql: DatabaseServer, spark: SparkSession
) -> None:
    url = fresh_url(postgresql)
    assert start(victim_with_postgresql, HF_TEST_META=url).wait() == -signal.SIGKILL
    assert (tmp_path / "crashed").exists()
    assert not list((tmp_path / "store").glob("meta.db*")), "the meta store is in PostgreSQL only"
    before = output(tmp_path)
    assert before.height < sums().height
    meta = MetaStore(url)
    committed = meta.last_epoch("sums")
    meta.close()
    assert committed > 0

    reports: list[EpochReport] = []
    run(
        tmp_path,
        crashing(tmp_path),
        spark=spark,
        meta=url,
        least_rows=300,
        most_rows=300,
        observer=watching(epoch_committed=reports.append),
    )
    assert reports[0].epoch == committed + 1
    same(output(tmp_path), sums())
    assert output(tmp_path)[: before.height].equals(before), "what readers have seen stays as it was"
    told = CliRunner().invoke(cli, ["status", "sums", "--store", str(tmp_path / "store"), "--meta", url, "--json"])
    assert json.loads(told.output)["epoch"] == reports[-1].epoch


def test_a_database_that_is_killed_and_comes_back_is_waited_for(tmp_path: Path, spark: SparkSession) -> None:
    with DatabaseServer() as server:
        back: list[threading.Timer] = []

        def killing(report: EpochReport) -> None:
            if report.epoch == 2:
                server.kill()
                back.append(threading.Timer(1.0, server.start))
                back[0].start()
            if report.epoch == 4:
                server.stop()
                server.start()

        source = hf.source.memory(frames(ROWS_PER_WINDOW), epochs=True)
        run(tmp_path, source, spark=spark, meta=f"{server.url}?timeout=20", observer=watching(epoch_committed=killing))
        back[0].join()
        same(output(tmp_path), sums())


def test_a_database_that_stays_away_ends_the_run_and_the_next_one_goes_on(tmp_path: Path, spark: SparkSession) -> None:
    with DatabaseServer() as server:
        url = server.url  # with the patience that is the default: a shorter one also gives up on a busy machine
        killed: list[int] = []

        def killing(report: EpochReport) -> None:
            if report.epoch == 3:
                server.kill()
                killed.append(report.epoch)

        source = hf.source.memory(frames(ROWS_PER_WINDOW), epochs=True)
        with pytest.raises(hf.HoldfastError, match="cannot reach the meta store") as caught:
            run(tmp_path, source, spark=spark, meta=url, observer=watching(epoch_committed=killing))
        assert killed == [3], f"the run gave up by itself: {caught.value}"
        assert "start again" in caught.value.cure
        server.start()
        # The lease could not be given back. Here the process lives on, as it would not elsewhere.
        meta = MetaStore(url)
        held = meta.lease_holder("sums")
        assert held is not None
        meta.release(meta.acquire("sums", "nobody", 0.0, 0.0, dead_owner=held.owner))
        meta.close()
        run(tmp_path, hf.source.memory(frames(ROWS_PER_WINDOW), epochs=True), spark=spark, meta=url)
        same(output(tmp_path), sums())
