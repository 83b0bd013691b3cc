"""Receivers in a process of their own beside the pipeline's: what they take is announced, kill -9 loses and doubles
nothing that was acknowledged, and they end with the pipeline's process, however that ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import httpx
import polars as pl
import psutil
import pytest
from receiving import CLIENT, NDJSON, free_port, ndjson, stored

from holdfast.connect.sources.push import push
from holdfast.errors import AlreadyRunningError, HoldfastError, ListenError
from holdfast.graph.pipeline import Pipeline
from holdfast.ingress.hosted_receivers import hosted_receivers
from holdfast.ingress.receivers import embedded_receivers
from holdfast.meta import MetaStore
from holdfast.pstream import Announcements
from holdfast.sink import parquet

STREAM = "p.events"
PATIENCE = 60.0


def declared(place: Path, http: str = "127.0.0.1:0") -> Pipeline:
    """With a function of this module before the p-stream: what is pushed up goes to the other process."""
    pipeline = Pipeline("p")
    rows = pipeline.source("events", push({"id": pl.Int64, "name": pl.String}, http=http))
    rows.filter(pl.col("id") >= 0).sink("out", parquet(place / "out"))
    return pipeline


def receivers_here() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it may end while it is looked at
            if child.status() != psutil.STATUS_ZOMBIE and "holdfast.ingress.receiver_process" in child.cmdline():
                found.append(child)
    return found


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Client:
    """Sends a batch until it is acknowledged, as a client with batch ids does."""

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}/v1/streams/events"

    def send(self, batch: int, rows: list[tuple[int, str]]) -> dict[str, object]:
        deadline = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(httpx.TransportError):
                headers = {"content-type": NDJSON, "holdfast-batch": str(batch)}
                answer = CLIENT.post(self._url, content=ndjson(rows), headers=headers)
                assert answer.status_code == 200, answer.text
                said: dict[str, object] = answer.json()
                return said
            assert time.monotonic() < deadline
            time.sleep(0.02)


@contextlib.contextmanager
def hosted(
    place: Path, announcements: Announcements | None = None, on_lost: Callable[[], None] = lambda: None
) -> Iterator[Client]:
    found: list[Mapping[str, Mapping[str, str]]] = []
    with hosted_receivers(
        declared(place), place, announcements or Announcements(), on_open=found.append, on_lost=on_lost
    ):
        yield Client(found[0]["events"]["http"])


def rows_of(place: Path) -> list[int]:
    with contextlib.closing(MetaStore(place)) as meta:
        found: list[int] = stored(meta, place, STREAM)["id"].to_list()
        return found


def until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def batch_of(number: int) -> list[tuple[int, str]]:
    return [(number, "good"), (-1, "left out")]


def test_rows_are_announced_and_survive_kills_of_the_receivers_once_each(tmp_path: Path) -> None:
    announcements = Announcements()
    listener = announcements.listener([STREAM])
    with hosted(tmp_path, announcements) as client:
        client.send(0, batch_of(0))
        waited = time.monotonic()
        listener.wait(PATIENCE)
        assert time.monotonic() - waited < PATIENCE / 2, "nobody was woken"
        for kill in range(2):
            [process] = receivers_here()
            sender = threading.Thread(
                target=lambda kill=kill: [client.send(n, batch_of(n)) for n in range(1 + 20 * kill, 21 + 20 * kill)]
            )
            sender.start()
            process.kill()
            sender.join(PATIENCE)
            assert not sender.is_alive()
        assert client.send(3, batch_of(3))["duplicate"]
    assert rows_of(tmp_path) == list(range(41))
    assert receivers_here() == []


def test_receivers_that_die_again_and_again_end_the_run_with_an_error(tmp_path: Path) -> None:
    lost, seen = threading.Event(), set[int]()

    def kill_them() -> None:
        with hosted(tmp_path, on_lost=lost.set):
            while not lost.wait(0.02):
                for process in receivers_here():
                    seen.add(process.pid)
                    process.kill()

    with pytest.raises(HoldfastError, match="died more than 3 times"):
        kill_them()
    assert len(seen) == 4


def test_what_keeps_receivers_from_starting_is_raised_here(tmp_path: Path) -> None:
    where = f"127.0.0.1:{free_port()}"
    with embedded_receivers(declared(tmp_path, where), tmp_path):
        same = hosted_receivers(declared(tmp_path, where), tmp_path, Announcements())
        with pytest.raises(AlreadyRunningError, match="another process receives for source 'events'"):
            same.__enter__()
        other = hosted_receivers(declared(tmp_path, where), tmp_path / "other", Announcements())
        with pytest.raises(ListenError, match="another process listens there"):
            other.__enter__()
    assert receivers_here() == []


PROGRAM = """
import sys, threading
from pathlib import Path
sys.path.insert(0, {tests!r})
from holdfast.ingress.hosted_receivers import hosted_receivers
from holdfast.pstream import Announcements
from test_hosted_receivers import declared, receivers_here

place = Path({place!r})
told = lambda addresses: print(receivers_here()[0].pid, addresses["events"]["http"], flush=True)
with hosted_receivers(declared(place), place, Announcements(), on_open=told):
    threading.Event().wait()
"""


def test_receivers_end_at_once_with_a_process_that_is_killed_and_the_next_one_goes_on(tmp_path: Path) -> None:
    code = PROGRAM.format(tests=str(Path(__file__).parent), place=str(tmp_path))
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    pid, _, address = program.stdout.readline().strip().partition(" ")
    Client(address).send(0, batch_of(0))
    os.kill(program.pid, signal.SIGKILL)
    program.wait()
    program.stdout.close()
    until(lambda: not is_alive(int(pid)))
    with hosted(tmp_path) as client:
        assert client.send(0, batch_of(0))["duplicate"]
        client.send(1, batch_of(1))
    assert rows_of(tmp_path) == [0, 1]
