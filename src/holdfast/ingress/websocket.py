"""WebSocket: each message is one batch, taken whole or not at all, and acknowledged in order when it is durable.

A client may send on while earlier messages are on their way to the disk. What cannot be taken is answered with the
reason, and the connection ends: messages behind it are not taken. A client with a name is told at once how many of its
messages are durable; the count is committed in one transaction with the rows, so it is right after a kill of either
side. A newer connection of the same client ends the older one.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import logging
import re
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import asdict
from urllib.parse import urlsplit

from starlette.websockets import WebSocket, WebSocketDisconnect

from holdfast.errors import (
    AccessDeniedError,
    HoldfastError,
    IngressBusyError,
    IngressStoppingError,
    MalformedBodyError,
    StreamFullError,
)
from holdfast.ingress.body_intake import hand_in, hand_in_at_once
from holdfast.ingress.body_rows import Decoded
from holdfast.ingress.media import Media
from holdfast.ingress.refusals import refusal
from holdfast.ingress.socket_guard import CONNECTION, GuardedSocket, Stop, WebMessage
from holdfast.ingress.target import RETRY_SECONDS, IngressTarget, ack_json, bearer
from holdfast.meta import Count
from holdfast.pstream.appender import Ack

__all__ = ["SUBPROTOCOL", "SocketClients", "check_origin", "converse", "token_of"]

SUBPROTOCOL = "holdfast.v1"
_TOKEN_PREFIX = "holdfast.token."
_CLIENT = re.compile(r"[\x21-\x7e]{1,200}")
_MOST_ON_THEIR_WAY = 256
_EVICTION_SECONDS = 30.0
_GOING_AWAY, _TOO_BIG, _POLICY, _FAILED, _RESTART, _LATER = 1001, 1009, 1008, 1011, 1012, 1013
_CODES = {413: _TOO_BIG, 429: _LATER, 500: _FAILED, 503: _LATER, 507: _LATER}
_log = logging.getLogger(__name__)


def token_of(websocket: WebSocket) -> str | None:
    """From the header; or, of browsers, which cannot set one, from the list of subprotocols."""
    found = bearer(websocket.headers.get("authorization"))
    if found is not None:
        return found
    for name in websocket.scope["subprotocols"]:
        if name.startswith(_TOKEN_PREFIX):
            text = name.removeprefix(_TOKEN_PREFIX)
            with contextlib.suppress(binascii.Error, ValueError, UnicodeDecodeError):
                return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("ascii")
    return None


def check_origin(websocket: WebSocket, target: IngressTarget) -> None:
    """Any page may open a WebSocket to anywhere, and a browser adds its certificates: so pages of other sites are let
    in only if they were declared. Programs send no origin."""
    origin = websocket.headers.get("origin")
    if origin is None or origin.lower() in target.source.origins:
        return
    if urlsplit(origin.lower()).netloc == websocket.headers.get("host", "").lower():
        return
    raise AccessDeniedError(
        f"pages of {origin} may not send here",
        cure=f"declare push(..., origins=[{origin!r}]) if these pages are yours",
        operator=target.name,
    )


class SocketClients:
    """The named clients of a listener, each with its one connection."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], _Conversation] = {}

    async def claim(self, key: tuple[str, str], mine: _Conversation) -> None:
        """Returns when the connection before has come to its end."""
        before = self._open.get(key)
        self._open[key] = mine
        if before is None:
            return
        before.evict()
        try:
            await asyncio.wait_for(before.settled.wait(), _EVICTION_SECONDS)
        except TimeoutError:
            raise IngressBusyError(
                f"client '{key[1]}' has another connection open",
                cure="use one connection per client name, and try again in a moment",
            ) from None

    def leave(self, key: tuple[str, str], mine: _Conversation) -> None:
        if self._open.get(key) is mine:
            del self._open[key]


async def converse(
    websocket: WebSocket,
    target: IngressTarget,
    clients: SocketClients,
    pool: Executor,
    is_stopping: Callable[[], bool],
) -> None:
    """Take what a client sends, from the handshake to the end. Refusals before the handshake are the caller's."""
    name, first = _named(websocket)
    connection: GuardedSocket = websocket.scope["state"][CONNECTION]
    talk = _Conversation(websocket, connection, target, pool)
    key = (target.name, name or "")
    connection.open_to(target)
    subprotocol = SUBPROTOCOL if SUBPROTOCOL in websocket.scope["subprotocols"] else None
    try:
        await websocket.accept(subprotocol)
        if name is not None:
            await clients.claim(key, talk)
        if is_stopping():
            raise IngressStoppingError("the receiver is stopping", cure="connect again when it is back")
        await talk.greet(name, first)
        await talk.run()
    except HoldfastError as error:
        await talk.refuse(error)
    except WebSocketDisconnect:
        pass  # what was handed in is taken all the same
    finally:
        talk.settled.set()
        connection.forget()
        clients.leave(key, talk)


def _named(websocket: WebSocket) -> tuple[str | None, int | None]:
    name, first = websocket.query_params.get("client"), websocket.query_params.get("first")
    if name is None and first is None:
        return None, None
    if name is None or not _CLIENT.fullmatch(name) or not (first is None or re.fullmatch(r"\d{1,18}", first)):
        raise MalformedBodyError(
            "the query is not valid",
            cure="write ?client=<name>, or ?client=<name>&first=<messages before the first>",
            place="query",
        )
    return name, None if first is None else int(first)


class _Conversation:
    """One connection: messages come in here, and answers go out in the order of the messages."""

    def __init__(self, websocket: WebSocket, connection: GuardedSocket, target: IngressTarget, pool: Executor) -> None:
        self._websocket = websocket
        self._connection = connection
        self._target = target
        self._pool = pool
        self._client: str | None = None
        self._at = 0
        """How many messages were handed in; of a client with a name, over all its connections."""
        self._skip = 0
        self._refused: int | None = None
        """The first message that was handed in and is not durable."""
        self._answers: asyncio.Queue[tuple[int, Future[Ack] | None, int] | None] = asyncio.Queue(_MOST_ON_THEIR_WAY)
        self._last: Future[Ack] | None = None
        self.settled = asyncio.Event()
        """Set when nothing more of this connection will be committed."""

    def evict(self) -> None:
        self._connection.stop(Stop(_replaced()))

    async def greet(self, name: str | None, first: int | None) -> None:
        if name is None:
            return
        # A name of TCP has no space in it: there it counts lines.
        self._client = f"websocket {name}"
        loop = asyncio.get_running_loop()
        durable = await loop.run_in_executor(self._pool, self._target.appender.position, self._client)
        begin = durable if first is None else first
        if begin > durable:
            raise MalformedBodyError(
                f"the first message would be number {begin + 1}, but only {durable} messages of '{name}' are durable",
                cure=f"send from message {durable + 1} on",
            )
        self._at, self._skip = durable, durable - begin
        await self._say({"client": name, "messages": durable})

    async def run(self) -> None:
        """Until the client has left, a message is refused, or the receiver stops."""
        speaker = asyncio.ensure_future(self._acknowledge())
        listener = asyncio.ensure_future(self._listen())
        try:
            await asyncio.wait({speaker, listener}, return_when=asyncio.FIRST_COMPLETED)
            if speaker.done():
                listener.cancel()
                await speaker  # raises what went wrong with a message; those behind it are not taken
                return
            end = listener.exception()
            await self._answers.put(None)
            await speaker
            if end is not None:
                raise end
            await self._end(listener.result())
        finally:
            for task in (speaker, listener):
                task.cancel()
            await asyncio.gather(speaker, listener, return_exceptions=True)
            if self._last is not None:  # they are committed in their order
                await asyncio.gather(asyncio.wrap_future(self._last), return_exceptions=True)

    async def _listen(self) -> Stop:
        while True:
            message = await self._connection.next_message()
            if isinstance(message, Stop):
                return message
            if self._skip:
                self._skip -= 1
                number = self._at - self._skip
                self._connection.done(message)
                await self._answers.put((number, None, 0))
                continue
            answer, decoded = await self._hand_in(message)
            self._connection.done(message)
            self._last = answer
            self._at += 1
            await self._answers.put((self._at, answer, decoded.skipped))

    async def _hand_in(self, message: WebMessage) -> tuple[Future[Ack], Decoded]:
        """A full stream makes the client wait, as long as it may be idle itself."""
        loop = asyncio.get_running_loop()
        media, room = Media(message.kind), self._connection.room
        count = None if self._client is None else Count(self._client, self._at, self._at + 1)
        deadline = loop.time() + self._target.source.idle
        held = room.bytes
        while True:
            try:
                found = hand_in_at_once(self._target, media, message.body, None, room, count)
                if found is None:
                    found = await loop.run_in_executor(
                        self._pool, hand_in, self._target, media, message.body, None, room, count
                    )
                return found
            except (StreamFullError, IngressBusyError):
                room.reduce(held)
                if loop.time() > deadline:
                    raise
            await asyncio.sleep(RETRY_SECONDS)

    async def _acknowledge(self) -> None:
        """Say what is durable. Ends with an error at the first message that is not."""
        while (item := await self._answers.get()) is not None:
            number, answer, skipped = item
            if answer is None:
                await self._say({"message": number, "duplicate": True})
                continue
            try:
                ack = await asyncio.shield(asyncio.wrap_future(answer))
            except Exception:
                self._refused = number
                raise
            reply: dict[str, object] = {"message": number, **ack_json(ack, None)}
            del reply["batch"]
            if skipped:
                reply["skipped"] = skipped
            await self._say(reply)

    async def _end(self, stop: Stop) -> None:
        if stop.reason is not None:
            raise stop.reason
        if stop.stopping:
            with contextlib.suppress(RuntimeError, WebSocketDisconnect):
                await self._websocket.close(_RESTART, "the receiver is stopping")

    async def refuse(self, error: HoldfastError) -> None:
        """Say why a message was not taken, and end the connection."""
        self._target.count(refused=1)
        refused = refusal(error.at(operator=self._target.name))
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):
            await self._say({"message": self._refused or self._at + 1, **asdict(refused)})
            reason = refused.problem.encode()[:120].decode(errors="ignore")
            await self._websocket.close(_CODES.get(refused.status, _POLICY), reason)

    async def _say(self, reply: dict[str, object]) -> None:
        await self._websocket.send_text(json.dumps(reply))


def _replaced() -> HoldfastError:
    return IngressBusyError("another connection of this client took over", cure="use one connection per client name")
