"""A network that can be cut: what goes through, what is closed, and what arrives late."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator

import pytest

from holdfast_lab.chaos.loopback_proxy import LoopbackProxy


class Echo(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(65536):
            self.request.sendall(data)


@pytest.fixture
def proxy() -> Iterator[LoopbackProxy]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with LoopbackProxy(server.server_address[1]) as made:
            yield made
        server.shutdown()
        thread.join()


def connected(proxy: LoopbackProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=5)


def echo(client: socket.socket, data: bytes) -> bytes:
    client.sendall(data)
    return received(client, len(data))


def received(client: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size and (more := client.recv(65536)):
        got += more
    return got


def test_everything_goes_through_while_it_is_whole(proxy: LoopbackProxy) -> None:
    with connected(proxy) as one, connected(proxy) as two:
        assert echo(one, b"one") == b"one"
        assert echo(two, b"2" * 30_000) == b"2" * 30_000
        assert echo(one, b"again") == b"again"


def test_dropped_connections_end_and_new_ones_too_until_it_heals(proxy: LoopbackProxy) -> None:
    with connected(proxy) as client:
        assert echo(client, b"x") == b"x"
        proxy.cut("drop")
        assert client.recv(1) == b""
    with connected(proxy) as client:
        assert client.recv(1) == b""
    proxy.heal()
    with connected(proxy) as client:
        assert echo(client, b"y") == b"y"


def test_hanging_connections_stay_open_and_what_was_sent_arrives_late(proxy: LoopbackProxy) -> None:
    with connected(proxy) as client, connected(proxy) as leaving:
        assert echo(client, b"x") == b"x"
        assert echo(leaving, b"x") == b"x"
        proxy.cut("hang")
        client.sendall(b"late")
        leaving.sendall(b"last words")
        with connected(proxy) as fresh:
            fresh.sendall(b"new")
            for peer in (client, fresh):
                peer.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    peer.recv(1)
                peer.settimeout(5)
            proxy.heal()
            assert received(client, 4) == b"late"
            assert received(fresh, 3) == b"new"


def test_a_cut_can_change_its_mode(proxy: LoopbackProxy) -> None:
    with connected(proxy) as client:
        assert echo(client, b"x") == b"x"
        proxy.cut("hang")
        proxy.cut("drop")
        assert client.recv(1) == b""
        proxy.cut("hang")
    proxy.heal()
    with connected(proxy) as client:
        assert echo(client, b"y") == b"y"


def test_nobody_behind_it_is_seen_as_a_connection_that_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with LoopbackProxy(port) as proxy, connected(proxy) as client:
        assert client.recv(1) == b""


def test_nothing_is_left_of_it() -> None:
    before = threading.active_count()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = LoopbackProxy(listener.getsockname()[1])
        client = connected(proxy)
        proxy.cut("hang")
        proxy.close()
        assert client.recv(1) == b""
        client.close()
        with pytest.raises(ConnectionRefusedError):
            connected(proxy)
    assert threading.active_count() == before
