"""What stands between a WebSocket and its application: bytes are counted as they come, and reading stops where the
source has no room for more, until it has, or the client has waited too long.

uvicorn reads one message ahead, of whatever size. Here a message is read only when it is asked for, and what has come
of it is counted among the bytes of its source. Before a client has shown that it may send, nothing is read at all.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from holdfast.errors import HoldfastError, IncompleteBodyError, IngressBusyError
from holdfast.ingress.body_rows import BodyKind
from holdfast.ingress.http_guard import Peers
from holdfast.ingress.target import RETRY_SECONDS, IngressTarget, Received

__all__ = ["CONNECTION", "GuardedSocket", "Stop", "WebMessage", "guarded_socket"]

CONNECTION = "holdfast_connection"
"""Where an application finds the connection in the state of its scope."""
_MESSAGE_BYTES = 512
"""What a message takes besides its content."""


@dataclass(frozen=True, slots=True)
class WebMessage:
    """A whole message: text is NDJSON, binary is an Arrow stream."""

    kind: BodyKind
    body: bytearray


@dataclass(frozen=True, slots=True)
class Stop:
    """No message comes any more: the client has left, or `reason` says why it must."""

    reason: HoldfastError | None = None
    stopping: bool = False


class GuardedSocket(WebSocketsSansIOProtocol):
    """uvicorn's protocol, with limits. `open_to` and `next_message` are for the application."""

    peers: Peers

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._room: Received | None = None
        self._idle = 0.0
        self._whole = 0
        """The bytes of whole messages that the application has not done with."""
        self._stalled: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._waited = 0.0
        self._messages: asyncio.Queue[WebMessage | Stop] = asyncio.Queue()

    # the application's side

    def open_to(self, target: IngressTarget) -> None:
        """From now on messages may come, for this source."""
        self._room = Received(target)
        self._idle = target.source.idle
        self.conn.max_size = target.source.max_body

    @property
    def room(self) -> Received:
        assert self._room is not None
        return self._room

    async def next_message(self) -> WebMessage | Stop:
        """The next one. Reading goes on only while somebody waits here: otherwise nothing changes what is counted."""
        if self._messages.empty() and self.read_paused and self._retry is None:
            self._go_on()
        return await self._messages.get()

    def done(self, message: WebMessage) -> None:
        """The application has handed the message on."""
        self._whole -= len(message.body) + _MESSAGE_BYTES
        self.room.reduce(min(self.room.bytes, self._held()))

    def stop(self, stop: Stop) -> None:
        """Have the application finish what it has, and nothing else."""
        self._pause()
        self._messages.put_nowait(stop)

    # uvicorn's side

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.close_sent:
            self.scope["state"][CONNECTION] = self
            self._pause()

    async def receive(self) -> Any:
        return await self.queue.get()  # only that the client connects: it does not make us read on

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True  # it was refused: uvicorn would log that as a fault of the application

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._room is not None and not self.close_sent:
            self._count()

    def send_receive_event_to_app(self) -> None:
        body = bytearray().join(self.frames)
        self.frames = []
        if self.close_sent:
            return
        kind: BodyKind = "ndjson" if self.curr_msg_data_type == "text" else "arrow-stream"
        self._whole += len(body) + _MESSAGE_BYTES
        self._messages.put_nowait(WebMessage(kind, body))
        self._pause()

    def shutdown(self) -> None:
        self.stop_keepalive()
        if self.handshake_complete and not self.close_sent:
            self.stop(Stop(stopping=True))
        else:
            super().shutdown()

    def handle_close(self, event: Any) -> None:
        super().handle_close(event)
        self._messages.put_nowait(Stop())

    def handle_parser_exception(self) -> None:
        super().handle_parser_exception()
        self._messages.put_nowait(Stop())

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)
        self._messages.put_nowait(Stop())
        if self.client is not None:
            self.peers.leave(self.client)

    def forget(self) -> None:
        """Give back what was counted; at the end of the application."""
        self._cancel()
        self.frames, self._whole = [], 0
        if self._room is not None:
            self._room.reduce()

    # counting

    def _held(self) -> int:
        return len(self.conn.reader.buffer) + sum(map(len, self.frames)) + self._whole

    def _count(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        more = self._held() - self.room.bytes
        if more > 0:
            try:
                self.room.add(more)
            except IngressBusyError as error:
                self._wait_for_room(error)
                return
        self._waited = 0.0
        self._watch_rest()

    def _watch_rest(self) -> None:
        if self._stalled is None and self._held() > self._whole and not self.read_paused:
            self._stalled = self.loop.call_later(self._idle, self._give_up)

    def _wait_for_room(self, error: IngressBusyError) -> None:
        if self._waited > self._idle:
            self.stop(Stop(error))
            return
        self._pause()
        self._waited += RETRY_SECONDS
        self._retry = self.loop.call_later(RETRY_SECONDS, self._count_again)

    def _count_again(self) -> None:
        self._retry = None
        self._count()
        if self._retry is None and self._messages.empty():
            self._go_on()

    def _give_up(self) -> None:
        self._stalled = None
        self.stop(
            Stop(
                IncompleteBodyError(
                    f"no byte arrived for {self._idle:g} s in the middle of a message",
                    cure="connect again and send it again",
                )
            )
        )

    def _pause(self) -> None:
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def _go_on(self) -> None:
        if self.read_paused and not self.transport.is_closing():
            self.read_paused = False
            self.transport.resume_reading()
            self._watch_rest()

    def _cancel(self) -> None:
        for timer in (self._stalled, self._retry):
            if timer is not None:
                timer.cancel()
        self._stalled = self._retry = None


def guarded_socket(peers: Peers) -> type[GuardedSocket]:
    """The protocol for the connections of one listener."""

    class ListenerSocket(GuardedSocket):
        pass

    ListenerSocket.peers = peers
    return ListenerSocket
