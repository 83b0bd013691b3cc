"""A channel between two processes of a run: messages over TCP, after both have shown that they know the run's secret.

A frame is the length of the head and of the body, then both. A channel is written to by any thread, a message at a
time, and read by one.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import select
import socket
import struct
import sys
import threading

from holdfast.epoch.crew_messages import CrewHead, decode_head, encode_head
from holdfast.errors import CorruptRecordError

__all__ = ["Channel", "ChannelClosedError", "accept", "connect", "listen", "shut"]

_LENGTHS = struct.Struct("<IQ")
_PROOF_BYTES = 32
_SHAKE_SECONDS = 5.0
_DEAD_MILLIS = 2_000
_MOST_RESENT = 2
_RESENT_AT = 2
"""Where the kernel's account of a connection has how often it has sent the same again, without any answer."""
_MOST_HEAD = 1 << 20


class ChannelClosedError(Exception):
    """The other side is gone, or is not what it should be."""


class Channel:
    """Not promised: that what was sent has arrived."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._sending = threading.Lock()
        self._read = link.makefile("rb", buffering=1 << 16)

    def send(self, head: CrewHead, body: bytes | memoryview = b"") -> None:
        name = encode_head(head)
        small = _LENGTHS.pack(len(name), len(body)) + name
        try:
            with self._sending:
                if len(body) < 1 << 16:
                    self._link.sendall(small + body)
                else:
                    self._link.sendall(small)
                    self._link.sendall(body)
        except OSError as error:
            raise ChannelClosedError(str(error)) from error

    def receive(self) -> tuple[CrewHead, bytes]:
        try:
            name_bytes, body_bytes = _LENGTHS.unpack(self._exactly(_LENGTHS.size))
            if name_bytes > _MOST_HEAD:
                raise ChannelClosedError("a head is too long")
            head = decode_head(self._exactly(name_bytes))
            return head, self._exactly(body_bytes)
        except (OSError, ValueError, CorruptRecordError) as error:
            raise ChannelClosedError(str(error)) from error

    def _exactly(self, size: int) -> bytes:
        data: bytes = self._read.read(size)
        if len(data) < size:
            raise ChannelClosedError("the other side has closed the connection")
        return data

    def close(self) -> None:
        """Whoever reads or writes gets an error."""
        shut(self._link)

    def wait(self, seconds: float) -> bool:
        """Wait for something to arrive, or for the end; False if nothing has."""
        poll = select.poll()
        try:
            poll.register(self._link, select.POLLIN)
            return bool(poll.poll(seconds * 1000))
        except (OSError, ValueError) as error:
            raise ChannelClosedError(str(error)) from error

    @property
    def unanswered(self) -> bool:
        """Whether the other system does not acknowledge what was sent, though it was sent again and again. One whose
        process is too busy to read does. Known on Linux alone; elsewhere such a connection ends by itself, later."""
        if not sys.platform.startswith("linux"):
            return False
        try:
            account = self._link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RESENT_AT + 1)
        except OSError as error:
            raise ChannelClosedError(str(error)) from error
        return account[_RESENT_AT] >= _MOST_RESENT

    @property
    def own_host(self) -> str:
        """The address that this machine has on the way to the other side."""
        return str(self._link.getsockname()[0])


def listen(host: str) -> socket.socket:
    """A free port of this address."""
    return socket.create_server((host, 0), backlog=128)


def shut(link: socket.socket) -> None:
    """Close a socket, and wake whoever waits for it."""
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
    link.close()


def connect(
    host: str, port: int, secret: bytes, seconds: float = _SHAKE_SECONDS, *, reach: float = _SHAKE_SECONDS
) -> Channel:
    """Raises OSError or ChannelClosedError if no process is there that knows the secret, or answers within so many
    seconds at each step. Nobody has to run for the first: the other system takes a connection by itself, within
    `reach`."""
    link = socket.create_connection((host, port), timeout=min(seconds, reach))
    link.settimeout(seconds)
    return _shaken(link, secret, b"connects", b"accepts")


def accept(link: socket.socket, secret: bytes) -> Channel:
    """Of a new connection. Raises ChannelClosedError if it does not know the secret."""
    link.settimeout(_SHAKE_SECONDS)
    return _shaken(link, secret, b"accepts", b"connects")


def _shaken(link: socket.socket, secret: bytes, mine: bytes, theirs: bytes) -> Channel:
    """Each side draws a challenge and answers the other's, under a name of its own: an answer that is thrown back is
    none."""
    try:
        challenge = secrets.token_bytes(_PROOF_BYTES)
        link.sendall(challenge)
        asked = _received(link, _PROOF_BYTES)
        link.sendall(hmac.digest(secret, mine + asked, "sha256"))
        answer = _received(link, _PROOF_BYTES)
        if not hmac.compare_digest(answer, hmac.digest(secret, theirs + challenge, "sha256")):
            raise ChannelClosedError("the other side does not know the secret of this run")
        link.settimeout(None)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_MILLIS)
        return Channel(link)
    except (OSError, ChannelClosedError) as error:
        link.close()
        raise ChannelClosedError(str(error)) from error


def _received(link: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        data = link.recv(size - len(found))
        if not data:
            raise ChannelClosedError("the other side has closed the connection")
        found += data
    return found
