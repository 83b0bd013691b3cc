"""A machine that is about to be taken away: the notice is seen, and another host takes over before it is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

import holdfast as hf
from holdfast.cli import main
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.engine.options import RunOptions
from holdfast.errors import DeclarationError
from holdfast.meta import MetaStore
from holdfast.replica import eviction_notice
from holdfast.replica.deployment import deploy, deployment_of
from holdfast.replica.eviction_notice import FileNotice, HttpNotice, acting_on_eviction, parse_notice
from holdfast.replica.host import Host, HostSettings
from holdfast.replica.host_events import HostEvent, HostLeft
from holdfast.replica.keeper import Timing
from holdfast.replica.schemes.active_standby import ACTIVE_STANDBY
from holdfast.replica.seat_store import Agreement


class Service(ThreadingHTTPServer):
    """A metadata service, with the status and the text of its next answers. One with a token wants that."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.status, self.text, self.token = 404, "", ""
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/latest/meta-data/spot/instance-action"


class Answers(BaseHTTPRequestHandler):
    server: Service

    def do_GET(self) -> None:
        self.server.asked.append(f"GET {self.path}")
        if self.headers["X-aws-ec2-metadata-token"] != (self.server.token or None):
            self.answer(401, "")
        else:
            self.answer(self.server.status, self.server.text)

    def do_PUT(self) -> None:
        self.server.asked.append(f"PUT {self.path}")
        self.answer(200, self.server.token)

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield made
        made.shutdown()


def test_a_file_gives_notice_by_being_there(tmp_path: Path) -> None:
    notice = parse_notice(f"file:{tmp_path}/evicted%20soon")
    assert notice == FileNotice(tmp_path / "evicted soon")
    assert notice.given() is None
    (tmp_path / "evicted soon").touch()
    assert "evicted soon" in str(notice.given())


@pytest.mark.parametrize(
    ("status", "text", "noticed"),
    [(404, "not found", False), (500, "sorry", False), (200, "", False), (200, "FALSE\n", False), (200, "NONE", False),
     (200, "TRUE", True), (200, '{"action": "terminate"}', True)],
)  # fmt: skip
def test_a_metadata_service_gives_notice_by_what_it_answers(
    service: Service, status: int, text: str, noticed: bool
) -> None:
    service.status, service.text = status, text
    assert (parse_notice(service.url).given() is not None) == noticed


def test_a_token_is_fetched_where_one_is_wanted(service: Service) -> None:
    service.token = "a-token"
    assert HttpNotice(service.url).given() is None
    service.status, service.text = 200, '{"action": "stop"}'
    assert "stop" in str(HttpNotice(service.url).given())
    assert "PUT /latest/api/token" in service.asked


def test_a_service_that_is_not_there_gives_no_notice() -> None:
    assert HttpNotice("http://127.0.0.1:1/").given() is None


@pytest.mark.parametrize("text", ["evicted", "file:evicted", "https://host/", "http:///path", "ftp://host/path"])
def test_other_places_are_refused(text: str) -> None:
    with pytest.raises(DeclarationError, match="eviction notice"):
        parse_notice(text)
    for command in (["up", "p.py"], ["host", "a"]):
        told = CliRunner().invoke(main, [*command, "--eviction-notice", text])
        assert told.exit_code == 2
        assert "file:/PATH" in told.output


def until(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60.0
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_a_primary_with_a_notice_gives_its_seat_to_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would notice its silence for a minute: the seat was given back."""
    monkeypatch.setattr(eviction_notice, "LOOK_SECONDS", 0.05)

    def build(target: str = "") -> hf.Pipeline:
        pipeline = hf.Pipeline("p")
        rows = hf.source.files(tmp_path / "in", format="ndjson", schema={"ts": pl.Int64}, grow=True, settle=0)
        pipeline.source("rows", rows, event_time="ts", time_unit="s").sink("out", hf.sink.ndjson(tmp_path / "out"))
        return pipeline

    (tmp_path / "in").mkdir()
    meta = MetaStore(tmp_path, sync=False)
    options = RunOptions(store=tmp_path, tasks=1, durable=False)
    deployment = deployment_of(build(), "p", options, meta, ACTIVE_STANDBY, "delta", ("a", "b"))
    agreement = Agreement(meta, "somebody", time.time)
    deploy(deployment, agreement, meta)
    events: dict[str, list[HostEvent]] = {"a": [], "b": []}
    timing = Timing(beat=0.05, detection=60.0)
    hosts = {
        name: Host(
            HostSettings(name=name, store=tmp_path, volatile=tmp_path / name, timing=timing, sync=False),
            build,
            events[name].append,
        )
        for name in ("a", "b")
    }

    def serve(host: Host) -> None:
        with acting_on_eviction(FileNotice(tmp_path / f"evict-{host.settings.name}"), host.leave):
            host.run(InProcessPlatform())

    def primary() -> str | None:
        seat = agreement.look(["p"])["p"].seats.primary
        return None if seat is None else seat.host

    def are_seated() -> bool:
        return primary() in hosts and agreement.look(["p"])["p"].seats.secondary is not None

    threads = {name: threading.Thread(target=serve, args=(host,), daemon=True) for name, host in hosts.items()}
    for name, host in hosts.items():
        host.beat()
        threads[name].start()
    try:
        until("there are a primary and a secondary", are_seated)
        first = str(primary())
        other = "b" if first == "a" else "a"
        (tmp_path / f"evict-{first}").touch()
        until("the other is the primary", lambda: primary() == other)
        threads[first].join(30.0)
        assert not threads[first].is_alive()
        assert [event for event in events[first] if isinstance(event, HostLeft) and "evict-" in event.reason]
        assert threads[other].is_alive()
    finally:
        for name, host in hosts.items():
            host.stop()
            threads[name].join(30.0)
        meta.close()
