"""All receivers together: shared addresses, addresses in use, and memory that many bodies share."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from receiving import CLIENT, NDJSON, Receiving, Serve, free_port, ndjson, numbered, stored
from test_flight_ingress import batch, connect, put

from holdfast.connect.sources.push import push
from holdfast.errors import IngressBusyError, ListenError
from holdfast.ingress import IngressServer, target
from holdfast.meta import MetaStore
from holdfast.pstream.appender import Appender, open_appender

SCHEMA = {"id": pl.Int64, "name": pl.String}


@pytest.fixture
def appenders(tmp_path: Path) -> Iterator[dict[str, Appender]]:
    meta = MetaStore(tmp_path)
    made = {
        name: open_appender(meta, tmp_path, f"p.{name}", pl.Schema(SCHEMA), event_time=None, lateness=0, budget=None)
        for name in ("a", "b")
    }
    yield made
    for appender in made.values():
        appender.close()
    meta.close()


def test_sources_with_one_address_share_it_and_keep_their_own_tokens(
    appenders: dict[str, Appender], tmp_path: Path
) -> None:
    where = f"127.0.0.1:{free_port()}"
    sources = {
        "a": push(SCHEMA, http=where, token="ta"),
        "b": push(SCHEMA, http=where, flight="127.0.0.1:0", token="tb"),
    }
    with IngressServer({name: (sources[name], appenders[name]) for name in sources}) as server:
        assert str(server.addresses["a"]["http"]) == str(server.addresses["b"]["http"]) == where
        assert server.addresses["b"]["flight"].port > 0
        for name, rows in (("a", numbered(0, 3)), ("b", numbered(3, 9))):
            headers = {"content-type": NDJSON, "authorization": f"Bearer t{name}"}
            answer = CLIENT.post(f"http://{where}/v1/streams/{name}", content=ndjson(rows), headers=headers)
            assert answer.json()["rows"] == len(rows)
        wrong = {"content-type": NDJSON, "authorization": "Bearer ta"}
        assert CLIENT.post(f"http://{where}/v1/streams/b", content=b"", headers=wrong).status_code == 403
        assert list(CLIENT.get(f"http://{where}/v1/streams", headers=wrong).json()["streams"]) == ["a"]
    meta = MetaStore(tmp_path)
    assert stored(meta, tmp_path, "p.a").rows() == numbered(0, 3)
    assert stored(meta, tmp_path, "p.b").rows() == numbered(3, 9)
    meta.close()


@pytest.mark.parametrize("protocol", ["http", "flight", "tcp"])
def test_an_address_in_use_is_named_and_nothing_is_left_listening(
    appenders: dict[str, Appender], protocol: str
) -> None:
    first = free_port()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        ways = {"http": f"127.0.0.1:{first}", "tcp": "127.0.0.1:0", protocol: f"127.0.0.1:{taken}"}
        server = IngressServer({"a": (push(SCHEMA, **ways), appenders["a"])})
        with pytest.raises(ListenError, match=f"127.0.0.1:{taken}: another process listens there"):
            server.start()
        server.stop()
    with socket.socket() as free:
        free.bind(("127.0.0.1", first))


def test_two_sources_cannot_take_lines_on_one_address(appenders: dict[str, Appender]) -> None:
    source = push(SCHEMA, tcp=f"127.0.0.1:{free_port()}")

    with pytest.raises(ListenError, match="a and b both receive lines"):
        IngressServer({name: (source, appender) for name, appender in appenders.items()}).start()


def test_bodies_share_the_memory_but_one_always_has_room(
    appenders: dict[str, Appender], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "_LEAST_MEMORY", 1000)
    one = target.IngressTarget("a", push(SCHEMA, http="127.0.0.1:0", max_body=250), appenders["a"])

    with one.receiving() as large:
        large.add(5000)
        large.add(10)
        with one.receiving() as other, pytest.raises(IngressBusyError, match="5,010 bytes are on their way"):
            other.add(1)
    with one.receiving() as other:
        other.add(600)
        with one.receiving() as third:
            third.add(400)
            with pytest.raises(IngressBusyError):
                third.add(1)
    with one.receiving() as last:
        last.add(1000)


def test_a_batch_id_is_the_same_over_every_protocol(serve: Serve) -> None:
    receiving: Receiving = serve(http="127.0.0.1:0", flight="127.0.0.1:0")

    first = receiving.post(ndjson(numbered(0, 5)), batch="x").json()
    with connect(receiving) as client:
        [again] = put(client, [(batch(0, 5), "x")])

    assert again == {**first, "duplicate": True}


HALF = """
import socket, sys, time
client = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
client.sendall(sys.stdin.buffer.read())
print("sent", flush=True)
time.sleep(60)
"""


def test_a_connection_that_its_client_has_left_does_not_end_the_one_it_has_opened_since(serve: Serve) -> None:
    receiving = serve(tcp="127.0.0.1:0")
    with receiving.connect() as left, receiving.connect() as client:
        client.send(b"#client c 0\n")
        assert client.answer() == "ok 0"
        left.send(b"#client c 0\n")  # heard only now
        assert "has opened another connection since" in left.answer()
        client.send(ndjson(numbered(0, 20)))
        client.until("ok 20")
    assert receiving.rows() == numbered(0, 20)


def test_a_client_killed_in_the_middle_leaves_whole_batches_and_lines_only(serve: Serve) -> None:
    receiving = serve(http="127.0.0.1:0", tcp="127.0.0.1:0")
    body = ndjson(numbered(0, 2000))
    head = f"POST /v1/streams/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: {NDJSON}\r\n"
    request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body[: len(body) // 2]
    lines = b"#client c 0\n" + body[: len(body) // 2]

    for protocol, sent in (("http", request), ("tcp", lines)):
        port = receiving.address(protocol)[1]
        victim = subprocess.Popen(
            [sys.executable, "-c", HALF, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert victim.stdin is not None
        assert victim.stdout is not None
        victim.stdin.write(sent)
        victim.stdin.close()
        assert victim.stdout.readline() == b"sent\n"
        victim.kill()
        victim.wait()
        victim.stdout.close()
    with receiving.connect() as client:
        client.send(b"#client c 0\n")
        taken = int(client.answer().removeprefix("ok "))
        assert taken <= body[: len(body) // 2].count(b"\n")
        client.send(body)
        client.until("ok 2000")

    assert receiving.rows() == numbered(0, 2000)
