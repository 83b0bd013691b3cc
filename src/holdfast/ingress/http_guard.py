"""What stands before the HTTP application: a time limit for the head of a request, a limit of connections, and a look
at the name a request was sent to.

uvicorn waits for ever for a client that connects and says nothing, or says its headers byte by byte. And a listener on
loopback, which may be open to all, is not for every web page in a browser of this machine: a page of another site whose
name leads to 127.0.0.1 shows that name in the Host header.
"""

from __future__ import annotations

import asyncio
import ipaddress

import h11
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.connect.sources.push import Address
from holdfast.ingress.crowd import Crowd
from holdfast.ingress.refusals import Refusal

__all__ = ["HostCheck", "Peers", "guarded_protocol"]

HEAD_SECONDS = 10.0
_MOST_STRANGERS = 256
_MOST_MEMBERS = 512
_WRONG_HOST = 421


class Peers:
    """The connections of one listener, by the address and port of the client."""

    def __init__(self) -> None:
        self._crowd: Crowd[tuple[str, int]] = Crowd(strangers=_MOST_STRANGERS, members=_MOST_MEMBERS)
        self._open: dict[tuple[str, int], H11Protocol] = {}

    def admit(self, protocol: H11Protocol) -> None:
        if protocol.client is None:
            return
        out = self._crowd.admit(protocol.client, protocol.client[0])
        if out is not None and out in self._open:
            self._open[out].transport.abort()
        self._open[protocol.client] = protocol

    def introduce(self, client: tuple[str, int] | None) -> bool:
        """A request showed that it may send. False where there are too many of those."""
        return client is None or self._crowd.introduce((client[0], client[1]))

    def leave(self, client: tuple[str, int] | None) -> None:
        if client is not None:
            self._crowd.leave(client)
            self._open.pop(client, None)


def guarded_protocol(peers: Peers) -> type[H11Protocol]:
    """uvicorn's protocol, with limits."""

    class Guarded(H11Protocol):
        _head_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            peers.admit(self)
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._too_slow)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            peers.leave(self.client)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._stop_timer()
            elif self._head_timer is None and self.conn.trailing_data[0]:
                self._head_timer = self.loop.call_later(HEAD_SECONDS, self._too_slow)

        def _stop_timer(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _too_slow(self) -> None:
            self._head_timer = None
            if self.conn.their_state is h11.IDLE:
                self.transport.abort()

    return Guarded


class HostCheck:
    """Refuses requests to a loopback listener that were sent to another name."""

    def __init__(self, app: ASGIApp, address: Address) -> None:
        self._app = app
        self._address = address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and self._address.is_loopback and not self._is_meant(scope):
            refused = Refusal(
                _WRONG_HOST,
                "the request names a host that is not this receiver",
                f"send it to {self._address} or localhost; a proxy in front must set the Host header to that",
                "Host",
            )
            await Response(
                refused.encoded(), refused.status, {"content-type": "application/json", "connection": "close"}
            )(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_meant(self, scope: Scope) -> bool:
        names = [value for name, value in scope["headers"] if name == b"host"]
        if not names:
            return bool(scope["http_version"] == "1.0")  # no browser
        return len(names) == 1 and _is_here(names[0].decode("latin-1"), self._address.host)


def _is_here(host: str, declared: str) -> bool:
    name = host[1:].partition("]")[0] if host.startswith("[") else host.rpartition(":")[0] or host
    if name.lower().rstrip(".") in ("localhost", declared.lower()):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
