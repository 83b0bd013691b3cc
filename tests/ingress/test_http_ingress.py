"""HTTP: what is acknowledged is durable, what is refused is not taken, and every refusal says why."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import httpx
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from receiving import ARROW, CLIENT, NDJSON, Receiving, Serve, arrow, ndjson, numbered, stored

from holdfast.errors import StoreFullError
from holdfast.ingress import http as ingress_http
from holdfast.meta import MetaStore


def told(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    found = answer.json()
    assert found["problem"]
    assert found["cure"]
    return dict(found)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (NDJSON, b'{"id": 1, "name": "a"}\n\n{"id": 2, "name": "b", "more": 0}\n{"id": 3}'),
        ("text/csv", b"name,other,id\na,x,1\nb,y,2\n,z,3\n"),
        ("text/csv; header=absent; charset=utf-8", b"1,a\n2,b\n3,\n"),
        (ARROW, arrow(pl.DataFrame({"name": ["a", "b", None], "id": pl.Series([1, 2, 3], dtype=pl.Int32)}))),
    ],
)
def test_takes_every_format_in_order(serve: Serve, kind: str, body: bytes) -> None:
    receiving = serve()

    answer = receiving.post(body, kind, batch="one")

    assert answer.status_code == 200, answer.text
    assert answer.json() == {"batch": "one", "number": 1, "offset": 0, "rows": 3, "duplicate": False}
    assert [row[0] for row in receiving.rows()] == [1, 2, 3]
    assert [row[1] for row in receiving.rows()][:2] == ["a", "b"]


def test_takes_arrow_files_and_packed_bodies(serve: Serve) -> None:
    receiving = serve()
    frame = pl.DataFrame(numbered(0, 1000), schema=["id", "name"], orient="row")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, frame.to_arrow().schema) as writer:
        writer.write_table(frame.to_arrow())
    packed = pa.BufferOutputStream()
    with pa.CompressedOutputStream(packed, "zstd") as stream:
        stream.write(ndjson(numbered(2000, 3000)))

    answers = [
        receiving.post(sink.getvalue().to_pybytes(), "application/vnd.apache.arrow.file"),
        receiving.post(gzip.compress(ndjson(numbered(1000, 2000))), content_encoding="gzip"),
        receiving.post(packed.getvalue().to_pybytes(), content_encoding="zstd"),
        receiving.post(arrow(frame, compression="zstd"), ARROW),
    ]

    assert [(answer.status_code, answer.json()["offset"]) for answer in answers] == [
        (200, 0), (200, 1000), (200, 2000), (200, 3000),
    ]  # fmt: skip
    assert receiving.rows() == numbered(0, 3000) + numbered(0, 1000)


def test_an_acknowledged_batch_is_in_the_store_of_the_next_process(serve: Serve, tmp_path: Any) -> None:
    receiving = serve()
    assert receiving.post(ndjson(numbered(0, 5))).status_code == 200

    meta = MetaStore(tmp_path)  # opened beside the one that wrote
    try:
        assert stored(meta, tmp_path).rows() == numbered(0, 5)
    finally:
        meta.close()


def test_a_batch_sent_again_is_answered_as_the_first_time_and_not_taken_twice(serve: Serve) -> None:
    receiving = serve()
    body = ndjson(numbered(0, 4))

    first = receiving.post(body, batch="a").json()
    receiving.post(ndjson(numbered(4, 6)), batch="b")
    again = receiving.post(body, batch="a").json()

    assert again == {**first, "duplicate": True}
    assert receiving.rows() == numbered(0, 6)
    assert receiving.server.totals()["events"].duplicates == 1


@pytest.mark.parametrize(
    ("kind", "body", "status", "place", "problem"),
    [
        (NDJSON, b'{"id": 1}\n{"id": ', 400, "line 2 (byte 10)", "malformed JSON"),
        (NDJSON, b'{"id": 1}\n[1]\n', 400, "line 2 (byte 10)", "instead of an object"),
        (NDJSON, b'\n{"id": 1}\n{"id": "x"}\n', 422, "line 3 (byte 11)", "\"x\" in column 'id' is not Int64"),
        ("text/csv", b"id,name\n1,a\n2\n", 400, "line 3 (byte 12)", "expected 2 fields, found 1"),
        ("text/csv", b'id,name\n1,"a\n', 400, "line 2 (byte 8)", "quote is not closed"),
        ("text/csv", b"id,name\n1,a\nx,b\n", 422, "line 3 (byte 12)", "'x' in column 'id' is not Int64"),
        ("text/csv", b"id,nom\n1,a\n", 422, "line 1 (byte 0)", "no column 'name'"),
        (ARROW, b"not arrow at all", 400, "record batch 0", "readable Arrow IPC"),
        (ARROW, arrow(pl.DataFrame({"id": [1]})), 422, "column 'name'", "no column 'name' (String)"),
        (ARROW, arrow(pl.DataFrame({"id": [1.5], "name": ["a"]})), 422, "column 'id'", "expected Int64, found Float64"),
        (
            ARROW,
            arrow(pl.DataFrame({"id": [1] * 9, "name": ["a"] * 9}))[:-100],
            400,
            "record batch 0",
            "readable Arrow IPC",
        ),
        ("application/json", b"{}", 415, "Content-Type", "application/json"),
        ("text/csv; charset=latin-1", b"id,name\n", 415, "Content-Type", "latin-1"),
    ],
)
def test_a_body_that_does_not_fit_is_refused_whole(
    serve: Serve, kind: str, body: bytes, status: int, place: str, problem: str
) -> None:
    receiving = serve()

    refused = told(receiving.post(body, kind), status)

    assert place in refused["place"]
    assert "source 'events'" in refused["place"]
    assert problem in refused["problem"]
    assert receiving.rows() == []


def test_rows_that_do_not_fit_are_skipped_where_that_was_declared(serve: Serve) -> None:
    receiving = serve(bad_rows="skip")

    answer = receiving.post(b'{"id": 1, "name": "a"}\nnonsense\n{"id": "x"}\n{"id": 2, "name": "b"}\n').json()

    assert (answer["rows"], answer["skipped"]) == (2, 2)
    assert [skipped["line"] for skipped in answer["first_skipped"]] == [2, 3]
    assert receiving.rows() == [(1, "a"), (2, "b")]


def test_a_row_without_event_time_is_refused(serve: Serve) -> None:
    receiving = serve(event_time="id")

    refused = told(receiving.post(b'{"id": 1}\n{"name": "a"}\n'), 422)

    assert "no event time" in refused["problem"]
    assert receiving.rows() == []


def test_bodies_beyond_the_limit_are_refused_also_when_they_come_in_chunks_or_packed(serve: Serve) -> None:
    receiving = serve(max_body=10_000)
    body = ndjson(numbered(0, 1000))

    def chunks() -> Any:
        for at in range(0, len(body), 1000):
            yield body[at : at + 1000]

    for answer in (
        receiving.post(body),
        receiving.post(chunks()),
        receiving.post(gzip.compress(b'{"id": 1}\n' * 100_000), content_encoding="gzip"),
    ):
        assert "10,000 bytes" in told(answer, 413)["problem"]
    assert receiving.rows() == []
    assert receiving.post(ndjson(numbered(0, 10))).status_code == 200


def test_damaged_compression_is_refused(serve: Serve) -> None:
    receiving = serve()
    packed = gzip.compress(ndjson(numbered(0, 100)))

    told(receiving.post(packed[:-20], content_encoding="gzip"), 400)
    told(receiving.post(b"no gzip", content_encoding="gzip"), 400)
    told(receiving.post(b"no zstd", content_encoding="zstd"), 400)
    told(receiving.post(packed, content_encoding="br"), 415)
    assert receiving.rows() == []


def test_only_clients_with_the_token_are_heard(serve: Serve) -> None:
    receiving = serve(token="s3cret")
    body = ndjson(numbered(0, 1))

    missing = receiving.post(body)
    assert told(missing, 401)["cure"].startswith("send the header 'Authorization")
    assert missing.headers["www-authenticate"] == "Bearer"
    assert "s3cret" not in told(receiving.post(body, authorization="Bearer wrong"), 403)["problem"]
    told(receiving.post(body, source="other"), 401)
    assert CLIENT.get(f"{receiving.url}/v1/streams").status_code == 401
    assert CLIENT.get(f"{receiving.url}/healthz").json() == {"ok": True}
    assert receiving.rows() == []
    assert receiving.post(body, authorization="Bearer s3cret").status_code == 200
    told(receiving.post(body, source="other", authorization="Bearer s3cret"), 404)


def test_unknown_sources_paths_and_methods_are_named(serve: Serve) -> None:
    receiving = serve()

    assert "events" in told(receiving.post(b"", source="evnets"), 404)["cure"]
    told(CLIENT.get(f"{receiving.url}/nothing"), 404)
    answer = CLIENT.put(f"{receiving.url}/v1/streams/events", content=b"x" * 100_000)
    assert "PUT" in told(answer, 405)["problem"]
    assert answer.headers["allow"] == "POST"
    told(receiving.post(ndjson(numbered(0, 1)), batch="has space"), 400)
    told(receiving.post(ndjson(numbered(0, 1)), batch="x" * 201), 400)
    assert receiving.rows() == []


def test_shows_its_sources(serve: Serve) -> None:
    receiving = serve()
    receiving.post(ndjson(numbered(0, 7)))

    found = CLIENT.get(f"{receiving.url}/v1/streams").json()["streams"]["events"]

    assert found["schema"] == {"id": "Int64", "name": "String"}
    assert found["offset"] == 7


def test_a_stream_that_is_full_asks_to_try_again(serve: Serve) -> None:
    receiving = serve(max_body=16_000, budget=16_000)

    answers = [receiving.post(ndjson(numbered(0, 500)), batch=str(number)) for number in range(30)]

    first = next(number for number, answer in enumerate(answers) if answer.status_code != 200)
    refused = answers[first]
    assert "budget" in told(refused, 429)["problem"]
    assert int(refused.headers["retry-after"]) >= 1
    assert len(receiving.rows()) == first * 500


def test_a_full_disk_is_told_as_such(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    receiving = serve()

    def full(*_: object) -> None:
        raise StoreFullError("no space left", cure="free some")

    monkeypatch.setattr(receiving.appender._output.writer, "write", full)
    assert told(receiving.post(ndjson(numbered(0, 1)), batch="a"), 507)["problem"] == "no space left"
    monkeypatch.undo()
    assert receiving.post(ndjson(numbered(0, 1)), batch="a").json()["duplicate"] is False


def test_too_much_on_its_way_is_refused_before_it_is_read(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    receiving = serve()
    monkeypatch.setattr(receiving.appender, "pending_bytes", lambda: 10**9)

    refused = receiving.post(ndjson(numbered(0, 1)))

    assert "on their way" in told(refused, 429)["problem"]
    assert "retry-after" in refused.headers


def half_of_a_request(receiving: Receiving, body: bytes) -> socket.socket:
    """A client that has sent the first half of its body, to a server that reads it."""
    client = socket.create_connection(receiving.address("http"), timeout=10)
    head = (
        "POST /v1/streams/events HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: {NDJSON}\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n"
    )
    client.sendall(head.encode())
    assert client.recv(1000).startswith(b"HTTP/1.1 100")
    client.sendall(body[: len(body) // 2])
    return client


def until_nobody_listens(receiving: Receiving) -> None:
    with contextlib.suppress(ConnectionRefusedError):
        while True:
            socket.create_connection(receiving.address("http"), timeout=10).close()
            time.sleep(0.01)


def test_a_client_that_is_cut_off_in_its_body_leaves_nothing(serve: Serve) -> None:
    receiving = serve()
    body = ndjson(numbered(0, 1000))

    for linger in (True, False):
        with half_of_a_request(receiving, body) as client:
            if linger:
                client.shutdown(socket.SHUT_WR)
                client.recv(1000)
    assert receiving.post(body, batch="a").json()["offset"] == 0


def test_a_client_that_stalls_in_its_body_is_answered_and_cut_off(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingress_http, "_DRAIN_SECONDS", 0.2)
    receiving = serve(idle=0.3)

    with half_of_a_request(receiving, ndjson(numbered(0, 1000))) as client:
        answer = b"".join(iter(lambda: client.recv(10_000), b""))

    assert answer.startswith(b"HTTP/1.1 408")
    assert b"no byte arrived for 0.3 s" in answer
    assert receiving.rows() == []


def test_stopping_finishes_and_acknowledges_what_is_on_its_way(serve: Serve) -> None:
    receiving = serve()
    body = ndjson(numbered(0, 1000))
    client = half_of_a_request(receiving, body)
    stopping = threading.Thread(target=receiving.server.stop)
    stopping.start()
    until_nobody_listens(receiving)
    client.sendall(body[len(body) // 2 :])
    answer = client.recv(10_000)
    client.close()
    stopping.join()

    assert answer.startswith(b"HTTP/1.1 200")
    assert receiving.rows() == numbered(0, 1000)
    with pytest.raises(httpx.ConnectError):
        receiving.post(body)


def test_many_clients_at_a_time_keep_their_own_order(serve: Serve) -> None:
    receiving = serve()

    def send(client: int) -> int:
        with httpx.Client(base_url=receiving.url, timeout=20, verify=False) as session:
            for number in range(6):
                start = client * 1000 + number * 10
                answer = session.post(
                    "/v1/streams/events", content=ndjson(numbered(start, start + 10)),
                    headers={"content-type": NDJSON, "holdfast-batch": f"{client}-{number}"},
                )  # fmt: skip
                assert answer.status_code == 200
        return client

    with ThreadPoolExecutor(16) as pool:
        assert len(list(pool.map(send, range(16)))) == 16

    ids = [row[0] for row in receiving.rows()]
    assert len(ids) == 16 * 60
    for client in range(16):
        own = [number for number in ids if number // 1000 == client]
        assert own == list(range(client * 1000, client * 1000 + 60))


SHARES = st.lists(st.floats(0, 1), max_size=5)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(more=st.integers(1, 60), batches=SHARES, chunks=SHARES, again=st.integers(1, 2))
def test_how_a_body_is_cut_into_chunks_and_batches_makes_no_difference(
    receiving: Receiving, more: int, batches: list[float], chunks: list[float], again: int
) -> None:
    base = len(receiving.rows())
    for start, stop in pairwise(places(batches, more)):
        body = ndjson(numbered(base + start, base + stop))
        for _ in range(again):
            parts = [body[a:b] for a, b in pairwise(places(chunks, len(body)))]
            answer = receiving.post(iter(parts), batch=f"{base}-{start}").json()
            assert (answer["offset"], answer["rows"]) == (base + start, stop - start)
    assert receiving.rows() == numbered(0, base + more)


def places(shares: list[float], length: int) -> list[int]:
    """Where to cut something of this length; its ends are among the places."""
    return sorted({0, length} | {int(share * length) for share in shares})


def test_errors_are_json_with_problem_cure_and_place(serve: Serve) -> None:
    receiving = serve()

    answer = receiving.post(b"x")

    assert answer.headers["content-type"] == "application/json"
    assert set(json.loads(answer.text)) == {"status", "problem", "cure", "place"}
