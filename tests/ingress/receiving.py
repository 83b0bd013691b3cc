"""Receivers on real sockets, over a real meta store and synced files, and a way to read back what they took."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import polars as pl

from holdfast.connect.sources.push import push
from holdfast.ingress import IngressServer
from holdfast.meta import MetaStore
from holdfast.pstream.appender import Appender, open_appender
from holdfast.pstream.pstream import PStream

SCHEMA = {"id": pl.Int64, "name": pl.String}
ARROW = "application/vnd.apache.arrow.stream"
NDJSON = "application/x-ndjson"
# One for all tests: making one reads the certificates of the machine.
CLIENT = httpx.Client(timeout=20, limits=httpx.Limits(max_keepalive_connections=0))


@dataclass(slots=True)
class Receiving:
    """A server for one source called `events`."""

    server: IngressServer
    appender: Appender
    meta: MetaStore
    store: Path

    @staticmethod
    @contextmanager
    def open(
        place: Path, schema: Any, *, event_time: str | None = None, meta: str | None = None, **settings: Any
    ) -> Iterator[Receiving]:
        if not settings.keys() & {"http", "flight", "tcp"}:
            settings["http"] = "127.0.0.1:0"
        source = push(schema, **settings)
        opened = MetaStore(meta or place)
        appender = open_appender(
            opened, place, "p.events", source.schema, event_time=event_time, lateness=0, budget=source.budget
        )
        server = IngressServer({"events": (source, appender)}, grace=2.0)
        try:
            with server:
                yield Receiving(server, appender, opened, place)
        finally:
            appender.close()
            opened.close()

    def address(self, protocol: str) -> tuple[str, int]:
        where = self.server.addresses["events"][protocol]
        return where.host, where.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.address('http')[1]}"

    def post(
        self,
        body: Any,
        kind: str = NDJSON,
        *,
        batch: str | None = None,
        source: str = "events",
        **headers: str,
    ) -> httpx.Response:
        sent = {"content-type": kind, **{name.replace("_", "-"): value for name, value in headers.items()}}
        if batch is not None:
            sent["holdfast-batch"] = batch
        return CLIENT.post(f"{self.url}/v1/streams/{source}", content=body, headers=sent)

    def rows(self) -> list[tuple[Any, ...]]:
        return stored(self.meta, self.store).rows()

    def connect(self) -> LineClient:
        return LineClient(self.address("tcp"))


Serve = Callable[..., Receiving]


class LineClient:
    """A client of the TCP receiver."""

    def __init__(self, where: tuple[str, int]) -> None:
        self.socket = socket.create_connection(where, timeout=5)
        self._answers = self.socket.makefile("rb")

    def send(self, text: str | bytes) -> None:
        self.socket.sendall(text.encode() if isinstance(text, str) else text)

    def answer(self) -> str:
        return self._answers.readline().decode().rstrip("\n")

    def until(self, wanted: str) -> None:
        while (line := self.answer()) != wanted:
            assert line.startswith("ok "), line

    def __enter__(self) -> LineClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.close()
        self.socket.close()


def stored(meta: MetaStore, store: Path, stream: str = "p.events") -> pl.DataFrame:
    """All rows of a stream, in its order."""
    log = PStream(meta, store, stream)
    frames = log.load(log.read(0, 10**12))
    return pl.concat([frame.select(pl.exclude("^__hf_.*$")) for frame in frames]) if frames else pl.DataFrame()


def ndjson(rows: Sequence[tuple[int, str]]) -> bytes:
    return b"".join(json.dumps({"id": number, "name": name}).encode() + b"\n" for number, name in rows)


def arrow(frame: pl.DataFrame, **settings: Any) -> bytes:
    sink = io.BytesIO()
    frame.write_ipc_stream(sink, **settings)
    return sink.getvalue()


def numbered(start: int, stop: int) -> list[tuple[int, str]]:
    return [(number, f"n{number}") for number in range(start, stop)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
