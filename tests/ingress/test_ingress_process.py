"""`holdfast ingress` as people run it: started, stopped, and killed with -9 under load, as are its clients.

The oracle is what the clients meant to send: each row once, whatever was killed, since they send again with the same
batch ids or from the line they are not sure of.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import flight
from receiving import ARROW, NDJSON, LineClient, arrow, free_port, ndjson, numbered, stored
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from holdfast.meta import MetaStore

PIPELINE = """
import polars as pl
import holdfast as hf
from holdfast.connect.sources.push import push

pipeline = hf.Pipeline("p")
source = push(
    {{"id": pl.Int64, "name": pl.String}},
    http="127.0.0.1:{http}", flight="127.0.0.1:{flight}", tcp="127.0.0.1:{tcp}",
)
pipeline.source("events", source).sink("out", hf.sink.parquet("out"))
"""
PATIENCE = 60.0


class Process:
    """An ingress process that may be killed and started again on the same store and ports."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.ports = {"http": free_port(), "flight": free_port(), "tcp": free_port()}
        self.file = place / "pipeline.py"
        self.file.write_text(PIPELINE.format(**self.ports))
        self.store = place / "store"
        self._running: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Returns when it listens."""
        command = [sys.executable, "-c", "from holdfast.cli import main; main()", "ingress", str(self.file)]
        self._running = subprocess.Popen(
            [*command, "--store", str(self.store), "--every", "0.5"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.place,
        )  # fmt: skip
        assert self._running.stdout is not None
        said = ""
        while "tcp on" not in said:
            line = self._running.stdout.readline()
            assert line, said
            said += line

    def end(self, number: signal.Signals) -> tuple[int, str]:
        """Send a signal and wait; the exit code and what was said."""
        assert self._running is not None
        self._running.send_signal(number)
        said, _ = self._running.communicate(timeout=30)
        code, self._running = self._running.returncode, None
        return code, said

    def rows(self) -> list[tuple[int, str]]:
        meta = MetaStore(self.store)
        try:
            return stored(meta, self.store).rows()
        finally:
            meta.close()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    made = Process(tmp_path)
    yield made
    if made._running is not None:
        made.end(signal.SIGKILL)


def test_serves_until_it_is_told_to_stop_and_serves_one_store_only_once(process: Process) -> None:
    process.start()
    url = f"http://127.0.0.1:{process.ports['http']}/v1/streams/events"
    answer = httpx.post(url, content=ndjson(numbered(0, 10)), headers={"content-type": NDJSON})

    same_store, same_ports = _beside(process, "store"), _beside(process, "other")
    (second, told), (third, heard) = _ended(same_store), _ended(same_ports)
    code, said = process.end(signal.SIGTERM)

    assert answer.json()["rows"] == 10
    assert (second, third) == (1, 1)
    assert "'ingress:p.events' is being run by" in told
    assert f"cannot listen on 127.0.0.1:{process.ports['http']}: another process listens there" in heard
    assert "cure:" in heard
    assert code == 0
    assert "stopping" in said
    assert "events: " in said
    assert "rows/s, 10 rows in 1 batch" in said
    assert process.rows() == numbered(0, 10)


def _beside(process: Process, store: str) -> subprocess.Popen[str]:
    """A second process for the same file."""
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", "ingress", str(process.file)]
    return subprocess.Popen(
        [*command, "--store", str(process.place / store)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=60)
    return process.returncode, said


def test_killed_under_load_it_loses_nothing_and_takes_nothing_twice(process: Process) -> None:
    """Two kills while clients of all protocols send; what they were told is there, what they sent is there once."""
    process.start()
    done = threading.Event()
    acked: list[tuple[int, int]] = []  # ranges of ids that a client was told are durable
    failures: list[BaseException] = []
    clients = [
        threading.Thread(target=_keeping, args=(failures, client, process, number * 1_000_000, done, acked))
        for number, client in enumerate([_http_client, _arrow_client, _flight_client, _line_client, _socket_client])
    ]
    for client in clients:
        client.start()
    for _ in range(2):
        time.sleep(0.7)
        process.end(signal.SIGKILL)
        told = list(acked)
        have = {row[0] for row in process.rows()}
        assert all(start in have and stop - 1 in have for start, stop in told)
        process.start()
    time.sleep(0.3)
    done.set()
    for client in clients:
        client.join(PATIENCE)
    process.end(signal.SIGTERM)

    assert failures == []
    ids = [row[0] for row in process.rows()]
    assert len(ids) == len(set(ids))
    wanted: set[int] = set()
    for start, stop in acked:
        wanted.update(range(start, stop))
    assert set(ids) == wanted
    assert len({number // 1_000_000 for number in ids}) == len(clients)


def _keeping(failures: list[BaseException], client: object, *arguments: object) -> None:
    try:
        client(*arguments)  # type: ignore[operator]
    except BaseException as error:  # noqa: BLE001 - told by the test
        failures.append(error)


def _http_client(
    process: Process, base: int, done: threading.Event, acked: list[tuple[int, int]], kind: str = NDJSON
) -> None:
    """Sends batch after batch, each until it is acknowledged."""
    url = f"http://127.0.0.1:{process.ports['http']}/v1/streams/events"
    deadline = time.monotonic() + PATIENCE
    with httpx.Client(timeout=5, verify=False) as session:
        start = base
        while not done.is_set():
            rows = numbered(start, start + 50)
            body = ndjson(rows) if kind == NDJSON else arrow(pl.DataFrame(rows, schema=["id", "name"], orient="row"))
            while True:
                assert time.monotonic() < deadline
                with contextlib.suppress(httpx.TransportError):
                    answer = session.post(
                        url, content=body, headers={"content-type": kind, "holdfast-batch": f"{start}"}
                    )
                    if answer.status_code == 200:
                        assert answer.json()["rows"] == 50
                        break
                    assert answer.status_code in (429, 503)
                time.sleep(0.02)
            acked.append((start, start + 50))
            start += 50


def _arrow_client(process: Process, base: int, done: threading.Event, acked: list[tuple[int, int]]) -> None:
    _http_client(process, base, done, acked, ARROW)


def _flight_client(process: Process, base: int, done: threading.Event, acked: list[tuple[int, int]]) -> None:
    """Has four batches on their way; after a cut it sends again what was not acknowledged."""
    sent, start = base, base
    deadline = time.monotonic() + PATIENCE
    while not done.is_set() or start < sent:
        assert time.monotonic() < deadline
        try:
            with flight.connect(f"grpc://127.0.0.1:{process.ports['flight']}") as client:
                schema = pa.schema({"id": pa.int64(), "name": pa.string()})
                writer, reader = client.do_put(flight.FlightDescriptor.for_path("events"), schema)
                going = start
                while not done.is_set() or start < sent:
                    while going < start + 200 and (going < sent or not done.is_set()):
                        rows = numbered(going, going + 50)
                        ids, names = zip(*rows, strict=True)
                        data = pa.record_batch({"id": pa.array(ids), "name": pa.array(names)}, schema=schema)
                        writer.write_with_metadata(data, json.dumps({"batch": f"{going}"}).encode())
                        going += 50
                        sent = max(sent, going)
                    message = reader.read()
                    if message is None:
                        break
                    assert json.loads(message.to_pybytes())["rows"] == 50
                    acked.append((start, start + 50))
                    start += 50
                writer.close()
        except pa.ArrowException:
            time.sleep(0.05)


def _socket_client(process: Process, base: int, done: threading.Event, acked: list[tuple[int, int]]) -> None:
    """Has up to five messages on their way, and after a cut sends again what it is not sure of."""
    url = f"ws://127.0.0.1:{process.ports['http']}/v1/streams/events?client=socket&first="
    durable, sent = 0, 0
    deadline = time.monotonic() + PATIENCE
    while not done.is_set() or durable < sent:
        assert time.monotonic() < deadline
        try:
            with connect(f"{url}{durable}", open_timeout=5, close_timeout=0.5) as client:
                assert json.loads(client.recv(timeout=5))["messages"] >= durable
                going = durable
                while not done.is_set() or durable < sent:
                    while going < durable + 5 and (going < sent or not done.is_set()):
                        client.send(ndjson(numbered(base + 50 * going, base + 50 * (going + 1))).decode())
                        going += 1
                        sent = max(sent, going)
                    said = json.loads(client.recv(timeout=5))
                    assert said["message"] == durable + 1, said
                    acked.append((base + 50 * durable, base + 50 * (durable + 1)))
                    durable += 1
        except (OSError, WebSocketException, TimeoutError):
            time.sleep(0.05)


def _line_client(process: Process, base: int, done: threading.Event, acked: list[tuple[int, int]]) -> None:
    """Counts its lines, and after a cut goes on from the last that was acknowledged; cut into other batches then."""
    durable, sent, step = 0, 0, 30
    deadline = time.monotonic() + PATIENCE
    while not done.is_set() or durable < sent:
        assert time.monotonic() < deadline
        with contextlib.suppress(OSError), LineClient(("127.0.0.1", process.ports["tcp"])) as client:
            client.send(f"#client lines {durable}\n")
            going, step = durable, step + 7
            while not done.is_set() or durable < sent:
                stop = going + step if not done.is_set() else max(sent, going)
                client.send(ndjson(numbered(base + going, base + stop)))
                going = stop
                sent = max(sent, going)
                while durable < going:
                    line = client.answer()
                    if not line.startswith("ok "):
                        raise ConnectionResetError(line)
                    now = int(line.removeprefix("ok "))
                    if now > durable:
                        acked.append((base + durable, base + now))
                        durable = now
        time.sleep(0.02)
