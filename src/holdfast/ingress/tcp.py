"""Lines over TCP, for clients as plain as netcat: rows in the order of the lines, and `ok <lines>` once durable.

A connection may begin with control lines: `#token <token>`, and `#client <id> [<lines before the first>]`. A client
with an id is told at once how many of its lines are durable, and lines that were taken before are left out. The count
is committed in one transaction with the rows, so it is right after a kill of either side, however the lines were cut
into batches then and are cut now. A newer connection of the same client ends the older one, after what that had in hand
was committed.

A line is taken when its newline has come. What does not fit is answered with `error …`, and the connection ends; the
lines before it are taken and acknowledged.
"""

from __future__ import annotations

import contextlib
import logging
import re
import select
import socket
import threading
import time

import polars as pl

from holdfast.connect._lines import LineParser, sort_out
from holdfast.connect.push import Address
from holdfast.errors import (
    BodyTooLargeError,
    HoldfastError,
    IncompleteBodyError,
    IngressBusyError,
    MalformedBodyError,
    StreamFullError,
)
from holdfast.ingress.decoding import line_parser, split_bad
from holdfast.ingress.refusals import refusal
from holdfast.ingress.target import Target
from holdfast.meta import Count

__all__ = ["TcpReceiver"]

MOST_CONNECTIONS = 256
MOST_LINE_BYTES = 1 << 20
_BATCH_BYTES = 8 << 20
_RECEIVE_BYTES = 1 << 18
_RETRY_SECONDS = 0.05
_EVICTION_SECONDS = 30.0
_CLIENT = re.compile(r"#client ([\x21-\x7e]{1,200})(?: (\d{1,18}))?")
_log = logging.getLogger(__name__)


class TcpReceiver:
    """Listens for one source: lines do not say which one they are for."""

    def __init__(self, bound: socket.socket, target: Target, grace: float) -> None:
        self._socket = bound
        self._target = target
        self._grace = grace
        self._lock = threading.Lock()
        self._connections: set[_Connection] = set()
        self._clients: dict[str, _Connection] = {}
        self._stopping = False
        host, port = bound.getsockname()[:2]
        self.address = Address(host, port)
        self._thread = threading.Thread(target=self._accept, name="tcp-ingress", daemon=True)

    def start(self) -> None:
        self._socket.listen(128)
        self._thread.start()

    def stop(self) -> None:
        """Accept no more, commit and acknowledge what has been read, then end the connections."""
        self._stopping = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._thread.join()
        self._socket.close()
        with self._lock:
            open_now = list(self._connections)
        for connection in open_now:
            connection.finish()
        deadline = time.monotonic() + self._grace
        for connection in open_now:
            if not connection.finished.wait(max(0.0, deadline - time.monotonic())):
                connection.evict()
        for connection in open_now:
            connection.finished.wait(self._grace)

    def _accept(self) -> None:
        while not self._stopping:
            try:
                accepted, _ = self._socket.accept()
            except OSError:
                continue  # stopping, or the client was gone again
            connection = _Connection(accepted, self._target, self)
            with self._lock:
                full = len(self._connections) >= MOST_CONNECTIONS
                if not full:
                    self._connections.add(connection)
            if full:
                connection.say("error 429 too many connections; cure: try again later")
                accepted.close()
                continue
            threading.Thread(target=connection.run, name="tcp-client", daemon=True).start()

    def claim(self, client: str, connection: _Connection) -> None:
        """Make the connection the only one of its client; returns when the one before has come to its end."""
        with self._lock:
            before = self._clients.get(client)
            self._clients[client] = connection
        if before is None:
            return
        before.evict()
        if not before.settled.wait(_EVICTION_SECONDS) or connection.evicted:
            raise IngressBusyError(
                f"another connection of the client '{client}' is in the way",
                cure="connect once per client id, and again in a moment",
            )

    def forget(self, connection: _Connection) -> None:
        with self._lock:
            self._connections.discard(connection)
            for client in [name for name, each in self._clients.items() if each is connection]:
                del self._clients[client]


class _Connection:
    """One client: reads lines, hands them in batch by batch, and says how far it is."""

    def __init__(self, accepted: socket.socket, target: Target, receiver: TcpReceiver) -> None:
        self._socket = accepted
        self._target = target
        self._receiver = receiver
        self._arrived = select.poll()
        self._arrived.register(accepted, select.POLLIN)
        self._parser: LineParser = line_parser(target.source.lines, target.source.schema)
        self._rest = b""
        self._client: str | None = None
        self._taken = 0
        """How many lines are durable; of a client with an id, over all its connections."""
        self._skip = 0
        self._finishing = False
        self.evicted = False
        self.settled = threading.Event()
        """Set when nothing more of this connection will be committed."""
        self.finished = threading.Event()
        accepted.settimeout(target.source.idle)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def run(self) -> None:
        try:
            self._handshake()
            while not self._finishing and self._receive():
                self._take_lines()
        except HoldfastError as error:
            self._target.count(refused=1)
            told = refusal(error)
            self.say(f"error {told.status} {told}")
        except OSError:
            pass  # the client is gone; what was acknowledged is durable
        except Exception:  # noqa: BLE001 - the thread has no caller
            _log.exception("a connection failed")
            self.say("error 500 the receiver failed; cure: connect again and go on from the last ok")
        finally:
            self.settled.set()
            _close(self._socket)
            self._receiver.forget(self)
            self.finished.set()

    def finish(self) -> None:
        """Let the connection end after the batch in hand."""
        self._finishing = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def evict(self) -> None:
        """End the connection: nothing more is read or said. The batch in hand is committed."""
        self.evicted = self._finishing = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def say(self, text: str) -> None:
        line = " ".join(text.split()) + "\n"
        with contextlib.suppress(OSError):
            self._socket.sendall(line.encode(errors="replace"))

    # reading

    def _receive(self) -> bool:
        """Wait for more bytes and take all that are there, up to a batch. False at the end of the connection."""
        try:
            more = self._socket.recv(_RECEIVE_BYTES)
        except TimeoutError:
            raise IncompleteBodyError(
                f"no byte came for {self._target.source.idle:g} s",
                cure="connect again when there are lines, and go on from the last ok",
            ) from None
        parts = [self._rest]
        size = len(self._rest)
        while more:
            parts.append(more)
            size += len(more)
            if size >= _BATCH_BYTES:
                break
            if not self._arrived.poll(0):
                break
            more = self._socket.recv(_RECEIVE_BYTES)
        self._rest = b"".join(parts)
        return len(parts) > 1

    def _handshake(self) -> None:
        authorized = False
        while True:
            while b"\n" not in self._rest:
                self._check_line(len(self._rest))
                if not self._receive():
                    return
            line, _, rest = self._rest.partition(b"\n")
            text = line.decode(errors="replace").rstrip("\r")
            if text.startswith("#token "):
                self._target.authorize(text.removeprefix("#token ").strip())
                authorized = True
            elif not authorized:
                self._target.authorize(None)
                authorized = True
                continue
            elif text.startswith("#client ") and self._client is None:
                self._greet(text)
            else:
                self._take_lines()
                return
            self._rest = rest

    def _greet(self, text: str) -> None:
        match = _CLIENT.fullmatch(text)
        if match is None:
            raise MalformedBodyError(
                "the line '#client …' is not one", cure="write #client <id>, or #client <id> <lines before the first>"
            )
        self._client = match[1]
        self._receiver.claim(self._client, self)
        self._taken = self._target.appender.position(self._client)
        first = int(match[2]) if match[2] is not None else self._taken
        if first > self._taken:
            raise MalformedBodyError(
                f"the first line would be number {first}, but only {self._taken} lines of '{self._client}' are durable",
                cure=f"send from line {self._taken} on, counted from 0",
            )
        self._skip = self._taken - first
        self.say(f"ok {self._taken}")

    # taking

    def _take_lines(self) -> None:
        """Make the whole lines that have come durable, and say so."""
        end = self._rest.rfind(b"\n") + 1
        block, self._rest = self._rest[:end], self._rest[end:]
        self._check_line(len(self._rest))
        if len(block) > MOST_LINE_BYTES:
            self._check_line(max(map(len, block.split(b"\n"))))
        block = self._without_taken(block)
        if not block:
            return
        rows = sort_out(block, self._parser)
        if rows.bad and self._target.source.bad_rows == "fail":
            first = rows.bad[0]
            good = block[: first.at]
            self._make_durable(sort_out(good, self._parser).frame, good.count(b"\n"))
            # A line is named as it is counted in `ok`: the first one is 1 there.
            raise split_bad(first, self._taken + 1, None, self._parser)
        if rows.bad:
            self._target.count(skipped=len(rows.bad))
        self._make_durable(rows.frame, block.count(b"\n"))

    def _without_taken(self, block: bytes) -> bytes:
        at = 0
        while self._skip and at < len(block):
            at = block.index(b"\n", at) + 1
            self._skip -= 1
        return block[at:]

    def _make_durable(self, frame: pl.DataFrame, lines: int) -> None:
        if not lines:
            return
        behind = self._taken + lines
        if frame.height or self._client is not None:
            self._append(frame, None if self._client is None else Count(self._client, self._taken, behind))
        self._taken = behind
        self.say(f"ok {behind}")

    def _append(self, frame: pl.DataFrame, count: Count | None) -> None:
        """One batch at a time: the count of a client must not run ahead of a batch that failed. A full stream makes
        the client wait, as long as it may be idle itself."""
        deadline = time.monotonic() + self._target.source.idle
        while True:
            try:
                self._target.check_room(int(frame.estimated_size()))
                self._target.submit(frame, None, count).result()
                return
            except (StreamFullError, IngressBusyError):
                if time.monotonic() > deadline or self._finishing:
                    raise
            time.sleep(_RETRY_SECONDS)

    def _check_line(self, length: int) -> None:
        most = min(MOST_LINE_BYTES, self._target.source.max_body)
        if length > most:
            raise BodyTooLargeError(
                f"line {self._taken + 1} or one soon after it is longer than {most:,} bytes",
                cure="send shorter lines, or rows as large as this over HTTP or Flight",
            )


def _close(connection: socket.socket) -> None:
    """Close so that the last words arrive: what the client still sends is thrown away for a moment, since closing with
    unread bytes would reset the connection."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(0.2)
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline and connection.recv(_RECEIVE_BYTES):
            pass
    connection.close()
