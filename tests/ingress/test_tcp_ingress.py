"""Lines over TCP: durable when `ok` says so, taken once by clients that count, and never half a line."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from receiving import Receiving, Serve, ndjson, numbered

from holdfast.errors import StoreFullError
from holdfast.ingress import tcp, tcp_connection

LISTEN = {"tcp": "127.0.0.1:0"}
TEXT = {"line": pl.String}


@pytest.mark.parametrize(
    ("schema", "lines", "sent", "rows"),
    [
        (None, "ndjson", b'{"id": 1, "name": "a"}\r\n\n{"id": 2}\n', [(1, "a"), (2, None)]),
        (None, "csv", b'1,a\n2,"b,c"\n', [(1, "a"), (2, "b,c")]),
        (TEXT, "text", "ä b\n\n#c\r\n".encode(), [("ä b",), ("",), ("#c",)]),
    ],
)
def test_takes_lines_of_every_format(serve: Serve, schema: Any, lines: str, sent: bytes, rows: list[Any]) -> None:
    receiving = serve(**({} if schema is None else {"schema": schema}), **LISTEN, lines=lines)

    with receiving.connect() as client:
        client.send(sent)
        client.until(f"ok {sent.count(10)}")

    assert receiving.rows() == rows


def test_a_half_line_at_the_end_is_not_taken(serve: Serve) -> None:
    receiving = serve(**LISTEN)

    with receiving.connect() as client:
        client.send(ndjson(numbered(0, 3)) + b'{"id": 3, "name": "n3"}')
        client.socket.shutdown(socket.SHUT_WR)
        client.until("ok 3")
        assert client.answer() == ""

    assert receiving.rows() == numbered(0, 3)


def test_a_line_that_does_not_fit_ends_the_connection_after_those_before_it(serve: Serve) -> None:
    receiving = serve(**LISTEN)

    with receiving.connect() as client:
        client.send(ndjson(numbered(0, 2)) + b'{"id": "x"}\n' + ndjson(numbered(3, 5)))
        client.until("ok 2")
        answer = client.answer()
        assert client.answer() == ""

    assert answer.startswith("error 422 line 3: \"x\" in column 'id' is not Int64")
    assert "cure:" in answer
    assert receiving.rows() == numbered(0, 2)


def test_lines_that_do_not_fit_are_skipped_where_that_was_declared(serve: Serve) -> None:
    receiving = serve(**LISTEN, bad_rows="skip")

    with receiving.connect() as client:
        client.send(b"#client c\n" + ndjson(numbered(0, 2)) + b"nonsense\n")
        client.until("ok 3")
    with receiving.connect() as client:
        client.send(b"#client c\n")
        assert client.answer() == "ok 3"

    assert receiving.rows() == numbered(0, 2)
    assert receiving.server.totals()["events"].skipped == 1


def test_only_clients_with_the_token_are_heard(serve: Serve) -> None:
    receiving = serve(**LISTEN, token="s3cret")

    for greeting, status in (("", 401), ("#token wrong\n", 403), ("#client x\n", 401)):
        with receiving.connect() as client:
            client.send(greeting.encode() + ndjson(numbered(0, 1)))
            assert client.answer().startswith(f"error {status} ")
    assert receiving.rows() == []
    with receiving.connect() as client:
        client.send(b"#token s3cret\n#client x 0\n" + ndjson(numbered(0, 1)))
        client.until("ok 1")


def test_a_line_that_never_ends_is_refused(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_connection, "MOST_LINE_BYTES", 1000)
    receiving = serve(schema=TEXT, **LISTEN, lines="text")

    for sent in (b"x" * 1001, b"fits\n" + b"x" * 1001, b"y" * 500 + b"\n" + b"x" * 1001 + b"\n"):
        with receiving.connect() as client:
            client.send(sent)
            answers = iter(client.answer, "")
            assert "longer than 1,000 bytes" in next(line for line in answers if not line.startswith("ok "))
    assert all(len(row[0]) <= 1000 for row in receiving.rows())


def test_a_silent_client_is_cut_off(serve: Serve) -> None:
    receiving = serve(**LISTEN, idle=0.2)

    with receiving.connect() as client:
        client.send(ndjson(numbered(0, 1)) + b'{"id"')
        client.until("ok 1")
        assert client.answer().startswith("error 408 ")


def test_too_many_connections_are_refused(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "MOST_MEMBERS", 1)
    receiving = serve(**LISTEN)

    with receiving.connect() as first:
        first.send(ndjson(numbered(0, 1)))
        first.until("ok 1")
        with receiving.connect() as second:
            second.send(ndjson(numbered(1, 2)))
            assert second.answer().startswith("error 429 too many connections")


def test_a_full_stream_makes_the_client_wait_and_then_says_so(serve: Serve) -> None:
    receiving = serve(**LISTEN, max_body=16_000, budget=16_000, idle=0.3)

    with receiving.connect() as client:
        said = ""
        for _ in range(100):
            client.send(ndjson(numbered(0, 400)))
            while (said := client.answer()).startswith("ok ") and int(said.removeprefix("ok ")) % 400:
                pass
            if not said.startswith("ok "):
                break

    assert said.startswith("error 429 p-stream 'p.events' holds")


def test_a_client_that_counts_goes_on_where_it_was(serve: Serve) -> None:
    receiving = serve(**LISTEN)

    with receiving.connect() as client:
        client.send(b"#client c 0\n" + ndjson(numbered(0, 10)))
        client.until("ok 10")
    with receiving.connect() as client:
        client.send(b"#client c 4\n")  # it has forgotten the last six
        assert client.answer() == "ok 10"
        client.send(ndjson(numbered(4, 15)))
        client.until("ok 15")
    with receiving.connect() as client:
        client.send(b"#client c 20\n")
        assert client.answer().startswith("error 400 the first line would be number 20, but only 15 lines")
    with receiving.connect() as client:
        client.send(b"#client c 1 2 3\n")
        assert client.answer().startswith("error 400 ")

    assert receiving.rows() == numbered(0, 15)


def test_the_count_does_not_run_ahead_of_a_batch_that_failed(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    receiving = serve(**LISTEN)

    def full(*_: object) -> None:
        raise StoreFullError("no space left", cure="free some")

    with receiving.connect() as client:
        client.send(b"#client c\n" + ndjson(numbered(0, 3)))
        client.until("ok 3")
        monkeypatch.setattr(receiving.appender._output.writer, "write", full)
        client.send(ndjson(numbered(3, 6)))
        assert client.answer().startswith("error 507 no space left")
    monkeypatch.undo()
    with receiving.connect() as client:
        client.send(b"#client c\n")
        assert client.answer() == "ok 3"
        client.send(ndjson(numbered(3, 6)))
        client.until("ok 6")
    assert receiving.rows() == numbered(0, 6)


def test_a_newer_connection_of_a_client_waits_for_what_the_older_one_has_in_hand(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiving = serve(**LISTEN)
    write = receiving.appender._output.writer.write
    began, go_on = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Any:
        began.set()
        assert go_on.wait(10)
        return write(*arguments)

    with receiving.connect() as older, receiving.connect() as newer:
        older.send(b"#client c\n")
        assert older.answer() == "ok 0"
        monkeypatch.setattr(receiving.appender._output.writer, "write", slow)
        older.send(ndjson(numbered(0, 5)))
        assert began.wait(10)
        newer.send(b"#client c 0\n" + ndjson(numbered(0, 8)))
        time.sleep(0.2)
        go_on.set()
        assert newer.answer() == "ok 5"
        newer.until("ok 8")

    assert receiving.rows() == numbered(0, 8)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    more=st.integers(1, 40),
    # Where each connection starts among the lines it is not sure of, and where it dies; in shares.
    cuts=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=3),
)
def test_however_lines_are_cut_and_sent_again_each_is_taken_once(
    lines: Receiving, more: int, cuts: list[tuple[float, float]]
) -> None:
    """A client that sends some bytes, dies, and starts again from any line that it is not sure of."""
    known = lines.appender.position("c")
    total = known + more
    for start, death in cuts:
        with lines.connect() as client:
            first = int(known * start)
            client.send(f"#client c {first}\n")
            known = int(client.answer().removeprefix("ok "))
            body = ndjson(numbered(first, total))
            client.send(body[: int(len(body) * death)])
    with lines.connect() as client:
        client.send("#client c 0\n")
        client.send(ndjson(numbered(0, total)))
        client.until(f"ok {total}")
    assert lines.rows() == numbered(0, total)


@pytest.fixture
def lines(serve: Serve) -> Receiving:
    return serve(**LISTEN)


def test_stopping_acknowledges_what_has_been_read(serve: Serve) -> None:
    receiving = serve(**LISTEN)

    with receiving.connect() as client:
        client.send(ndjson(numbered(0, 10)))
        client.until("ok 10")
        receiving.server.stop()
        assert client.answer() == ""
    with pytest.raises(OSError, match="refused"):
        receiving.connect()
