"""Run a query on Flink: for a while, to see how fast it goes, or over a bounded input, to see what it puts out.

The speed is that of the source: how many lines its readers handed on between two looks at Flink's metrics, each line
standing for a known number of rows. Reading is pressed back by what follows, so that is how fast the query goes.
Results are discarded by Flink's `blackhole` sink. With fault tolerance there is a checkpoint every second, exactly
once, from RocksDB, incremental, to a local directory; without, state is on the heap unless asked for otherwise, which
is where Flink is fastest.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from holdfast.errors import EpochFailedError
from holdfast_lab.workloads.flink_cluster import FlinkJob, FlinkSession, flink_session
from holdfast_lab.workloads.flink_input import FlinkInput, flink_input
from holdfast_lab.workloads.flink_queries import EVENTS, FlinkQuery, flink_query
from holdfast_lab.workloads.queries import query

__all__ = ["FlinkCheckpoint", "FlinkRun", "flink_results", "flink_settings", "run_flink", "source_speed"]

CHECKPOINT_SECONDS = 1.0

_POLL_SECONDS = 0.1
_STEADY = 1.15
"""Times as fast as before: no longer warming up."""

_LONGER_WARM_UPS = 3
_PATIENCE = 90.0
"""Seconds until the first line must have been read."""


@dataclass(frozen=True, slots=True)
class FlinkCheckpoint:
    """A completed checkpoint: what it holds, what of it had to be written, and how long it took from its trigger."""

    state_bytes: int
    written_bytes: int
    seconds: float

    @staticmethod
    def of(answer: Mapping[str, Any]) -> FlinkCheckpoint:
        return FlinkCheckpoint(
            int(answer["state_size"]), int(answer["checkpointed_size"]), answer["end_to_end_duration"] / 1_000
        )


@dataclass(frozen=True, slots=True)
class FlinkRun:
    """What a run did after the warm-up. `ran_out` if the input ended before the time did."""

    query: str
    tuples: int
    seconds: float
    checkpoints: tuple[FlinkCheckpoint, ...]
    ran_out: bool

    @property
    def tuples_per_s(self) -> float:
        return self.tuples / self.seconds if self.seconds > 0 else 0.0


def flink_settings(place: Path, checkpoints: bool, *, heap: bool = False, unaligned: bool = False) -> dict[str, str]:
    """Flink's settings with fault tolerance and without; state is on the `heap` or in RocksDB. `unaligned` checkpoints
    hold what is on its way between operators, too."""
    backend = {"state.backend.type": "hashmap" if heap else "rocksdb"}
    if not checkpoints:
        return backend
    return {
        **backend,
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.unaligned.enabled": str(unaligned).lower(),
        "execution.checkpointing.interval": f"{round(CHECKPOINT_SECONDS * 1_000)} ms",
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": (place / "checkpoints").as_uri(),
        "web.checkpoints.history": "1000",
    }


def run_flink(
    place: Path,
    name: str,
    given: FlinkInput,
    seconds: float,
    *,
    checkpoints: bool,
    heap: bool | None = None,
    unaligned: bool = False,
    warm_up: float = 6.0,
    slide: int | None = None,
) -> FlinkRun:
    """Run query `name` for `seconds` after a warm-up; `given` was made for it.

    State is on the `heap` without checkpoints and in RocksDB with them, unless said otherwise.
    """
    asked = flink_query(name, slide=slide)
    on_heap = not checkpoints if heap is None else heap
    chosen = flink_settings(place, checkpoints, heap=on_heap, unaligned=unaligned)
    with flink_session(place, chosen) as session:
        _prepare(session, asked, given, "'connector' = 'blackhole'")
        return _measure(session, asked.name, asked.insert("results"), given, seconds, warm_up)


def source_speed(place: Path, name: str, given: FlinkInput, seconds: float, *, warm_up: float = 4.0) -> FlinkRun:
    """How fast the input alone is read, unfolded and thrown away."""
    fields = [(column, kind) for column, kind in given.columns]
    declared = ", ".join(f"`{column}` {kind}" for column, kind in fields)
    chosen = ", ".join(f"`{column}`" for column, _ in fields)
    with flink_session(place, flink_settings(place, checkpoints=False, heap=True)) as session:
        session.run(*given.statements())
        session.run(f"CREATE TEMPORARY TABLE results ({declared}) WITH ('connector' = 'blackhole')")
        insert = f"INSERT INTO results SELECT {chosen} FROM {EVENTS}"
        return _measure(session, f"{name} source", insert, given, seconds, warm_up)


def flink_results(
    session: FlinkSession,
    place: Path,
    name: str,
    events: pl.DataFrame,
    schema: pl.Schema,
    *,
    repeat: int = 1,
    slide: int | None = None,
) -> pl.DataFrame:
    """What query `name` puts out for all of `events`, each row `repeat` times; `schema` is that of the results.

    Needs a session without tables; its files go to `place`, a new directory.
    """
    asked = flink_query(name, slide=slide)
    out = place / "out"
    given = flink_input(query(name).dataset, events, asked.reads, place / "input", repeat=repeat)
    _prepare(session, asked, given, f"'connector' = 'filesystem', 'format' = 'csv', 'path' = '{out.as_uri()}'")
    session.start(asked.insert("results")).wait()
    files = [path for path in sorted(out.rglob("*")) if path.is_file() and path.stat().st_size]
    parts = [pl.read_csv(path, has_header=False, new_columns=list(schema), schema=schema) for path in files]
    return pl.concat(parts) if parts else pl.DataFrame(schema=schema)


def _prepare(session: FlinkSession, asked: FlinkQuery, given: FlinkInput, sink: str) -> None:
    session.run(*given.statements(), *asked.statements())
    columns = ", ".join(f"`{column}` {kind}" for column, kind in asked.columns)
    session.run(f"CREATE TEMPORARY TABLE results ({columns}) WITH ({sink})")


def _measure(
    session: FlinkSession, name: str, insert: str, given: FlinkInput, seconds: float, warm_up: float
) -> FlinkRun:
    job = session.start(insert)
    try:
        lines = _Lines(job)
        _until_read(job, lines)
        _warm_up(job, lines, given, warm_up)
        first, last = _watch(job, lines, given, seconds)
        checkpoints = _checkpoints(job, first.at)
        ran_out = not job.running()
    finally:
        job.cancel()
    return FlinkRun(name, last.rows - first.rows, last.at - first.at, checkpoints, ran_out)


@dataclass(frozen=True, slots=True)
class _RowCount:
    at: float
    rows: int


class _Lines:
    """How many lines each reader of the source has handed on."""

    def __init__(self, job: FlinkJob) -> None:
        self._job = job
        self._path: str | None = None

    def read(self) -> list[int] | None:
        """By reader, or None as long as nothing is known, or nothing any more."""
        if self._path is None:
            self._path = self._find()
        answer = self._job.get(self._path) if self._path is not None else None
        return [round(float(metric["value"])) for metric in answer] if answer else None

    def _find(self) -> str | None:
        answer = self._job.get()
        for vertex in answer["vertices"] if answer else ():
            if "Source: instants" in vertex["name"]:
                metrics = f"/vertices/{vertex['id']}/metrics"
                known = [metric["id"] for metric in self._job.get(metrics) or ()]
                counts = [name for name in known if ".Source__instants" in name and name.endswith(".numRecordsOut")]
                if len(counts) == vertex["parallelism"]:
                    return f"{metrics}?get={','.join(counts)}"
        return None


def _until_read(job: FlinkJob, lines: _Lines) -> None:
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        if any(lines.read() or ()):
            return
        if job.get() is None:
            job.wait()  # says what went wrong, if something did
            raise EpochFailedError("the input was over before Flink could be asked", cure="give it more rows")
        time.sleep(_POLL_SECONDS)
    raise EpochFailedError(
        f"Flink read nothing within {_PATIENCE:.0f} s", cure="see flink.log; is the machine very busy?"
    )


def _warm_up(job: FlinkJob, lines: _Lines, given: FlinkInput, seconds: float) -> None:
    """Run for some time, and as long again as it still gets faster: Java compiles what it runs."""
    before = _speed(*_watch(job, lines, given, seconds))
    for _ in range(_LONGER_WARM_UPS):
        now = _speed(*_watch(job, lines, given, seconds / 2))
        if now <= before * _STEADY:
            return
        before = now


def _speed(first: _RowCount, last: _RowCount) -> float:
    return (last.rows - first.rows) / max(last.at - first.at, 1e-9)


def _watch(job: FlinkJob, lines: _Lines, given: FlinkInput, seconds: float) -> tuple[_RowCount, _RowCount]:
    """The first and the last of the moments within the time at which the metrics were new."""
    looks: list[_RowCount] = []
    end = time.time() + seconds
    while time.time() < end:
        counts = lines.read()
        if counts is None:
            break
        rows = sum(given.rows_of(count) for count in counts)
        if not looks or rows > looks[-1].rows:
            looks.append(_RowCount(time.time(), rows))
        time.sleep(_POLL_SECONDS)
    if not looks:
        looks = [_RowCount(end - seconds, 0)]
    if looks[-1].at < end - seconds / 2 and job.get() is not None:
        # Nothing new for a long time is part of the measurement, not an error.
        looks.append(_RowCount(time.time(), looks[-1].rows))
    return looks[0], looks[-1]


def _checkpoints(job: FlinkJob, since: float) -> tuple[FlinkCheckpoint, ...]:
    """Those completed and triggered since then."""
    answer = job.get("/checkpoints")
    history = answer["history"] if answer else ()
    return tuple(
        FlinkCheckpoint.of(entry)
        for entry in history
        if entry["status"] == "COMPLETED" and entry["trigger_timestamp"] / 1_000 >= since
    )
