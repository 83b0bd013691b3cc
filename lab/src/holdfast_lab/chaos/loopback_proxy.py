"""A network between a client and a server on this machine that can be cut and healed: partitions on purpose."""

from __future__ import annotations

import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import TracebackType
from typing import Literal

__all__ = ["LoopbackProxy"]

_CHUNK, _SMALL = 65536, 4096
_SECONDS = 5.0


class LoopbackProxy:
    """Passes on what comes to `port` of the loopback to `target_port`, in both directions.

    While it is cut in the mode `drop`, connections are closed and new ones are closed at once: what a client sees when
    the other side is down. In the mode `hang` nothing is closed, nothing is passed on and nobody answers, as when
    packets vanish. What was sent meanwhile arrives after `heal`, as TCP has it: late, and also when its sender has long
    given up. While it is `slowed`, everything arrives, piece by piece and late.
    """

    def __init__(self, target_port: int) -> None:
        self._target = target_port
        self._selector = selectors.DefaultSelector()
        self._peers: dict[socket.socket, socket.socket] = {}
        self._mode: Literal["drop", "hang"] | None = None
        self._closing = False
        self._pause = 0.0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = int(self._listener.getsockname()[1])
        self._waker, self._woken = socket.socketpair()
        self._asked: queue.SimpleQueue[tuple[Callable[[], None], Future[None]]] = queue.SimpleQueue()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name=f"proxy-{self.port}", daemon=True)
        self._thread.start()

    def cut(self, mode: Literal["drop", "hang"] = "hang") -> None:
        """Nothing goes through once this returns."""
        self._ask(lambda: self._cut(mode))

    def heal(self) -> None:
        """Everything goes through again."""
        self._ask(self._heal)

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Meanwhile nobody answers."""
        self.cut()
        try:
            yield
        finally:
            self.heal()

    @contextmanager
    def slowed(self, seconds: float = 0.02) -> Iterator[None]:
        """Meanwhile each piece of at most 4 KiB waits so long before it is passed on."""
        self._pause = seconds
        try:
            yield
        finally:
            self._pause = 0.0

    def close(self) -> None:
        self._ask(self._close)
        self._thread.join()

    def __enter__(self) -> LoopbackProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, what: Callable[[], None]) -> None:
        """Have the thread that passes things on do something, and wait until it has."""
        done: Future[None] = Future()
        self._asked.put((what, done))
        self._waker.send(b"x")
        done.result()

    # What follows runs in the thread.

    def _serve(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select():
                one = key.fileobj
                assert isinstance(one, socket.socket)
                if one is self._woken:
                    one.recv(1)
                    what, done = self._asked.get()
                    what()
                    done.set_result(None)
                    break  # what was ready may be so no longer
                if one is self._listener:
                    self._accept()
                elif one in self._peers:
                    self._pass_on(one)
        for open_socket in (self._listener, self._waker, self._woken):
            open_socket.close()
        self._selector.close()

    def _cut(self, mode: Literal["drop", "hang"]) -> None:
        self._heal()
        self._mode = mode
        if mode == "drop":
            for peer in list(self._peers):
                self._end(peer)
        else:
            for watched in (self._listener, *self._peers):
                self._selector.unregister(watched)

    def _heal(self) -> None:
        if self._mode == "hang":
            for watched in (self._listener, *self._peers):
                self._selector.register(watched, selectors.EVENT_READ)
        self._mode = None

    def _close(self) -> None:
        self._cut("drop")
        self._closing = True

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            if self._mode == "drop":
                raise ConnectionRefusedError
            server = socket.create_connection(("127.0.0.1", self._target), timeout=_SECONDS)
        except OSError:
            client.close()
            return
        client.settimeout(_SECONDS)
        for one, other in ((client, server), (server, client)):
            self._peers[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _pass_on(self, one: socket.socket) -> None:
        other = self._peers[one]
        try:
            data = one.recv(_CHUNK if not self._pause else _SMALL)
            if data:
                time.sleep(self._pause)
                other.sendall(data)
                return
        except OSError:
            pass
        self._end(one)
        self._end(other)

    def _end(self, one: socket.socket) -> None:
        del self._peers[one]
        self._selector.unregister(one)
        one.close()
