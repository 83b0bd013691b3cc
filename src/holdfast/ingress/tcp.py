"""The listener for lines over TCP: who may connect, and how long a client may take for a line.

Each connection has a thread (`tcp_connection`). The thread that accepts also looks at the clock: a client that has not
said who it is within some seconds, or has not ended a line it began, is cut off. A process without file descriptors
left cuts off a stranger and waits a moment, instead of trying again at once for ever.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import ssl
import threading
import time

from holdfast.connect.sources.push import Address
from holdfast.errors import IngressBusyError
from holdfast.ingress.crowd import MOST_MEMBERS, MOST_STRANGERS, Crowd
from holdfast.ingress.target import IngressTarget
from holdfast.ingress.tcp_connection import Connection
from holdfast.ingress.tls import server_context

__all__ = ["TcpReceiver"]

_EVICTION_SECONDS = 30.0
_LOOK_SECONDS = 0.25
_SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_TELL_SECONDS = 60.0
_log = logging.getLogger(__name__)


class TcpReceiver:
    """Listens for one source: lines do not say which one they are for."""

    def __init__(self, bound: socket.socket, target: IngressTarget, grace: float) -> None:
        self._socket = bound
        self._target = target
        self._grace = grace
        self._tls: ssl.SSLContext | None = None if target.source.tls is None else server_context(target.source.tls)
        self._crowd: Crowd[Connection] = Crowd(strangers=MOST_STRANGERS, members=MOST_MEMBERS)
        self._lock = threading.Lock()
        self._clients: dict[str, Connection] = {}
        self._stopping = threading.Event()
        self._warned_at = float("-inf")
        host, port = bound.getsockname()[:2]
        self.address = Address(host, port)
        self._thread = threading.Thread(target=self._accept, name="tcp-ingress", daemon=True)

    def start(self) -> None:
        self._socket.settimeout(_LOOK_SECONDS)
        self._socket.listen(128)
        self._thread.start()

    def check(self) -> None:
        """It answers its clients, whatever happens."""

    def stop(self) -> None:
        """Accept no more, commit and acknowledge what has been read, then end the connections."""
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._thread.join()
        self._socket.close()
        open_now = self._crowd.everybody()
        for connection in open_now:
            connection.finish()
        deadline = time.monotonic() + self._grace
        for connection in open_now:
            if not connection.finished.wait(max(0.0, deadline - time.monotonic())):
                connection.evict()
        for connection in open_now:
            connection.finished.wait(self._grace)

    def _accept(self) -> None:
        looked = time.monotonic()
        while not self._stopping.is_set():
            try:
                accepted, address = self._socket.accept()
            except TimeoutError:
                pass
            except OSError as error:
                self._refused(error)
            else:
                self._welcome(accepted, address[0])
            if time.monotonic() - looked > _LOOK_SECONDS:
                looked = time.monotonic()
                for connection in self._crowd.everybody():
                    connection.cut_if_overdue(looked)

    def _welcome(self, accepted: socket.socket, address: str) -> None:
        try:
            connection = Connection(accepted, self._target, self, self._tls)
        except OSError:
            accepted.close()  # the client is gone again
            return
        crowded_out = self._crowd.admit(connection, address)
        if crowded_out is not None:
            crowded_out.evict()
        threading.Thread(target=connection.run, name="tcp-client", daemon=True).start()

    def _refused(self, error: OSError) -> None:
        """Nothing was accepted: we stop, the client was gone again, or there is nothing left to accept it with."""
        if error.errno in _SCARCE:
            crowded_out = self._crowd.make_room()
            if crowded_out is not None:
                crowded_out.evict()
            if time.monotonic() - self._warned_at > _TELL_SECONDS:
                self._warned_at = time.monotonic()
                _log.warning("%s cannot accept connections: %s; raise the limit of open files", self.address, error)
        self._stopping.wait(_LOOK_SECONDS)

    def introduce(self, connection: Connection) -> None:
        """The connection may send: it no longer gives way to new ones."""
        if not self._crowd.introduce(connection):
            raise IngressBusyError("too many connections", cure="try again later")

    def claim(self, client: str, connection: Connection) -> None:
        """Make the connection the only one of its client; returns when the one before has come to its end. One that a
        client has left may be heard only after the one that it has opened since, which then stays."""
        with self._lock:
            before = self._clients.get(client)
            is_left = before is not None and before.number > connection.number
            if not is_left:
                self._clients[client] = connection
        if is_left:
            raise IngressBusyError(
                f"client '{client}' has opened another connection since", cure="continue on that connection"
            )
        if before is None:
            return
        before.evict()
        if not before.settled.wait(_EVICTION_SECONDS) or connection.evicted:
            raise IngressBusyError(
                f"client '{client}' has another connection open",
                cure="use one connection per client id, and try again in a moment",
            )

    def forget(self, connection: Connection) -> None:
        self._crowd.leave(connection)
        with self._lock:
            for client in [name for name, other in self._clients.items() if other is connection]:
                del self._clients[client]
