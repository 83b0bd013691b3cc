"""Connections that say nothing, or say it slowly: they keep nobody out, and cost little."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import time
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from receiving import LineClient, Serve, ndjson, numbered

from holdfast.errors import StoreUnreachableError
from holdfast.ingress import http_guard
from holdfast.ingress.crowd import MOST_STRANGERS, Crowd

LISTEN = {"tcp": "127.0.0.1:0"}
TOKEN = "s3cret"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_strangers_and_members_stay_within_their_limits(arrivals: list[tuple[str, bool]]) -> None:
    crowd: Crowd[int] = Crowd(strangers=5, members=7)
    strangers, members, cut = set[int](), set[int](), set[int]()
    for number, (address, introduced) in enumerate(arrivals):
        out = crowd.admit(number, address)
        strangers.add(number)
        if out is not None:
            strangers.remove(out)
            cut.add(out)
        if introduced and crowd.introduce(number):
            strangers.remove(number)
            members.add(number)
        assert len(strangers) <= 5
        assert len(members) <= 7
        assert set(crowd.everybody()) == strangers | members
    assert not any(crowd.introduce(number) for number in cut)


def test_the_crowded_address_gives_way() -> None:
    crowd: Crowd[str] = Crowd(strangers=3, members=1)
    assert crowd.admit("honest", "10.0.0.1") is None
    assert [crowd.admit(f"silent {number}", "10.0.0.2") for number in range(4)] == [None, None, "silent 0", "silent 1"]
    assert crowd.introduce("honest")


def test_silent_connections_do_not_keep_out_a_client_with_the_token(serve: Serve) -> None:
    receiving = serve(**LISTEN, token=TOKEN)
    with ExitStack() as stack:
        silent = [stack.enter_context(receiving.connect()) for _ in range(2 * MOST_STRANGERS + 50)]
        silent[-1].send("#tok")

        with receiving.connect() as client:
            client.send(f"#token {TOKEN}\n".encode() + ndjson(numbered(0, 3)))
            client.until("ok 3")
    assert receiving.rows() == numbered(0, 3)


def trickled(client: LineClient) -> bytes:
    """What is answered to a line that comes byte by byte and does not end."""
    began = time.monotonic()
    client.socket.settimeout(0.1)
    while time.monotonic() - began < 30:
        try:
            client.send("x")
            return client.socket.recv(1000)
        except TimeoutError:
            pass
        except OSError:
            return b"gone"
    raise AssertionError("nobody minded")


def test_a_stranger_is_given_a_short_line(serve: Serve) -> None:
    receiving = serve(**LISTEN, token=TOKEN)

    with receiving.connect() as client:
        client.send("#token " + "x" * 5000)
        assert client.answer().startswith("error 413 ")


def test_a_stranger_is_given_a_short_time(serve: Serve) -> None:
    receiving = serve(**LISTEN, token=TOKEN, idle=0.5)

    with receiving.connect() as client:
        assert trickled(client) in (b"", b"gone")


def test_a_line_that_comes_byte_by_byte_must_end_in_time(serve: Serve) -> None:
    receiving = serve(**LISTEN, idle=1.0)

    with receiving.connect() as client:
        client.send(ndjson(numbered(0, 1)))
        client.until("ok 1")
        answer = trickled(client)
    assert answer.startswith(b"error 408 the line did not end within 1 s")
    assert receiving.rows() == numbered(0, 1)


class Counted:
    """A socket that counts how often it was asked for a connection."""

    def __init__(self, wrapped: socket.socket) -> None:
        self._wrapped = wrapped
        self.tries = 0

    def accept(self) -> Any:
        self.tries += 1
        return self._wrapped.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


def test_a_process_without_descriptors_waits_and_goes_on(serve: Serve) -> None:
    receiving = serve(**LISTEN)
    counted = Counted(receiving.server._receivers[0]._socket)  # type: ignore[attr-defined]
    receiving.server._receivers[0]._socket = counted  # type: ignore[attr-defined]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting = [socket.socket() for _ in range(3)]
    with ExitStack() as stack:
        for client in waiting:
            stack.enter_context(client)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) - 1, hard))
        try:
            # The lowest free number is at the limit now: nothing can be opened until it is lifted.
            while True:
                try:
                    stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
                except OSError:
                    break
            for client in waiting:
                client.connect(receiving.address("tcp"))
            tries = counted.tries
            time.sleep(1.0)
            tries = counted.tries - tries
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert tries < 50
        waiting[-1].sendall(ndjson(numbered(0, 1)))
        waiting[-1].settimeout(20)
        assert waiting[-1].recv(100) == b"ok 1\n"


def test_http_headers_must_come_in_time_and_silence_keeps_nobody_out(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_guard, "HEAD_SECONDS", 0.5)
    monkeypatch.setattr(http_guard, "_MOST_STRANGERS", 8)
    receiving = serve()
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(receiving.address("http"))) for _ in range(20)]
        assert receiving.post(ndjson(numbered(0, 2))).status_code == 200
        for client in silent:
            client.settimeout(20)
            with contextlib.suppress(ConnectionError):
                assert client.recv(100) == b""
        slow = stack.enter_context(LineClient(receiving.address("http")))
        assert trickled(slow) in (b"", b"gone")
    assert receiving.rows() == numbered(0, 2)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", ""])
def test_a_loopback_listener_is_not_for_pages_of_other_sites(serve: Serve, host: str) -> None:
    receiving = serve()

    answer = receiving.post(ndjson(numbered(0, 1)), host=host)

    assert answer.status_code in (400, 421)
    assert receiving.rows() == []
    for name in ("localhost", "127.0.0.1:1234", "[::1]:80", "LOCALHOST:9"):
        assert receiving.post(ndjson(numbered(0, 1)), host=name).status_code == 200


def test_a_client_is_not_told_what_is_wrong_with_the_receiver(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    receiving = serve()

    def away(*_: object, **__: object) -> None:
        raise StoreUnreachableError("cannot reach the meta store postgresql://ada:***@db.internal/x", cure="see to it")

    monkeypatch.setattr(receiving.appender, "submit", away)

    told = receiving.post(ndjson(numbered(0, 1)))

    assert told.status_code == 503
    assert "internal" not in told.text
    assert "ada" not in told.text
    assert "db.internal" in caplog.text
