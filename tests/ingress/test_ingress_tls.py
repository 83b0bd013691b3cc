"""TLS on every listener: who does not speak it is not heard, nor who has no certificate where one is asked for."""

from __future__ import annotations

import json
import socket
import ssl
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyarrow import flight
from receiving import NDJSON, LineClient, Receiving, Serve, ndjson, numbered
from websockets.sync.client import connect

from holdfast.connect.sources.push import push
from holdfast.errors import DeclarationError, ListenError

FILES = Path(__file__).parents[1] / "data" / "tls"
SERVER = {"certificate": FILES / "server.pem", "key": FILES / "server.key"}
LISTEN = {"http": "127.0.0.1:0", "flight": "127.0.0.1:0", "tcp": "127.0.0.1:0"}


def context(*, client: bool = False) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(FILES / "ca.pem"))
    if client:
        made.load_cert_chain(FILES / "client.pem", FILES / "client.key")
    return made


def post(receiving: Receiving, rows: list[tuple[int, str]], **settings: Any) -> httpx.Response:
    url = f"https://127.0.0.1:{receiving.address('http')[1]}/v1/streams/events"
    with httpx.Client(timeout=20, **settings) as client:
        return client.post(url, content=ndjson(rows), headers={"content-type": NDJSON})


def put(receiving: Receiving, rows: list[tuple[int, str]], **settings: Any) -> None:
    batch = pa.record_batch({"id": [row[0] for row in rows], "name": [row[1] for row in rows]})
    where = f"grpc+tls://localhost:{receiving.address('flight')[1]}"
    with flight.connect(where, **settings) as client:
        writer, _ = client.do_put(flight.FlightDescriptor.for_path("events"), batch.schema)
        with writer:
            writer.write_batch(batch)


def send_lines(receiving: Receiving, rows: list[tuple[int, str]], wrapping: ssl.SSLContext) -> None:
    client = LineClient.__new__(LineClient)
    plain = socket.create_connection(receiving.address("tcp"), timeout=20)
    client.socket = wrapping.wrap_socket(plain, server_hostname="localhost")
    client._answers = client.socket.makefile("rb")
    with client:
        client.send(ndjson(rows))
        client.until(f"ok {len(rows)}")


def test_every_listener_speaks_tls(serve: Serve) -> None:
    receiving = serve(**LISTEN, **SERVER)
    ca = (FILES / "ca.pem").read_bytes()

    assert post(receiving, numbered(0, 2), verify=context()).status_code == 200
    put(receiving, numbered(2, 4), tls_root_certs=ca)
    send_lines(receiving, numbered(4, 3000), context())
    large = numbered(3000, 50_000)  # more than TLS sends at a time
    with connect(f"wss://localhost:{receiving.address('http')[1]}/v1/streams/events", ssl=context()) as client:
        client.send(ndjson(large).decode())
        assert json.loads(client.recv(timeout=20))["rows"] == len(large)

    assert receiving.rows() == numbered(0, 50_000)


def test_who_does_not_speak_tls_is_not_heard(serve: Serve) -> None:
    receiving = serve(**LISTEN, **SERVER)

    with pytest.raises(httpx.TransportError):
        receiving.post(ndjson(numbered(0, 1)))
    with receiving.connect() as client:
        client.send(ndjson(numbered(0, 1)))
        with pytest.raises((OSError, AssertionError)):
            client.until("ok 1")
    assert receiving.rows() == []


def test_certificates_of_clients_are_asked_for(serve: Serve) -> None:
    receiving = serve(**LISTEN, **SERVER, client_ca=FILES / "ca.pem")
    ca = (FILES / "ca.pem").read_bytes()
    own = {"cert_chain": (FILES / "client.pem").read_bytes(), "private_key": (FILES / "client.key").read_bytes()}

    with pytest.raises(httpx.TransportError):
        post(receiving, numbered(0, 1), verify=context())
    with pytest.raises(pa.ArrowException):
        put(receiving, numbered(0, 1), tls_root_certs=ca)
    with pytest.raises((OSError, AssertionError)):
        send_lines(receiving, numbered(0, 1), context())
    assert receiving.rows() == []

    assert post(receiving, numbered(0, 1), verify=context(client=True)).status_code == 200
    put(receiving, numbered(1, 2), tls_root_certs=ca, **own)
    send_lines(receiving, numbered(2, 3), context(client=True))
    assert receiving.rows() == numbered(0, 3)


def test_what_is_wrong_with_the_files_is_said_at_once(serve: Serve, tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match="TLS without the key"):
        push({"id": int}, http="127.0.0.1:0", certificate="server.pem")  # type: ignore[dict-item]
    for protocol in LISTEN:
        with pytest.raises(ListenError, match=r"absent\.pem"):
            serve(place=tmp_path / protocol, **{protocol: LISTEN[protocol]}, certificate="absent.pem", key="absent.key")
        with pytest.raises(ListenError, match="cannot be used"):
            serve(place=tmp_path / protocol, **{protocol: LISTEN[protocol]}, **{**SERVER, "key": FILES / "client.key"})
