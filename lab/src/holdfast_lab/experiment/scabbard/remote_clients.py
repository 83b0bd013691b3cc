"""Experiment `remote-clients`, Fig. 13 of Scabbard: sources and sinks over a network, with data reduction or without.

A client in another process sends rows over Arrow Flight and waits for their acknowledgement; results go to a PostgreSQL
server over TCP, in one transaction per epoch. The receivers make rows durable in a p-stream, reduced (what the query
does not need is left out, the rest is compressed) or as they came.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from holdfast.connect.sinks.database import database as to_database
from holdfast.connect.sources.push import push
from holdfast.engine.observer import Observer
from holdfast.engine.options import RunOptions
from holdfast.epoch.report import EpochReport
from holdfast.graph.policies import DELTA
from holdfast.meta import MetaStore, StreamMeta
from holdfast.run import start
from holdfast_lab.bench.query_runs import session
from holdfast_lab.chaos.database_server import DatabaseServer
from holdfast_lab.experiment.definition import Bar, Experiment, Figure, Result, Row, Settings, at_least
from holdfast_lab.experiment.plots import grouped_bars
from holdfast_lab.experiment.scabbard.query_engines import latency_columns
from holdfast_lab.experiment.scabbard.remote_rows import SentBatch
from holdfast_lab.experiment.time_limit import TimeLimit
from holdfast_lab.workloads.queries import Query, query

__all__ = ["EXPERIMENT", "NO_OPT", "REDUCED", "ClientFigures", "measure"]

REDUCED, NO_OPT = "reduced", "no-opt"
_QUERIES = ("CM1", "CM2", "SG1", "SG2", "SG3", "LRB1", "LRB2", "YSB", "NQ", "SM")
_QUICK_QUERIES = ("SG2", "CM1")
_QUICK_SECONDS, _FULL_SECONDS = 75.0, 1_200.0
_BATCH_ROWS = 100_000
_STAND_SECONDS, _PATIENCE = 60.0, 30.0
_SOURCE = "Scabbard, §6.7 and Fig. 13"


@dataclass(frozen=True, slots=True)
class ClientFigures:
    """What a client saw after the warm-up: rows that were acknowledged, within how many seconds they were, and within
    how many they were committed; per batch the seconds from sending it to its acknowledgement, and to the commit of
    the epoch that contains it."""

    tuples: int
    seconds: float
    until_committed: float
    network_bytes: int
    stream_bytes: int
    acknowledged: list[float]
    committed: list[float]
    missing: int

    @staticmethod
    def of(
        sent: Sequence[SentBatch], reports: Sequence[EpochReport], warm: float, stream_bytes: float
    ) -> ClientFigures:
        """`stream_bytes` are those of a tuple. A batch is contained when all rows before the next one have been read;
        of the last one nobody can say."""
        read, at = [], 0
        for report in reports:
            at += report.rows
            read.append(at)
        counted = [one for one in sent if one.sent >= sent[0].sent + warm]
        committed = []
        for one, after in pairwise(sent):
            place = bisect_left(read, after.offset)
            if one.sent >= sent[0].sent + warm and place < len(reports):
                committed.append(max(0.0, reports[place].committed - one.sent))
        tuples = sum(one.rows for one in counted)
        return ClientFigures(
            tuples=tuples,
            seconds=max(1e-6, counted[-1].acknowledged - counted[0].sent) if counted else 0.0,
            until_committed=reports[-1].committed - counted[0].sent if counted and reports else 0.0,
            network_bytes=sum(one.bytes for one in counted),
            stream_bytes=round(stream_bytes * tuples),
            acknowledged=[one.acknowledged - one.sent for one in counted],
            committed=committed,
            missing=max(0, len(counted) - 1 - len(committed)),
        )


def run(settings: Settings) -> Result:

    seconds = settings.pick(quick=3.0, full=10.0)
    limit = TimeLimit(settings.pick(quick=_QUICK_SECONDS, full=_FULL_SECONDS))
    rows: list[dict[str, Any]] = []
    with DatabaseServer() as server, session("holdfast") as spark:
        for name in settings.pick(quick=_QUICK_QUERIES, full=_QUERIES):
            for way in (REDUCED, NO_OPT):
                if limit.allows(f"{name} {way}"):
                    settings.say(f"{name}: {way}")
                    place = settings.work / f"{name}-{way}"
                    ran = measure(spark, query(name), way, place, server.url, seconds, settings.seed)
                    rows.append(_row(name, way, ran))
    rows = [_against(row, rows) for row in rows]
    return Result(
        keys=("query", "way"),
        rows=rows,
        paper=[
            {"query": name, "way": REDUCED, "times_no_opt": 1.65, "source": f"{_SOURCE}: up to 65 %"}
            for name in ("SG2", "SG3")
        ],
        bars=_bars(rows),
        notes=[*_notes(seconds), *limit.notes()],
        plot=lambda figure: _plot(figure, rows),
        shown=("tuples_per_s", "times_no_opt", "acknowledged_per_s", "network_mb_per_s", "bytes_per_tuple",
               "ack_p50_ms", "latency_p50_ms", "latency_p75_ms", "latency_p95_ms"),
    )  # fmt: skip


def measure(
    spark: SparkSession, query: Query, way: str, place: Path, database: str, seconds: float, seed: int,
    warm: float = 1.5,
) -> ClientFigures:  # fmt: skip
    """Run a query whose rows a client sends for `warm` and `seconds`, and until all of them are committed."""

    reports: list[EpochReport] = []
    port: list[int] = []
    width = _Width(place / "store")

    class DeliveryWatch(Observer):
        def epoch_committed(self, report: EpochReport) -> None:
            reports.append(report)
            width.look()

        def listening(self, addresses: Mapping[str, Mapping[str, str]]) -> None:
            port.append(int(addresses["events"]["flight"].rpartition(":")[2]))

    reduced = way == REDUCED
    name = f"{query.name}_{way}".lower().replace("-", "_")
    schema = query.dataset.load(1).schema
    source = push(schema, flight="127.0.0.1:0", budget="1 GB", push_up=reduced, compress=reduced)
    pipeline = query.build(source, to_database(database, f"results_{name}", writer=name), pipeline_name=name)
    options = RunOptions(store=place / "store", latency=0.2, checkpoint=DELTA, executor="crew")
    try:
        with start(pipeline, options, observer=DeliveryWatch(), spark=spark) as running:
            _until(lambda: bool(port), _STAND_SECONDS)
            said = subprocess.run(
                [sys.executable, "-m", "holdfast_lab.experiment.scabbard.remote_rows", str(port[0]),
                 query.dataset.name, str(seed), str(_BATCH_ROWS), str(warm + seconds)],
                stdout=subprocess.PIPE, check=True, timeout=10 * (warm + seconds) + 60,
            )  # fmt: skip
            sent = [SentBatch(*one) for one in json.loads(said.stdout)]
            _until(lambda: sum(report.rows for report in reports) >= sent[-1].offset, _PATIENCE)
            running.stop()
            running.wait()
        share = sent[-1].offset / max(1, sum(one.rows for one in sent[:-1]))
        return ClientFigures.of(sent, reports, warm, width.bytes_per_row * share)
    finally:
        width.close()
        shutil.rmtree(place, ignore_errors=True)


class _Width:
    """How many bytes a row has in the p-stream of a store: looked up while the stream holds many."""

    def __init__(self, store: Path) -> None:
        self.bytes_per_row = 0.0
        self._store = store
        self._meta: MetaStore | None = None
        self._most = 0

    def look(self) -> None:

        if self._meta is None:
            self._meta = MetaStore(self._store)
        streams = StreamMeta(self._meta)
        for name in streams.streams():
            _, rows, size = streams.retained(name, 0)
            if rows > self._most:
                self._most, self.bytes_per_row = rows, size / rows

    def close(self) -> None:
        if self._meta is not None:
            self._meta.close()


def _until(ready: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not ready() and time.monotonic() < end:
        time.sleep(0.02)


def _row(query: str, way: str, found: ClientFigures) -> dict[str, Any]:

    acks = latency_columns(found.acknowledged)
    return {
        "query": query,
        "way": way,
        "tuples_per_s": found.tuples / found.until_committed if found.until_committed > 0 else None,
        "acknowledged_per_s": found.tuples / found.seconds if found.seconds else None,
        "network_mb_per_s": found.network_bytes / found.seconds / 1e6 if found.seconds else None,
        "bytes_per_tuple": found.stream_bytes / max(1, found.tuples),
        "network_bytes_per_tuple": found.network_bytes / max(1, found.tuples),
        "ack_p50_ms": acks["latency_p50_ms"],
        "ack_p95_ms": acks["latency_p95_ms"],
        **latency_columns(found.committed),
        "batches_not_committed": found.missing,
    }


def _against(row: Row, rows: Sequence[Row]) -> dict[str, Any]:
    base = next((one for one in rows if one["query"] == row["query"] and one["way"] == NO_OPT), None)
    speed = row["tuples_per_s"]
    times = speed / base["tuples_per_s"] if base is not None and speed and base["tuples_per_s"] else None
    return {**row, "times_no_opt": times}


def _bars(rows: Sequence[Row]) -> list[Bar]:
    reduced = [row for row in rows if row["way"] == REDUCED and row["times_no_opt"] is not None]
    best = max((row["times_no_opt"] for row in reduced), default=None)
    found = [at_least("greatest gain by data reduction, in throughput", best, 1.0)]
    for row in reduced:
        [base] = [one for one in rows if one["query"] == row["query"] and one["way"] == NO_OPT]
        less = base["bytes_per_tuple"] / row["bytes_per_tuple"] if row["bytes_per_tuple"] else None
        found.append(at_least(f"{row['query']}: bytes on disk without reduction over those with it", less, 1.5))
    missing = sum(row["batches_not_committed"] for row in rows)
    return [*found, Bar("acknowledged batches that were not committed", missing, 0, missing == 0)]


def _notes(seconds: float) -> list[str]:
    return [
        f"One client in a process of its own sends batches of {_BATCH_ROWS:,} rows over Arrow Flight on loopback, at"
        f" most four unacknowledged, for {seconds:g} s after a warm-up. Client, receivers, pipeline and database share"
        " this machine; the paper has two machines beside that of the engine, and RDMA at 100 Gb/s.",
        "Tuples per second are over the time until all were committed; 'acknowledged' are those that were durable, and"
        " may be ahead of the query. 'ack' is from sending a batch to its acknowledgement, latency"
        " from sending it to the commit of the epoch that contains it, with its results in"
        " the transaction of a PostgreSQL server.",
        "'reduced': receivers leave out rows and columns that the query does not need, and compress the rest; 'no-opt':"
        " rows are written as they come.",
    ]


def _plot(figure: Figure, rows: Sequence[Row]) -> None:

    above, below = figure.subplots(2, 1, sharex=True)
    grouped_bars(above, rows, group="query", series="way", value="tuples_per_s", ylabel="tuples/s")
    grouped_bars(
        below, rows, group="query", series="way", value="latency_p75_ms", ylabel="latency, ms (75 %)", log=True
    )


EXPERIMENT = Experiment(
    name="remote-clients",
    title="Sources and sinks over a network, with data reduction and without",
    figure="Scabbard, Fig. 13",
    needs="Java 17; a disk that syncs; the PostgreSQL server that tests use, from PyPI",
    run=run,
)
