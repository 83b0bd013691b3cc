"""A client that sends a dataset over Arrow Flight as fast as it is taken, in a process of its own.

    python -m holdfast_lab.experiment.scabbard.remote_rows PORT DATASET SEED BATCH_ROWS SECONDS

Round after round of the dataset, with event times that go on. Standard output gets a JSON list with one item for each
batch that was acknowledged: when it was sent, when it was acknowledged, the place of its first row in the p-stream, its
rows, and its bytes on the wire.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl
import pyarrow as pa
from pyarrow import flight

from holdfast.errors import HoldfastError
from holdfast_lab.experiment.scabbard.varied_input import varied
from holdfast_lab.workloads.datasets import Dataset, dataset

__all__ = ["SentBatch", "batches", "send_rows"]

_ROUND_ROWS = 1_000_000
_WAITING = 4
"""Batches on their way at a time."""


@dataclass(frozen=True, slots=True)
class SentBatch:
    sent: float
    acknowledged: float
    offset: int
    rows: int
    bytes: int


def batches(data: Dataset, seed: int, rows: int, round_rows: int = _ROUND_ROWS) -> Iterator[pl.DataFrame]:
    """The rows of the dataset without end."""
    made = varied(data, seed, round_rows)
    ahead = 0
    while True:
        for start in range(0, made.frame.height, rows):
            yield made.frame[start : start + rows].with_columns(pl.col(data.event_time) + ahead)
        ahead += made.period


def send_rows(port: int, data: Dataset, seed: int, rows: int, seconds: float) -> list[SentBatch]:
    """One thread writes while this one reads the acknowledgements. It begins when the rows are made."""
    made = batches(data, seed, rows)
    first = next(made)
    began: list[tuple[float, int]] = []
    free = threading.Semaphore(_WAITING)
    done: list[SentBatch] = []
    with flight.connect(f"grpc://127.0.0.1:{port}") as client:
        writer, reader = client.do_put(flight.FlightDescriptor.for_path("events"), first.to_arrow().schema)

        def write() -> None:
            frame, end = first, time.time() + seconds
            while time.time() < end:
                free.acquire()
                [batch] = frame.to_arrow().combine_chunks().to_batches()
                began.append((time.time(), pa.ipc.get_record_batch_size(batch)))
                writer.write_with_metadata(batch, json.dumps({"batch": f"rows-{len(began)}"}).encode())
                frame = next(made)
            writer.done_writing()

        writing = threading.Thread(target=write, daemon=True)
        writing.start()
        while (message := reader.read()) is not None:
            ack = json.loads(message.to_pybytes())
            free.release()
            if "problem" in ack:
                raise HoldfastError(ack["problem"], cure=ack["cure"])
            sent, size = began[len(done)]
            done.append(SentBatch(sent, time.time(), ack["offset"], ack["rows"], size))
        writing.join()
        writer.close()
    return done


if __name__ == "__main__":
    found = send_rows(int(sys.argv[1]), dataset(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
    json.dump([(one.sent, one.acknowledged, one.offset, one.rows, one.bytes) for one in found], sys.stdout)
