"""Rows made durable as fast as they come: into a p-stream, and into a plain log for comparison.

Both are fed from memory by one client that keeps a few batches on their way, and count a row when it was acknowledged,
that is when it is on the disk.
"""

from __future__ import annotations

import os
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from holdfast.meta import MetaStore
from holdfast.pstream.appender import Ack, open_appender
from holdfast.ui.figures import quantile
from holdfast_lab.experiment.scabbard.endless_streams import Replayed
from holdfast_lab.workloads.datasets import Dataset

__all__ = ["Ingested", "into_pstream", "into_segments"]

_SEGMENT = 256 << 20


@dataclass(frozen=True, slots=True)
class Ingested:
    """What was measured after the warm-up. Latencies are from handing a batch in to its acknowledgement."""

    rows: int
    seconds: float
    latencies: list[float]
    bytes_per_row: float

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds

    def latency_ms(self, share: float) -> float | None:
        found = quantile(self.latencies, share)
        return None if found is None else found * 1000


def into_pstream(
    place: Path, data: Dataset, stream: Replayed, seconds: float, *, in_flight: int = 4, warm_up: float = 0.5
) -> Ingested:
    """Append batches to a new p-stream in `place`, encoded, synced and committed."""
    meta = MetaStore(place)
    schema = stream.pool[0].schema
    appender = open_appender(meta, place, data.name, schema, event_time=data.event_time, lateness=0, budget=None)
    waiting: deque[tuple[float, Future[Ack]]] = deque()
    done: list[tuple[float, float, int]] = []

    def send(number: int) -> None:
        began = time.perf_counter()
        answer = appender.submit(stream.batch(number))
        # Noted when the answer comes, not when the client gets to look at it.
        answer.add_done_callback(lambda made: _note(done, began, made))
        waiting.append((began, answer))

    try:
        number = 0
        until = time.perf_counter() + warm_up + seconds
        while time.perf_counter() < until:
            send(number)
            number += 1
            if len(waiting) >= in_flight:
                waiting.popleft()[1].result()
        for _, answer in waiting:
            answer.result()
    finally:
        appender.close()
        size = appender.stream.retained()[2]
        meta.close()
    return _measured(done, warm_up, size / max(1, sum(rows for _, _, rows in done)))


def _note(done: list[tuple[float, float, int]], began: float, made: Future[Ack]) -> None:
    if made.exception() is None:
        done.append((began, time.perf_counter(), made.result().rows))


def _measured(done: list[tuple[float, float, int]], warm_up: float, bytes_per_row: float) -> Ingested:
    """From the first acknowledgement after the warm-up to the last."""
    ordered = sorted(done, key=lambda one: one[1])
    first = next((at for at, one in enumerate(ordered) if one[1] >= ordered[0][0] + warm_up), 0)
    counted = ordered[first + 1 :] or ordered
    started = ordered[first][1] if counted is not ordered else ordered[0][0]
    return Ingested(
        sum(rows for _, _, rows in counted),
        counted[-1][1] - started,
        [ended - began for began, ended, _ in counted],
        bytes_per_row,
    )


def into_segments(place: Path, row_bytes: int, batch_bytes: int, seconds: float) -> Ingested:
    """Append batches of rows as they are to files, and sync after each: what a durable log must do at the least."""
    place.mkdir(parents=True)
    rows = max(1, batch_bytes // row_bytes)
    content = os.urandom(rows * row_bytes)
    done: list[tuple[float, float, int]] = []
    until = time.perf_counter() + seconds
    number = 0
    while time.perf_counter() < until:
        path = place / f"segment-{number}"
        with path.open("xb", buffering=0) as file:
            while file.tell() < _SEGMENT and time.perf_counter() < until:
                began = time.perf_counter()
                file.write(content)
                os.fsync(file.fileno())
                done.append((began, time.perf_counter(), rows))
        path.unlink()
        number += 1
    return _measured(done, 0.0, float(row_bytes))
