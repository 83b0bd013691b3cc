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
import itertools
import logging
import re
import select
import socket
import ssl
import threading
import time
from typing import Protocol

import polars as pl

from holdfast.connect.formats.lines import LineParser, sort_out
from holdfast.errors import (
    BodyTooLargeError,
    HoldfastError,
    IncompleteBodyError,
    MalformedBodyError,
    StreamFullError,
)
from holdfast.ingress.admission import admit_lines
from holdfast.ingress.body_rows import line_parser, sorted_blocks, split_bad
from holdfast.ingress.refusals import refusal
from holdfast.ingress.target import RETRY_SECONDS, IngressTarget, Received
from holdfast.ingress.weight import MOST_TIMES_BODY, text_bytes
from holdfast.meta import Count

__all__ = ["Connection"]

MOST_LINE_BYTES = 1 << 20
_NUMBERS = itertools.count()
_STRANGER_BYTES = 4096
_STRANGER_SECONDS = 10.0
_BATCH_BYTES = 8 << 20
_MOST_WEIGHT = 64 << 20
"""What the rows of a batch may take in memory: a batch whose lines would take more is cut."""
_RECEIVE_BYTES = 1 << 18
_READING_SHARE = 0.5
"""Lines are read on while less of the source's memory is taken: the rest is for making them rows."""
_CLIENT = re.compile(r"#client ([\x21-\x7e]{1,200})(?: (\d{1,18}))?")
_log = logging.getLogger(__name__)


class Receiver(Protocol):
    """What a connection asks of its listener."""

    def introduce(self, connection: Connection) -> None: ...

    def claim(self, client: str, connection: Connection) -> None: ...

    def forget(self, connection: Connection) -> None: ...


class Connection:
    """One client: reads lines, hands them in batch by batch, and says how far it is."""

    def __init__(
        self, accepted: socket.socket, target: IngressTarget, receiver: Receiver, tls: ssl.SSLContext | None
    ) -> None:
        if tls is not None:
            accepted = tls.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
        self._socket = accepted
        self._target = target
        self._receiver = receiver
        self._arrived = select.poll()
        self._arrived.register(accepted, select.POLLIN)
        self._parser: LineParser = line_parser(target.source.lines, target.source.schema)
        self._rest = b""
        self._received = Received(target)
        self._introduced = False
        self._deadline: float | None = time.monotonic() + min(_STRANGER_SECONDS, target.source.idle)
        """When the client must have said who it is, or have ended the line that it has begun."""
        self._overdue = False
        self._client: str | None = None
        self._taken = 0
        """How many lines are durable; of a client with an id, over all its connections."""
        self._skip = 0
        self._finishing = False
        self.number = next(_NUMBERS)
        """In the order in which connections were accepted."""
        self.evicted = False
        self.settled = threading.Event()
        """Set when nothing more of this connection will be committed."""
        self.finished = threading.Event()
        accepted.settimeout(target.source.idle)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def run(self) -> None:
        try:
            if isinstance(self._socket, ssl.SSLSocket):
                self._socket.do_handshake()
            self._handshake()
            while not self._finishing and self._receive():
                self._take_lines()
            if self._overdue:
                raise _overdue(self._introduced, self._target.source.idle)
        except HoldfastError as error:
            self._target.count(refused=1)
            refused = refusal(error)
            self.say(f"error {refused.status} {refused}")
        except OSError:
            pass  # the client is gone; what was acknowledged is durable
        except Exception:  # noqa: BLE001 - the thread has no caller
            _log.exception("a connection failed")
            self.say("error 500 the receiver failed; cure: connect again and continue from the last ok")
        finally:
            self.settled.set()
            self._rest = b""
            self._received.reduce()
            _close(self._socket)
            self._receiver.forget(self)
            self.finished.set()

    def finish(self) -> None:
        """Let the connection end after the batch in hand."""
        self._finishing = True
        self._shut(socket.SHUT_RD)

    def evict(self) -> None:
        """End the connection: nothing more is read or said. The batch in hand is committed."""
        self.evicted = self._finishing = True
        self._shut(socket.SHUT_RDWR)

    def cut_if_overdue(self, now: float) -> None:
        """To be called now and then: reading ends where the client has taken too long."""
        deadline = self._deadline
        if deadline is not None and now > deadline:
            self._overdue = True
            self._shut(socket.SHUT_RD if self._introduced else socket.SHUT_RDWR)

    def _shut(self, how: int) -> None:
        # Not SSLSocket's own: it would leave TLS, and what is said later would go out in the clear.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, how)

    def say(self, text: str) -> None:
        line = " ".join(text.split()) + "\n"
        with contextlib.suppress(OSError):
            self._socket.sendall(line.encode(errors="replace"))

    # reading

    def _receive(self) -> bool:
        """Wait for more bytes and take all that are there, up to a batch. False at the end of the connection."""
        if not self._readable(self._target.source.idle):
            raise IncompleteBodyError(
                f"no byte arrived for {self._target.source.idle:g} s",
                cure="connect again when there are lines, and continue from the last ok",
            )
        step = _RECEIVE_BYTES if self._introduced else _STRANGER_BYTES
        most = _BATCH_BYTES if self._introduced else _STRANGER_BYTES
        parts = [self._rest]
        size = len(self._rest)
        while True:
            if self._introduced:
                self._received.wait(step, lambda: self._finishing, _READING_SHARE)
            more = self._socket.recv(step)
            parts.append(more)
            size += len(more)
            if not more or size >= most or not self._readable(0):
                break
        self._rest = b"".join(parts)
        self._received.reduce(min(size, self._received.bytes))
        return len(self._rest) > len(parts[0])

    def _readable(self, seconds: float) -> bool:
        pending = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0
        return pending or bool(self._arrived.poll(seconds * 1000))

    def _handshake(self) -> None:
        authorized = False
        while True:
            while b"\n" not in self._rest:
                self._check_line(len(self._rest))
                if not self._receive():
                    if self._overdue:
                        raise _overdue(self._introduced, self._target.source.idle)
                    return
                if self._target.source.token is None:
                    self._introduce()
            line, _, rest = self._rest.partition(b"\n")
            if not self._introduced:
                self._check_line(len(line))
            text = line.decode(errors="replace").rstrip("\r")
            if text.startswith("#token "):
                self._target.authorize(text.removeprefix("#token ").strip())
                authorized = True
                self._introduce()
            elif not authorized:
                self._target.authorize(None)
                authorized = True
                self._introduce()
                continue
            elif text.startswith("#client ") and self._client is None:
                self._greet(text)
            else:
                self._take_lines()
                return
            self._rest = rest

    def _introduce(self) -> None:
        if not self._introduced:
            self._receiver.introduce(self)
            self._introduced, self._deadline = True, None

    def _greet(self, text: str) -> None:
        match = _CLIENT.fullmatch(text)
        if match is None:
            raise MalformedBodyError(
                "the line '#client …' is not valid", cure="write #client <id>, or #client <id> <lines before the first>"
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
        if end or self._deadline is None:
            self._deadline = time.monotonic() + self._target.source.idle if self._rest else None
        self._check_line(len(self._rest))
        if len(block) > MOST_LINE_BYTES:
            self._check_line(max(map(len, block.split(b"\n"))))
        block = self._without_taken(block)
        while block:
            part, block = self._light_part(block)
            self._take(part)
        self._received.reduce(min(len(self._rest), self._received.bytes))

    def _light_part(self, block: bytes) -> tuple[bytes, bytes]:
        """The first lines of a block, few enough for the memory that a batch may take, and the others."""
        schema, source = self._target.source.schema, self._target.source
        most = min(_MOST_WEIGHT, MOST_TIMES_BODY * source.max_body)
        end = len(block)
        while text_bytes(block[:end], schema) > most and (cut := block.rfind(b"\n", 0, end // 2) + 1):
            end = cut
        return block[:end], block[end:]

    def _take(self, block: bytes) -> None:
        before = self._received.bytes
        self._received.wait(text_bytes(block, self._target.source.schema), lambda: self._finishing)
        try:
            for _, part, sorted_rows in sorted_blocks(block, self._parser):
                rows = admit_lines(sorted_rows, part, self._parser, self._target.source)
                if rows.bad and self._target.source.bad_rows == "fail":
                    first = rows.bad[0]
                    good = part[: first.at]
                    self._make_durable(sort_out(good, self._parser).frame, good.count(b"\n"))
                    # A line is named as it is counted in `ok`: the first one is 1 there.
                    raise split_bad(first, self._taken + 1, None, self._parser)
                if rows.bad:
                    self._target.count(skipped=len(rows.bad))
                self._make_durable(rows.frame, part.count(b"\n"))
        finally:
            self._received.reduce(before)

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
                self._target.submit(frame, None, count).result()
                return
            except StreamFullError:
                if time.monotonic() > deadline or self._finishing:
                    raise
            time.sleep(RETRY_SECONDS)

    def _check_line(self, length: int) -> None:
        most = min(MOST_LINE_BYTES if self._introduced else _STRANGER_BYTES, self._target.source.max_body)
        if length > most:
            raise BodyTooLargeError(
                f"line {self._taken + 1} or one soon after it is longer than {most:,} bytes",
                cure="send shorter lines, or rows as large as this over HTTP or Flight",
            )


def _overdue(introduced: bool, idle: float) -> IncompleteBodyError:
    if not introduced:
        return IncompleteBodyError(
            f"the first line did not arrive within {min(_STRANGER_SECONDS, idle):g} s",
            cure="connect when there is something to send",
        )
    return IncompleteBodyError(
        f"the line did not end within {idle:g} s", cure="connect again, continue from the last ok, and send whole lines"
    )


def _close(connection: socket.socket) -> None:
    """Close so that the last words arrive: what the client still sends is thrown away for a moment, since closing with
    unread bytes would reset the connection."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_WR)
        connection.settimeout(0.2)
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline and connection.recv(_RECEIVE_BYTES):
            pass
    connection.close()
