"""How fast the receivers take rows from one client: acknowledged, durable, over HTTP and over Arrow Flight.

The receivers are `holdfast ingress` in a process of its own, the client is another one, both on loopback. A row counts
when its acknowledgement has come. The client makes each batch anew, with event times that go on, as a real one would.
"""

from __future__ import annotations

import http.client
import io
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl
from pyarrow import flight

from holdfast.errors import HoldfastError
from holdfast_lab.workloads.datasets import Dataset, dataset

__all__ = ["BARS", "IngressFigures", "measure_ingress"]

BARS = {"http": 500_000, "flight": 3_000_000}
"""Rows per second that each way must reach."""

BATCH_ROWS = 250_000
_DATASET = "ysb"
_WARM_UP_SECONDS = 2.0
_FILE = """
import holdfast as hf
from holdfast_lab.workloads.datasets import dataset

data = dataset("{dataset}")
pipeline = hf.Pipeline("bench")
source = hf.source.push(data.load(1).schema, {protocol}="127.0.0.1:0", budget="1 TB")
events = pipeline.source("events", source, event_time=data.event_time, time_unit=data.time_unit)
events.sink("out", hf.sink.parquet("out"))
"""


@dataclass(frozen=True, slots=True)
class _Sent:
    """What a client got acknowledged, and how long each batch took."""

    rows: int
    batches: int
    seconds: float
    ack_ms: float


@dataclass(frozen=True, slots=True)
class IngressFigures:
    """Rows per second by protocol, acknowledged and durable, of one client."""

    dataset: str
    batch_rows: int
    sent: dict[str, _Sent]

    def rate(self, protocol: str) -> float:
        return self.sent[protocol].rows / self.sent[protocol].seconds

    def to_json(self) -> dict[str, Any]:
        ways = {
            name: {
                **asdict(sent),
                "rows_per_s": round(self.rate(name)),
                "bar_rows_per_s": BARS[name],
                "passed": self.rate(name) >= BARS[name],
            }
            for name, sent in self.sent.items()
        }
        return {"query": "ingress", "dataset": self.dataset, "batch_rows": self.batch_rows, **ways}

    def lines(self) -> list[str]:
        return [
            f"{name}: {self.rate(name):,.0f} rows/s acknowledged durable; the bar is {BARS[name]:,}"
            f" ({sent.rows:,} rows in {sent.batches:,} batches, {sent.ack_ms:.0f} ms to the acknowledgement)"
            for name, sent in self.sent.items()
        ]


def measure_ingress(seconds: float, place: Path) -> IngressFigures:
    """Measure each way for half of the time, after a warm-up."""
    sent = {}
    for protocol in BARS:
        with _receivers(protocol, place / protocol) as port:
            said = subprocess.run(
                [sys.executable, "-m", "holdfast_lab.bench.ingress_load",
                 protocol, str(port), str(seconds / len(BARS))],
                stdout=subprocess.PIPE, check=True, timeout=seconds + 120,
            )  # fmt: skip
        sent[protocol] = _Sent(**json.loads(said.stdout))
    return IngressFigures(_DATASET, BATCH_ROWS, sent)


@contextmanager
def _receivers(protocol: str, place: Path) -> Iterator[int]:
    """`holdfast ingress` with one source; yields the port it listens on."""
    place.mkdir(parents=True)
    file = place / "bench_pipeline.py"
    file.write_text(_FILE.format(dataset=_DATASET, protocol=protocol))
    process = subprocess.Popen(
        [sys.executable, "-c", "from holdfast.cli import main; main()", "ingress", str(file), "--store", str(place)],
        stdout=subprocess.PIPE, text=True, cwd=place,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        _, found, port = line.strip().rpartition(":")
        if not found:
            raise HoldfastError("the receivers did not start", cure="see what they said above")
        # What else it says is thrown away, so that it never waits for a reader.
        rest = threading.Thread(target=process.stdout.read, daemon=True)
        rest.start()
        yield int(port)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
        process.stdout.close()


# the client


class _Batches:
    """Batches whose event times go on from one to the next."""

    def __init__(self, data: Dataset) -> None:
        self._frame = data.load(BATCH_ROWS)
        self._time = data.event_time
        self._period = data.period(self._frame)
        self._number = 0

    def next(self) -> tuple[pl.DataFrame, str]:
        """The next batch and its id."""
        self._number += 1
        frame = self._frame.with_columns(pl.col(self._time) + self._number * self._period)
        return frame, f"bench-{self._number}"


def _send_http(port: int, batches: _Batches, until: Callable[[], bool]) -> Iterator[tuple[int, float]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    while not until():
        frame, batch = batches.next()
        body = io.BytesIO()
        frame.write_ipc_stream(body)
        headers = {"Content-Type": "application/vnd.apache.arrow.stream", "Holdfast-Batch": batch}
        began = time.perf_counter()
        connection.request("POST", "/v1/streams/events", body.getbuffer(), headers)
        answer = connection.getresponse()
        said = json.loads(answer.read())
        if answer.status != 200:
            raise HoldfastError(said["problem"], cure=said["cure"])
        yield said["rows"], time.perf_counter() - began
    connection.close()


def _send_flight(port: int, batches: _Batches, until: Callable[[], bool]) -> Iterator[tuple[int, float]]:
    """One thread writes while this one reads the acknowledgements."""
    schema = batches.next()[0].to_arrow().schema
    began: dict[str, float] = {}
    with flight.connect(f"grpc://127.0.0.1:{port}") as client:
        writer, reader = client.do_put(flight.FlightDescriptor.for_path("events"), schema)

        def write() -> None:
            while not until():
                frame, batch = batches.next()
                began[batch] = time.perf_counter()
                [data] = frame.to_arrow().combine_chunks().to_batches()
                writer.write_with_metadata(data, json.dumps({"batch": batch}).encode())
            writer.done_writing()

        writing = threading.Thread(target=write, daemon=True)
        writing.start()
        while (message := reader.read()) is not None:
            ack = json.loads(message.to_pybytes())
            if "problem" in ack:
                raise HoldfastError(ack["problem"], cure=ack["cure"])
            yield ack["rows"], time.perf_counter() - began.pop(ack["batch"])
        writing.join()
        writer.close()


def _client(protocol: str, port: int, seconds: float) -> _Sent:
    """Measured from one acknowledgement to another, so that what is on its way at either end counts on neither."""
    warm = time.perf_counter() + _WARM_UP_SECONDS
    first = last = 0.0
    rows = 0
    waits = []
    send = _send_http if protocol == "http" else _send_flight
    for acked, waited in send(port, _Batches(dataset(_DATASET)), lambda: time.perf_counter() > warm + seconds):
        now = time.perf_counter()
        if not first:
            first = now if now >= warm else 0.0
            continue
        rows, last = rows + acked, now
        waits.append(waited)
    if not waits:
        raise HoldfastError("nothing was acknowledged in time", cure="measure for longer, with --seconds")
    return _Sent(rows, len(waits), last - first, 1_000 * sorted(waits)[len(waits) // 2])


if __name__ == "__main__":
    print(json.dumps(asdict(_client(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))))
