"""HTTP: one request is one batch, taken whole or not at all, and answered when it is durable. A WebSocket brings many
of them (`websocket`).

The server is uvicorn with a loop and a thread of its own. The loop moves bytes, and decodes short bodies itself, which
takes no longer than to have another thread do it. Other bodies are decoded in other threads, and nobody waits for the
disk here. A request is refused as early as its headers allow, before its body is read; a body that grows beyond the
limit is never held beyond it. When a refusal comes before the end of the body, the rest is read and thrown away for a
while, so that simple clients, which write first and read then, get to see the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from holdfast.connect.sources.push import Address, TlsFiles
from holdfast.errors import (
    HoldfastError,
    IncompleteBodyError,
    IngressBusyError,
    IngressStoppingError,
    UnknownStreamError,
)
from holdfast.ingress.body_intake import hand_in, hand_in_at_once, too_large
from holdfast.ingress.body_rows import Decoded
from holdfast.ingress.http_guard import HostCheck, Peers, guarded_protocol
from holdfast.ingress.media import Media, media_of
from holdfast.ingress.refusals import Refusal, refusal
from holdfast.ingress.socket_guard import guarded_socket
from holdfast.ingress.target import IngressTarget, ack_json, bearer, check_batch
from holdfast.ingress.tls import server_context
from holdfast.ingress.websocket import SocketClients, check_origin, converse, token_of
from holdfast.pstream.appender import Ack

__all__ = ["BATCH_HEADER", "HttpReceiver"]

BATCH_HEADER = "Holdfast-Batch"

_DECODERS = 4
_STRANGER_BYTES = 4096
"""Of a WebSocket before it is known which source it is for."""
_DRAIN_SECONDS = 5.0
_KEEP_ALIVE_SECONDS = 75
_log = logging.getLogger(__name__)


class HttpReceiver:
    """Listens on one address for all sources that were declared with it."""

    def __init__(
        self, bound: socket.socket, targets: Mapping[str, IngressTarget], grace: float, tls: TlsFiles | None
    ) -> None:
        self._targets = targets
        self._socket = bound
        host, port = bound.getsockname()[:2]
        self.address = Address(host, port)
        self._stopping = False
        self._grace = grace
        self._pool = ThreadPoolExecutor(_DECODERS, thread_name_prefix="http-decode")
        routes = [
            Route("/healthz", self._health, methods=["GET"]),
            Route("/v1/streams", self._list, methods=["GET"]),
            Route("/v1/streams/{source}", self._take, methods=["POST"]),
            WebSocketRoute("/v1/streams/{source}", self._converse),
        ]
        handlers: Mapping[Any, Any] = {HTTPException: _no_such_thing, Exception: _failed}
        app = HostCheck(Starlette(routes=routes, exception_handlers=handlers), self.address)
        self._peers = Peers()
        self._clients = SocketClients()
        config = uvicorn.Config(
            app, http=guarded_protocol(self._peers), ws=guarded_socket(self._peers), ws_per_message_deflate=False,
            ws_max_size=_STRANGER_BYTES, loop="asyncio", lifespan="off", log_config=None,
            access_log=False, server_header=False, timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=round(grace) or 1,
        )  # fmt: skip
        if tls is not None:
            config.load()
            config.ssl = server_context(tls)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="http-ingress", daemon=True)

    def start(self) -> None:
        """Returns when requests are answered: the socket listens, so the first ones wait for the loop."""
        self._socket.listen(256)
        self._thread.start()

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])

    def check(self) -> None:
        """It answers its clients, whatever happens."""

    def stop(self) -> None:
        """Accept no more, answer what is being received or made durable, then end."""
        self._stopping = True
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(self._grace + 5.0)
        self._socket.close()
        self._pool.shutdown(wait=True)

    # answers

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"ok": not self._stopping}, status_code=503 if self._stopping else 200)

    async def _list(self, request: Request) -> Response:
        token = bearer(request.headers.get("authorization"))
        open_to = {name: target for name, target in self._targets.items() if target.opens(token)}
        if not open_to:
            return _refused(refusal(_denied(next(iter(self._targets.values())), token)))
        loop = asyncio.get_running_loop()
        streams = {name: await loop.run_in_executor(self._pool, _described, target) for name, target in open_to.items()}
        return JSONResponse({"streams": streams})

    async def _take(self, request: Request) -> Response:
        target: IngressTarget | None = None
        body = _Body(request)
        try:
            target = self._target(request.path_params["source"], bearer(request.headers.get("authorization")))
            if not self._peers.introduce(request.client):
                raise IngressBusyError("too many connections", cure="send the batch again later")
            media = media_of(request.headers)
            batch = check_batch(request.headers.get(BATCH_HEADER))
            if self._stopping:
                raise IngressStoppingError("the receiver is stopping", cure="send the batch again when it is back")
            ack, decoded = await self._receive(body, target, media, batch)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it, and nothing was taken
        except HoldfastError as error:
            if target is not None:
                target.count(refused=1)
                error.at(operator=target.name)
            return _refused(refusal(error), body)
        answer: dict[str, object] = {**ack_json(ack, batch)}
        if decoded.skipped:
            first = [{"line": skipped.line, "reason": skipped.reason} for skipped in decoded.first_skipped]
            answer |= {"skipped": decoded.skipped, "first_skipped": first}
        return JSONResponse(answer)

    async def _converse(self, websocket: WebSocket) -> None:
        target: IngressTarget | None = None
        try:
            target = self._target(websocket.path_params["source"], token_of(websocket))
            check_origin(websocket, target)
            if not self._peers.introduce(websocket.client):
                raise IngressBusyError("too many connections", cure="connect again later")
            if self._stopping:
                raise IngressStoppingError("the receiver is stopping", cure="connect again when it is back")
            await converse(websocket, target, self._clients, self._pool, lambda: self._stopping)
        except HoldfastError as error:
            if target is not None:
                target.count(refused=1)
                error.at(operator=target.name)
            await websocket.send_denial_response(_refused(refusal(error)))

    def _target(self, name: str, token: str | None) -> IngressTarget:
        target = self._targets.get(name)
        if target is not None:
            target.authorize(token)
            return target
        known = [name for name, target in self._targets.items() if target.opens(token)]
        if not known:
            raise _denied(next(iter(self._targets.values())), token)
        raise UnknownStreamError(f"there is no source '{name}' here", cure=f"send to one of: {', '.join(known)}")

    async def _receive(
        self, body: _Body, target: IngressTarget, media: Media, batch: str | None
    ) -> tuple[Ack, Decoded]:
        if body.length > target.source.max_body:
            raise too_large(target, f"a body of {body.length:,} bytes")
        with target.receiving() as received:
            received.add(body.length)
            found = bytearray()
            while not body.complete:
                found += await body.read(target.source.idle, len(found))
                if len(found) > target.source.max_body:
                    raise too_large(target, "the body")
                received.add(max(0, len(found) - received.bytes))
            handed_in = hand_in_at_once(target, media, found, batch, received)
            if handed_in is None:
                loop = asyncio.get_running_loop()
                handed_in = await loop.run_in_executor(self._pool, hand_in, target, media, found, batch, received)
            answer, decoded = handed_in
            del found
            # No thread waits for the disk: many clients wait for one commit. Who gives up waiting does not undo it.
            return await asyncio.shield(asyncio.wrap_future(answer)), decoded


class _Body:
    """The body of a request as it comes. `length` is 0 where it comes in chunks."""

    def __init__(self, request: Request) -> None:
        self._request = request
        # The server has refused what is not a number.
        self.length = int(request.headers.get("content-length", "0"))
        self.complete = False
        self._asked_for = False

    async def read(self, idle: float, before: int) -> bytes:
        """The next bytes; `before` is how many there were, for the error."""
        self._asked_for = True
        try:
            async with asyncio.timeout(idle):
                message = await self._request.receive()
        except TimeoutError:
            raise IncompleteBodyError(
                f"no byte arrived for {idle:g} s, after {before:,} bytes",
                cure="send the batch again; send it faster, or in smaller bodies",
                place=f"byte {before}",
            ) from None
        if message["type"] != "http.request":
            raise ClientDisconnect
        self.complete = not message.get("more_body", False)
        chunk: bytes = message.get("body", b"")
        return chunk

    async def drain(self) -> None:
        """Throw away what is left, for a while. A client that waits for our word before it sends is not waited for."""
        if not self._asked_for and "expect" in self._request.headers:
            return
        with contextlib.suppress(TimeoutError, ClientDisconnect, IncompleteBodyError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                while not self.complete:
                    await self.read(_DRAIN_SECONDS, 0)


def _denied(target: IngressTarget, token: str | None) -> HoldfastError:
    try:
        target.authorize(token)
    except HoldfastError as error:
        error.operator = None  # a client without a token is not told what there is
        return error
    raise AssertionError("the token is right")


def _described(target: IngressTarget) -> dict[str, object]:
    source = target.source
    return {
        "schema": {name: str(dtype) for name, dtype in source.schema.items()},
        "offset": target.appender.stream.state().offset,
        "max_body": source.max_body,
        "pending_bytes": target.appender.pending_bytes(),
    }


class _Early(Response):
    """A whole answer first, then what is left of the request, thrown away, then the end."""

    rest: _Body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": bytes(self.body), "more_body": True})
        await self.rest.drain()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _refused(refused: Refusal, body: _Body | None = None) -> Response:
    headers = {"content-type": "application/json"}
    if refused.retry_after is not None:
        headers["retry-after"] = str(refused.retry_after)
    if refused.status == 401:
        headers["www-authenticate"] = "Bearer"
    if body is None or body.complete:
        return Response(refused.encoded(), refused.status, headers)
    answer = _Early(refused.encoded(), refused.status, {**headers, "connection": "close"})
    answer.rest = body
    return answer


async def _no_such_thing(request: Request, error: HTTPException) -> Response:
    """What routing refuses: unknown paths and wrong methods."""
    wrong_method = error.status_code == 405
    problem = (
        f"{request.method} is not for {request.url.path}" if wrong_method else f"there is nothing at {request.url.path}"
    )
    refused = Refusal(error.status_code, problem, "POST rows to /v1/streams/<source>", None)
    answer = _refused(refused, _Body(request))
    for name, value in (error.headers or {}).items():
        answer.headers[name] = value
    return answer


async def _failed(request: Request, error: Exception) -> Response:
    _log.error("a request to %s failed", request.url.path, exc_info=error)
    return _refused(refusal(error))
