"""WebSockets as clients see them: what is acknowledged is durable, in order, and sent again it is not taken twice."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import polars as pl
import pytest
from receiving import SCHEMA, Receiving, Serve, arrow, ndjson, numbered
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.protocol import State
from websockets.sync.client import ClientConnection, connect

from holdfast.errors import StoreFullError
from holdfast.pstream.appender import Ack


def opened(receiving: Receiving, query: str = "", **settings: Any) -> ClientConnection:
    url = receiving.url.replace("http", "ws", 1)
    return connect(f"{url}/v1/streams/events{query}", open_timeout=20, close_timeout=5, **settings)


def heard(client: ClientConnection) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(client.recv(timeout=20))
    return found


def rest(client: ClientConnection) -> tuple[list[dict[str, Any]], int]:
    """All that is said until the end, and its code."""
    said: list[dict[str, Any]] = []
    try:
        while True:
            said.append(heard(client))
    except ConnectionClosed as end:
        return said, end.rcvd.code if end.rcvd is not None else 0


def refused(client: ClientConnection) -> tuple[dict[str, Any], int]:
    """What was said last, and the code at the end."""
    said, code = rest(client)
    return said[-1], code


def until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_each_message_is_acknowledged_when_durable_and_in_order(serve: Serve) -> None:
    receiving = serve()
    with opened(receiving) as client:
        for number in range(20):
            client.send(ndjson(numbered(10 * number, 10 * number + 10)).decode())
        client.send(json.dumps({"id": 200, "name": "n200"}))
        acks = [heard(client) for _ in range(21)]
        there = receiving.rows()
    assert [ack["message"] for ack in acks] == list(range(1, 22))
    assert [ack["rows"] for ack in acks] == [10] * 20 + [1]
    assert acks[-1]["offset"] == 200
    assert there == numbered(0, 201)


def test_binary_messages_are_arrow_also_large_ones_in_fragments(serve: Serve) -> None:
    receiving = serve()
    frame = pl.DataFrame(numbered(0, 100_000), schema=SCHEMA, orient="row")
    body = arrow(frame)
    with opened(receiving) as client:
        client.send(body[at : at + 100_000] for at in range(0, len(body), 100_000))
        assert heard(client)["rows"] == 100_000
    assert receiving.rows() == frame.rows()


def test_a_message_that_does_not_fit_ends_the_connection_and_those_before_it_are_taken(serve: Serve) -> None:
    receiving = serve()
    with opened(receiving) as client:
        client.send(ndjson(numbered(0, 2)).decode())
        client.send('{"id": "no number"}')
        client.send(ndjson(numbered(2, 4)).decode())
        assert heard(client)["message"] == 1
        said, code = refused(client)
    assert (said["message"], said["status"], code) == (2, 422, 1008)
    assert "line 1" in said["problem"]
    assert "source 'events'" in said["place"]
    assert receiving.rows() == numbered(0, 2)
    assert receiving.server.totals()["events"].refused == 1


def test_a_message_that_does_not_become_durable_is_named_although_later_ones_were_handed_in(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiving = serve()
    submit, handed = receiving.appender.submit, list[Future[Ack]]()

    def full_from_the_second_on(*given: Any) -> Future[Ack]:
        handed.append(Future() if handed else submit(*given))
        return handed[-1]

    monkeypatch.setattr(receiving.appender, "submit", full_from_the_second_on)
    with opened(receiving) as client:
        for number in range(3):
            client.send(ndjson(numbered(number, number + 1)).decode())
        assert heard(client)["message"] == 1
        until(lambda: len(handed) == 3)
        for answer in handed[1:]:
            answer.set_exception(StoreFullError("full", cure="make room"))
        said, code = rest(client)
    assert [(one["message"], one["status"]) for one in said] == [(2, 507)]
    assert code == 1013
    assert receiving.rows() == numbered(0, 1)


def test_rows_that_do_not_fit_can_be_skipped(serve: Serve) -> None:
    receiving = serve(bad_rows="skip")
    with opened(receiving) as client:
        client.send('{"id": "no number"}\n{"id": 1, "name": "n1"}')
        assert heard(client) == {
            "message": 1, "number": 1, "offset": 0, "rows": 1, "duplicate": False, "skipped": 1,
        }  # fmt: skip


def test_a_client_with_a_name_goes_on_from_its_count_and_what_it_sends_again_is_dropped(serve: Serve) -> None:
    receiving = serve()
    with opened(receiving, "?client=sensor-7") as client:
        assert heard(client) == {"client": "sensor-7", "messages": 0}
        for number in range(3):
            client.send(ndjson(numbered(number, number + 1)).decode())
        assert [heard(client)["message"] for _ in range(3)] == [1, 2, 3]
    with opened(receiving, "?client=sensor-7&first=1") as client:  # it does not know of the last two
        assert heard(client)["messages"] == 3
        for number in range(1, 5):
            client.send(ndjson(numbered(number, number + 1)).decode())
        acks = [heard(client) for _ in range(4)]
    assert [(ack["message"], ack["duplicate"]) for ack in acks] == [(2, True), (3, True), (4, False), (5, False)]
    with opened(receiving, "?client=sensor-7&first=6") as client:
        said, code = refused(client)
    assert (said["status"], code) == (400, 1008)
    assert "only 5 messages" in said["problem"]
    assert receiving.rows() == numbered(0, 5)


def test_a_newer_connection_of_a_client_ends_the_older_one_which_loses_nothing(serve: Serve) -> None:
    receiving = serve()
    with opened(receiving, "?client=a") as first:
        assert heard(first)["messages"] == 0
        first.send(ndjson(numbered(0, 1)).decode())
        with opened(receiving, "?client=a") as second:
            found = heard(second)["messages"]
            said, _ = rest(first)
            assert said[-1]["status"] == 429
            second.send(ndjson(numbered(found, 2)).decode())
            assert heard(second)["message"] == found + 1
    assert receiving.rows() == numbered(0, 2)


@pytest.mark.parametrize("query", ["?client=", "?first=3", "?client=a%20b", "?client=a&first=x"])
def test_a_query_that_is_not_valid_is_refused_before_the_handshake(serve: Serve, query: str) -> None:
    with pytest.raises(InvalidStatus) as error, opened(serve(), query):
        pass
    assert error.value.response.status_code == 400
    assert "client=<name>" in json.loads(error.value.response.body or b"")["cure"]


def test_the_token_is_asked_for_and_browsers_may_send_it_as_a_subprotocol(serve: Serve) -> None:
    receiving = serve(token="s3cret/+~")
    for headers, status in ({}, 401), ({"Authorization": "Bearer other"}, 403):
        with pytest.raises(InvalidStatus) as error, opened(receiving, additional_headers=headers):
            pass
        assert error.value.response.status_code == status
    packed = base64.urlsafe_b64encode(b"s3cret/+~").decode().rstrip("=")
    ways: list[dict[str, Any]] = [
        {"additional_headers": {"Authorization": "Bearer s3cret/+~"}},
        {"subprotocols": ["holdfast.v1", f"holdfast.token.{packed}"]},
    ]
    for way in ways:
        with opened(receiving, **way) as client:
            client.send("")
            assert heard(client)["rows"] == 0
            assert client.subprotocol == (None if "additional_headers" in way else "holdfast.v1")


def test_pages_of_other_sites_and_other_host_names_are_refused(serve: Serve) -> None:
    receiving = serve(origins=["https://Shop.example"])
    port = receiving.address("http")[1]
    for origin, status in (
        ("https://evil.example", 403), ("null", 403), ("https://shop.example", 101), (f"http://127.0.0.1:{port}", 101),
    ):  # fmt: skip
        if status == 101:
            with opened(receiving, origin=origin):
                continue
        with pytest.raises(InvalidStatus) as error, opened(receiving, origin=origin):
            pass
        assert error.value.response.status_code == status
    with pytest.raises(InvalidStatus) as error, connect(
        f"ws://evil.example:{port}/v1/streams/events", sock=socket.create_connection(("127.0.0.1", port))
    ):  # fmt: skip
        pass
    assert error.value.response.status_code == 421
    with pytest.raises(InvalidStatus) as error, connect(f"{receiving.url.replace('http', 'ws', 1)}/v1/streams/other"):
        pass
    assert error.value.response.status_code == 404


def test_a_message_beyond_the_limit_is_not_taken(serve: Serve) -> None:
    receiving = serve(max_body=10_000, budget=100_000)
    with opened(receiving) as client:
        client.send("x" * 10_001)
        with pytest.raises(ConnectionClosed) as end:
            client.recv(timeout=20)
        assert end.value.rcvd is not None
        assert end.value.rcvd.code == 1009
    with opened(receiving) as client:
        client.send(ndjson(numbered(0, 100)).decode() + " " * 6_000)
        assert heard(client)["rows"] == 100


def test_half_a_message_is_given_up_after_a_while(serve: Serve) -> None:
    receiving = serve(idle=0.3)
    with opened(receiving) as client:
        time.sleep(0.6)  # a client that has nothing to send may stay
        client.send(ndjson(numbered(0, 1)).decode())
        assert heard(client)["message"] == 1

        def half() -> Any:
            yield '{"id": 1, '
            until(lambda: client.protocol.state is not State.OPEN)
            yield '"name": "n1"}'

        with pytest.raises(ConnectionClosed):
            client.send(half())
        said = heard(client)
    assert (said["message"], said["status"]) == (2, 408)
    assert receiving.rows() == numbered(0, 1)


def test_a_full_stream_makes_the_client_wait_and_then_tells_it(serve: Serve) -> None:
    receiving = serve(idle=0.3, max_body=2_000, budget=2_000)
    sent = 0
    with opened(receiving) as client:
        while True:
            client.send(ndjson(numbered(sent, sent + 20)).decode())
            said = heard(client)
            if "status" in said:
                break
            sent += 20
    assert said["status"] == 429
    assert receiving.rows() == numbered(0, sent)


def test_bytes_of_messages_that_are_not_whole_count_against_the_memory_of_the_source(serve: Serve) -> None:
    receiving = serve(idle=1.0, max_body=8_000_000)
    target = receiving.server._targets["events"]
    target._most = 10_000_000
    pieces = [b"x" * 1_000_000] * 7
    with opened(receiving) as one, opened(receiving) as two:

        def slow(wait: threading.Event) -> Any:
            yield from pieces
            wait.wait(20)
            yield b"x"

        wait = threading.Event()
        talks = [threading.Thread(target=_sending, args=(client, slow(wait))) for client in (one, two)]
        for talk in talks:
            talk.start()
        until(lambda: target._received > 6_000_000)
        time.sleep(0.3)
        assert target._received <= 10_000_000
        wait.set()
        for talk in talks:
            talk.join(20)
    until(lambda: target._received == 0)


def _sending(client: ClientConnection, parts: Any) -> None:
    with contextlib.suppress(ConnectionClosed):
        client.send(parts)


def test_a_stop_acknowledges_what_is_on_its_way(serve: Serve) -> None:
    receiving = serve()
    with opened(receiving) as client:
        for number in range(50):
            client.send(ndjson(numbered(number, number + 1)).decode())
        assert heard(client)["message"] == 1
        stopping = threading.Thread(target=receiving.server.stop)
        stopping.start()
        acks, code = rest(client)
        stopping.join(20)
    assert code == 1012
    assert receiving.rows() == numbered(0, 1 + len(acks))
