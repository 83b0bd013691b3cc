"""Fragments on Spark: killed one by one and together, in several processes or in one, the output is that of a run
without a cut and without faults."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest
from polars.testing import assert_frame_equal
from pyspark.sql import SparkSession

import holdfast as hf
from harness import WHOLE, run
from holdfast.connect.base import Position, Take
from holdfast.engine.recovery import PHASES, RecoveryReport
from holdfast.errors import DeclarationError, OperatorError
from holdfast.meta import MetaStore, StreamMeta
from holdfast.plan.cuts import cut_pipeline
from holdfast.plan.places import cuts_of, places_of
from holdfast.pstream.description import Placement
from holdfast_lab.chaos.victim import MeteredSource
from observers import watching

pytestmark = pytest.mark.spark

EPOCHS = 30
ROWS = 1_500
EVENTS = pl.DataFrame(
    {
        # Some rows are late: which ones must not depend on where the pipeline is cut.
        "ts": [i * 20 - (9_000 if i % 97 == 0 else 0) for i in range(ROWS)],
        "k": [i % 5 for i in range(ROWS)],
        "v": [(i * 7919) % 101 for i in range(ROWS)],
        "unread": [f"row {i}" for i in range(ROWS)],
    }
)
SINKS = ("some", "all")


class GatedSource(MeteredSource):
    """No more epochs than the number in a file: how far the input comes does not depend on how fast the machine is."""

    def __init__(self, gate: Path) -> None:
        super().__init__(hf.source.memory(frames(), epochs=True), 0.1)
        self.gate = gate

    def take(self, position: Position, rows: int, pieces: int) -> Take:
        taken = ROWS - (self.inner.lag(position) or 0)
        if taken >= int(self.gate.read_text()) * (ROWS // EPOCHS):
            return Take((), position)
        return super().take(position, rows, pieces)


def frames() -> list[pl.DataFrame]:
    size = ROWS // EPOCHS
    return [EVENTS[start : start + size] for start in range(0, ROWS, size)]


def declare(home: Path, cut: bool = True) -> hf.Pipeline:
    """Two p-streams of one writer, each with a reader of its own: one behind a filter, one with partials."""
    pipeline = hf.Pipeline("sums")
    source = GatedSource(home / "gate") if cut else hf.source.memory(EVENTS)
    events = pipeline.source("events", source, event_time="ts", time_unit="ms")

    def kept(name: str) -> hf.Stream:
        return events.persist(name) if cut else events

    def windows(rows: hf.Stream, sink: str) -> None:
        results = (
            rows.key_by("k")
            .window(hf.window.sliding("5s", "1s"), name=f"window-{sink}")
            .agg(n=hf.count(), v=hf.sum("v"))
        )
        results.sink(sink, hf.sink.parquet(home / sink) if cut else hf.sink.collect())

    windows(kept("filtered").filter(pl.col("v") % 3 > 0).named("filter"), "some")
    windows(kept("lifted"), "all")
    return pipeline


PLACES = {"filtered": ("filter", None), "lifted": ("events", "window-all")}


def choose_places(home: Path) -> None:
    """Places of different kinds, as if they had been chosen by an earlier run."""
    pipeline = declare(home)
    placements = {}
    for cut in cuts_of(pipeline.nodes):
        fitting = [p for p in places_of(pipeline.nodes, cut) if (p.after, p.window) == PLACES[cut.name]]
        placements[cut.name] = Placement(fitting[-1], "for the test")
    meta = MetaStore(home / "store")
    for plan in cut_pipeline(pipeline, placements).streams:
        StreamMeta(meta).declare(plan.name, plan.description().encode())
    meta.close()


def last_epoch(home: Path, fragment: str) -> int:
    meta = MetaStore(home / "store")
    try:
        commit = meta.last_commit(f"sums.{fragment}")
        return commit.epoch if commit else 0
    finally:
        meta.close()


def unread(home: Path) -> int:
    """How many rows lie in p-streams that their readers have not read."""
    meta = MetaStore(home / "store")
    try:
        streams = StreamMeta(meta)
        return sum(
            streams.waiting(stream, marker.number)
            for stream in streams.streams()
            for marker in streams.markers(stream)
            if marker.kind == "checkpoint"
        )
    finally:
        meta.close()


def wait_until(what: Callable[[], bool], *alive: Process, seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it took too long"
        for process in alive:
            assert process.alive(), process.log()
        time.sleep(0.1)


class Process:
    """`holdfast run` of some fragments, in a session of its own."""

    def __init__(self, home: Path, *fragments: str) -> None:
        self._log = home / f"log-{fragments[0]}"
        command = [
            sys.executable,
            "-c",
            "from holdfast.cli import main; main()",
            "run",
            str(home / "job.py"),
            "--plain",
        ]
        for fragment in fragments:
            command += ["--fragment", fragment]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--store", str(home / "store")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def alive(self) -> bool:
        return self._process.poll() is None

    def log(self) -> str:
        return self._log.read_text()

    def _members(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
                if os.getsid(process.pid) == self._process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def kill(self) -> None:
        """kill -9 of the driver, Java and all workers."""
        while left := self._members():
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            time.sleep(0.005)
        # Reaped last: while the leader is a zombie, nobody else can get its number.
        self._process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    processes: list[Process] = []

    def starting(*fragments: str) -> Process:
        processes.append(Process(tmp_path, *fragments))
        return processes[-1]

    yield starting
    for process in processes:
        process.kill()


@pytest.mark.long  # holdfast chaos --persist does the same
@pytest.mark.slow
def test_writer_and_readers_die_one_by_one_and_together(
    start: Callable[..., Process], tmp_path: Path, spark: SparkSession
) -> None:
    gate = tmp_path / "gate"
    gate.write_text("10")
    choose_places(tmp_path)
    (tmp_path / "job.py").write_text(
        f"import sys, pathlib\nsys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parent.parent)]!r}\n"
        f"import {Path(__file__).stem} as it\npipeline = it.declare(pathlib.Path({str(tmp_path)!r}))\n"
    )
    writer, readers = start("filtered"), start(*SINKS)
    wait_until(lambda: min(last_epoch(tmp_path, name) for name in ("filtered", *SINKS)) >= 1, writer, readers)

    writer.kill()
    stopped = last_epoch(tmp_path, "filtered")
    wait_until(lambda: unread(tmp_path) == 0, readers)
    time.sleep(0.5)
    assert readers.alive(), "readers wait for a writer that is gone"

    gate.write_text("20")
    writer = start("filtered")
    wait_until(lambda: last_epoch(tmp_path, "filtered") > stopped, writer, readers)
    readers.kill()
    alone, read = last_epoch(tmp_path, "filtered"), [last_epoch(tmp_path, name) for name in SINKS]
    gate.write_text("25")
    wait_until(lambda: last_epoch(tmp_path, "filtered") >= alone + 2, writer)
    writer.kill()
    assert [last_epoch(tmp_path, name) for name in SINKS] == read
    assert unread(tmp_path) > 0

    # Now all fragments in one process.
    reports: list[RecoveryReport] = []
    gate.write_text(str(EPOCHS))
    hf.run(declare(tmp_path), spark=spark, store=tmp_path / "store", observer=watching(recovered=reports.append))
    assert {report.fragment for report in reports} == {f"sums.{name}" for name in ("filtered", *SINKS)}
    assert all(tuple(report.seconds) == PHASES for report in reports)
    assert last_epoch(tmp_path, "filtered") == EPOCHS
    expected = run(declare(tmp_path, cut=False), WHOLE)
    assert sum(expected.late.values()) > 0
    for sink in SINKS:
        seen = hf.read_output(tmp_path / sink, "parquet")
        assert_frame_equal(seen, expected.sinks[sink], check_row_order=False)
    left = [path for path in (tmp_path / "store" / "streams").rglob("*") if path.is_file()]
    assert not left, "what all have read is gone"


def test_a_small_budget_holds_the_writer_back_and_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Both in one process, the reader slow. Over the budget there is at most what was read before any figure was
    known: one epoch of `least_rows`."""
    generator = pl.int_range(0, 150_000, eager=True)
    noise = generator.hash(seed=3).cast(pl.Float64)
    data = pl.DataFrame({"ts": generator, "v": noise})
    budget, least = 300_000, 10_000
    largest, over = [0], threading.Event()

    def slow(rows: pl.DataFrame) -> pl.DataFrame:
        if rows.height:
            time.sleep(0.05)
        return rows

    pipeline = hf.Pipeline("tight")
    kept = pipeline.source("in", hf.source.memory(data), event_time="ts", time_unit="s")
    kept = kept.persist("kept", push_up=False, budget=budget, compress=False)
    rows = kept.map_batches(slow).filter(pl.col("ts") % 100 == 0)
    rows.sink("out", hf.sink.parquet(tmp_path / "out"))

    def watch() -> None:
        while not over.wait(0.005):
            with contextlib.suppress(FileNotFoundError):
                sizes = [path.stat().st_size for path in (tmp_path / "store" / "streams").rglob("*") if path.is_file()]
                largest[0] = max(largest[0], sum(sizes))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        hf.run(pipeline, spark=spark, store=tmp_path / "store", least_rows=least, most_rows=4 * least)
    finally:
        over.set()
        watching.join()
    assert 0 < largest[0] <= budget + least * 16 * 1.1
    seen = hf.read_output(tmp_path / "out", "parquet")
    assert_frame_equal(seen, data.filter(pl.col("ts") % 100 == 0), check_row_order=False)


def test_a_fragment_that_fails_stops_the_others_and_all_go_on_later(
    spark: SparkSession, tmp_path: Path, executor: str
) -> None:
    mended = tmp_path / "mended"

    def fragile(rows: pl.DataFrame) -> pl.DataFrame:
        if rows.height and rows["v"].max() == 7 and not mended.exists():
            raise ZeroDivisionError("7")
        return rows

    def pipeline() -> hf.Pipeline:
        result = hf.Pipeline("fragile")
        data = [pl.DataFrame({"ts": [i], "v": [i]}) for i in range(12)]
        rows = result.source("in", hf.source.memory(data, epochs=True), event_time="ts", time_unit="s")
        kept = rows.persist("kept", push_up=False)
        kept.map_batches(fragile, name="scrub").sink("out", hf.sink.parquet(tmp_path / "out"))
        return result

    options: dict[str, Any] = {"spark": spark, "store": tmp_path / "store", "least_rows": 1, "most_rows": 1}
    options["executor"] = executor
    with pytest.raises(OperatorError, match=r"operator 'scrub', epoch \d+: ZeroDivisionError: 7"):
        hf.run(pipeline(), **options)
    assert hf.read_output(tmp_path / "out", "parquet")["v"].to_list() == list(range(7))
    mended.touch()
    hf.run(pipeline(), **options)
    assert hf.read_output(tmp_path / "out", "parquet")["v"].to_list() == list(range(12))
    with pytest.raises(DeclarationError, match="no fragment 'other'") as caught:
        hf.run(pipeline(), fragments=["other"], **options)
    assert "kept, out" in str(caught.value.cure)
