"""Hosts that are started one by one, as on several machines: `holdfast host` on each, PostgreSQL between them, and
`holdfast up --hosts 0` that only tells them what to run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

import holdfast as hf
from holdfast.meta import MetaStore
from holdfast.meta.lease_holder import this_process
from holdfast.replica.seat_store import Agreement
from holdfast_lab.chaos.database_server import DatabaseServer
from postgres import fresh_url

pytestmark = [
    pytest.mark.long,  # test_hosts.py starts them by `up`
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

EPOCHS, ROWS = 60, 50
FILE = """
import time
import polars as pl
import holdfast as hf


class Slow(hf.source.Source):
    bounded = True
    schema = pl.Schema({{"ts": pl.Int64, "key": pl.Int64}})

    def start(self):
        return {{"epoch": 0, "at": time.time()}}

    def take(self, position, rows, pieces):
        epoch = position["epoch"]
        if epoch == {epochs}:
            return hf.source.Take((), position, True)
        if time.time() < position["at"] + 0.5:
            return hf.source.Take((), position)
        piece = hf.source.Slice(epoch * {rows}, {rows}, {{}})
        return hf.source.Take((piece,), {{"epoch": epoch + 1, "at": time.time()}})

    def read(self, piece):
        rows = pl.DataFrame({{"ts": range(piece.base, piece.base + piece.rows)}})
        yield hf.source.Chunk(rows.with_columns(key=pl.col("ts") % 5))


def build():
    pipeline = hf.Pipeline("apart")
    rows = pipeline.source("in", Slow(), event_time="ts", time_unit="s").key_by("key")
    rows.window(hf.window.tumbling("100s")).agg(n=hf.count(), total=hf.sum("ts")).sink("out", hf.sink.parquet("{out}"))
    return pipeline
"""


@contextmanager
def started(tmp_path: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with (tmp_path / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            yield process
        finally:
            kill(process.pid)
            process.wait()


def kill(pid: int) -> None:
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in family:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def test_hosts_that_nobody_here_has_started_run_the_pipeline_and_stand_in_for_each_other(
    tmp_path: Path, postgresql: DatabaseServer
) -> None:
    meta, store, file = fresh_url(postgresql), tmp_path / "store", tmp_path / "apart.py"
    file.write_text(FILE.format(epochs=EPOCHS, rows=ROWS, out=tmp_path / "out"))
    shared = ("--store", str(store), "--meta", meta)
    with (
        started(tmp_path, "host", "north", *shared) as north,
        started(tmp_path, "host", "south", *shared) as south,
        started(tmp_path, "up", str(file) + ":build", "--hosts", "0", "--scheme", "active standby", *shared) as up,
    ):
        said = (tmp_path / "log").read_text
        opened = MetaStore(meta, sync=False)
        until = time.monotonic() + 240
        while opened.last_epoch("apart") < 10:
            assert time.monotonic() < until, said()[-3000:]
            time.sleep(0.2)
        seat = Agreement(opened, this_process(), time.time).look(["apart"])["apart"].seats.primary
        assert seat is not None
        kill({"north": north, "south": south}[seat.host].pid)
        assert up.wait(240) == 0, said()[-3000:]
        opened.close()
    rows = sorted(hf.read_output(tmp_path / "out", "parquet").rows())
    numbers = range(EPOCHS * ROWS)
    expected = [
        (key, at, at + 100, len(part), sum(part))
        for key in range(5)
        for at in range(0, EPOCHS * ROWS, 100)
        if (part := [n for n in numbers if n % 5 == key and at <= n < at + 100])
    ]
    assert [(row[0], *row[3:]) for row in rows] == [(key, n, total) for key, _, _, n, total in expected]
