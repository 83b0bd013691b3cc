"""Whatever clients send, a receiver's memory stays within its bound: measured on a process of its own."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from pyarrow import flight
from receiving import ARROW, NDJSON, free_port, ndjson, numbered
from test_bombs import BOMBS, ipc, nulls, zeros

PIPELINE = """
import polars as pl
import holdfast as hf

pipeline = hf.Pipeline("p")
source = hf.source.push(
    {{"id": pl.Int64, "name": pl.String}}, token="s3cret", max_body="1 MB",
    http="127.0.0.1:{http}", flight="127.0.0.1:{flight}", tcp="127.0.0.1:{tcp}",
)
pipeline.source("events", source).sink("out", hf.sink.parquet("out"))
"""
MB = 1 << 20
STRANGERS_MB = 64
"""What strangers may take all together."""
CLIENTS_MB = 256 + 64
"""The memory of a source, and what libraries keep."""


@pytest.fixture(scope="module")
def ports() -> dict[str, int]:
    return {"http": free_port(), "flight": free_port(), "tcp": free_port()}


@pytest.fixture(scope="module")
def pid(ports: dict[str, int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    place = tmp_path_factory.mktemp("bound")
    (place / "pipeline.py").write_text(PIPELINE.format(**ports))
    command = [sys.executable, "-m", "holdfast", "ingress", "pipeline.py", "--store", str(place / "store")]
    with (place / "said").open("wb") as said:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, cwd=place)
    try:
        assert process.stdout is not None
        while "tcp on" not in (line := process.stdout.readline()):
            assert line, (place / "said").read_text()
        # What the libraries take when they are used for the first time is not the clients' doing.
        for kind, body in ((NDJSON, ndjson(numbered(0, 20_000))), (ARROW, ipc([nulls(10)])), (ARROW, b"")):
            httpx.post(url(ports), content=body, headers=headers(kind), timeout=60)
        put(ports, ipc_batch(), token="s3cret")
        yield process.pid
    finally:
        process.terminate()
        process.communicate(timeout=30)


def url(ports: dict[str, int]) -> str:
    return f"http://127.0.0.1:{ports['http']}/v1/streams/events"


def headers(kind: str) -> dict[str, str]:
    return {"content-type": kind, "authorization": "Bearer s3cret"}


def ipc_batch() -> pa.RecordBatch:
    return pa.record_batch({"id": [1], "name": ["a"]})


def put(
    ports: dict[str, int], batch: pa.RecordBatch, *, token: str | None = None, compression: str | None = None
) -> None:
    given = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
    options = flight.FlightCallOptions(
        headers=given, write_options=pa.ipc.IpcWriteOptions(compression=compression), timeout=60
    )
    with flight.connect(f"grpc://127.0.0.1:{ports['flight']}") as client:
        writer, _ = client.do_put(flight.FlightDescriptor.for_path("events"), batch.schema, options)
        with writer:
            writer.write_batch(batch)


@contextlib.contextmanager
def grows_by_at_most(pid: int, megabytes: int) -> Iterator[None]:
    """The peak of the process's memory over what it has now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    before = _memory(pid, "VmRSS")
    yield
    grown = (_memory(pid, "VmHWM") - before) // MB
    assert grown <= megabytes, f"{grown} MB more"


def _memory(pid: int, what: str) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith(f"{what}:"))


def test_strangers_cost_little(pid: int, ports: dict[str, int]) -> None:
    large = pa.record_batch({"id": pa.array(range(4_000_000)), "name": pa.nulls(4_000_000)})
    with grows_by_at_most(pid, STRANGERS_MB), ExitStack() as stack:
        for _ in range(2):
            with pytest.raises(flight.FlightUnauthenticatedError):
                put(ports, large)
        with flight.connect(f"grpc://127.0.0.1:{ports['flight']}") as client:
            for ask in (client.get_flight_info, client.get_schema):
                with pytest.raises((flight.FlightUnauthenticatedError, OSError), match="unauthenticated"):
                    ask(flight.FlightDescriptor.for_command(b"x" * (100 * MB)))
        for protocol in ("tcp", "http", "flight"):
            for _ in range(30):
                connection = stack.enter_context(socket.create_connection(("127.0.0.1", ports[protocol])))
                connection.settimeout(0.2)
                with contextlib.suppress(OSError):
                    connection.sendall(b"x" * MB)


def test_clients_with_the_token_stay_within_the_memory_of_the_source(pid: int, ports: dict[str, int]) -> None:
    bombs = [(kind, made) for kind, make in BOMBS.values() if len(made := make()) < MB and made[:2] != b"\x1f\x8b"]
    with grows_by_at_most(pid, CLIENTS_MB):

        def post(bomb: tuple[str, bytes]) -> int:
            return httpx.post(url(ports), content=bomb[1], headers=headers(bomb[0]), timeout=60).status_code

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(post, bombs * 2)) <= {413, 429}
        for batch, compression in ((nulls(30_000_000), None), (zeros(9_000_000), "zstd"), (zeros(1_000_000), None)):
            with pytest.raises(pa.ArrowException):
                put(ports, batch, token="s3cret", compression=compression)
        with socket.create_connection(("127.0.0.1", ports["tcp"]), timeout=60) as lines:
            lines.sendall(b"#token s3cret\n" + b"{}\n" * 300_000 + b"x\n")
            lines.shutdown(socket.SHUT_WR)
            answers = b"".join(iter(lambda: lines.recv(1 << 16), b"")).splitlines()
    assert answers[-1].startswith(b"error 400 line 300001: ")
