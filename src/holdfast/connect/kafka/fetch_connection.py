"""A connection that fetches from Kafka by its own protocol: for plain and TLS connections, where fetching is simple.

The client library makes an object of every message, which takes longer than all that is done with a row here. So blocks
of messages are fetched as they are stored (`record_batches.py`). Whatever is out of the ordinary is an `UnusualError`,
and the library reads the range in its place.
"""

from __future__ import annotations

import socket
import ssl
import struct
from dataclasses import dataclass, field
from typing import Any

from holdfast.connect.kafka.kafka_servers import KafkaServers
from holdfast.connect.kafka.record_batches import DAMAGE, Fetched, UnknownBatchError, decode_batches

__all__ = ["FetchConnection", "UnusualError", "can_fetch"]

_OURS = frozenset({"security.protocol", "ssl.ca.location", "ssl.certificate.location", "ssl.key.location"})
_FETCH, _FETCH_VERSION = 1, 11
_METADATA, _METADATA_VERSION = 3, 1
_CLIENT = b"holdfast"
_COMMITTED = 1
_SECONDS = 10.0
_BYTES = 8 << 20
_WAIT_MS = 100
_LARGEST = 1 << 30


class UnusualError(Exception):
    """What is not handled here. The message says what it is."""


def can_fetch(servers: KafkaServers) -> bool:
    """Whether connections need nothing but what is done here."""
    settings = dict(servers.settings)
    return not servers.secrets and settings.keys() <= _OURS and settings.get("security.protocol", "SSL") == "SSL"


@dataclass(slots=True)
class FetchConnection:
    """To the leader of one partition. `ask` sends a request, `answer` waits for it: what is done between costs no
    time."""

    servers: KafkaServers
    topic: str
    partition: int
    _socket: socket.socket | None = None
    _number: int = 0
    _asked: int | None = field(default=None)
    """The offset that was asked for and not answered yet."""

    def ask(self, offset: int) -> None:
        if self._asked == offset:
            return
        if self._asked is not None:
            self.close()
        connection = self._connected()
        topic = self.topic.encode()
        body = struct.pack(
            f">iiiibiiih{len(topic)}siiiqqiih", -1, _WAIT_MS, 1, _BYTES, _COMMITTED, 0, -1, 1, len(topic), topic, 1,
            self.partition, -1, offset, -1, _BYTES, 0, 0,
        )  # fmt: skip
        try:
            self._send(connection, _FETCH, _FETCH_VERSION, body)
        except OSError as error:
            raise self._broken(error) from error
        self._asked = offset

    def answer(self) -> Fetched:
        assert self._socket is not None
        assert self._asked is not None
        try:
            text = _received(self._socket, self._number)
        except OSError as error:
            raise self._broken(error) from error
        offset, self._asked = self._asked, None
        try:
            return _fetched(text, self.partition, offset)
        except (UnknownBatchError, UnusualError, *DAMAGE) as error:
            raise self._broken(error) from error

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = self._asked = None

    def _broken(self, error: Exception) -> UnusualError:
        self.close()
        return error if isinstance(error, UnusualError) else UnusualError(f"{type(error).__name__}: {error}")

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket = self._open(*self._leader())
        return self._socket

    def _leader(self) -> tuple[str, int]:
        """The address of the broker that has the partition."""
        why = ""
        for address in self.servers.addresses.split(","):
            host, _, port = address.strip().rpartition(":")
            try:
                with self._open(host.strip("[]"), int(port)) as connection:
                    name = self.topic.encode()
                    body = struct.pack(f">ih{len(name)}s", 1, len(name), name)
                    self._send(connection, _METADATA, _METADATA_VERSION, body)
                    return _leader_in(_received(connection, self._number), self.partition)
            except (OSError, struct.error, UnusualError) as error:
                why = str(error)
        raise UnusualError(f"no broker answers: {why}")

    def _open(self, host: str, port: int) -> socket.socket:
        try:
            plain = socket.create_connection((host, port), timeout=_SECONDS)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            settings = dict(self.servers.settings)
            if "security.protocol" not in settings:
                return plain
            context = ssl.create_default_context(cafile=settings.get("ssl.ca.location"))
            if "ssl.certificate.location" in settings:
                context.load_cert_chain(settings["ssl.certificate.location"], settings.get("ssl.key.location"))
            return context.wrap_socket(plain, server_hostname=host)
        except OSError as error:
            raise UnusualError(f"{host}:{port}: {error}") from error

    def _send(self, connection: socket.socket, kind: int, version: int, body: bytes) -> None:
        self._number += 1
        head = struct.pack(f">hhih{len(_CLIENT)}s", kind, version, self._number, len(_CLIENT), _CLIENT)
        connection.sendall(struct.pack(">i", len(head) + len(body)) + head + body)


def _received(connection: socket.socket, number: int) -> bytes:
    size = struct.unpack(">i", _exactly(connection, 4))[0]
    if not 0 < size <= _LARGEST:
        raise OSError(f"an answer of {size} bytes")
    text = _exactly(connection, size)
    if struct.unpack_from(">i", text)[0] != number:
        raise OSError("an answer to another question")
    return bytes(memoryview(text)[4:])


def _exactly(connection: socket.socket, size: int) -> bytearray:
    text = bytearray(size)
    view, at = memoryview(text), 0
    while at < size:
        count = connection.recv_into(view[at:])
        if not count:
            raise OSError("the broker has closed the connection")
        at += count
    return text


class _AnswerReader:
    def __init__(self, text: bytes) -> None:
        self.text = text
        self.at = 0

    def take(self, form: str) -> Any:
        found = struct.unpack_from(f">{form}", self.text, self.at)
        self.at += struct.calcsize(f">{form}")
        return found[0] if len(found) == 1 else found

    def string(self) -> str:
        size = self.take("h")
        self.at += max(0, size)
        return self.text[self.at - max(0, size) : self.at].decode()


def _leader_in(text: bytes, partition: int) -> tuple[str, int]:
    answer = _AnswerReader(text)
    brokers = {}
    for _ in range(answer.take("i")):
        node, host, port = answer.take("i"), answer.string(), answer.take("i")
        answer.string()
        brokers[node] = (host, port)
    answer.take("i")
    for _ in range(answer.take("i")):
        error = answer.take("h")
        answer.string()
        answer.take("b")
        for _ in range(answer.take("i")):
            _, index, leader = answer.take("hii")
            for _ in range(2):
                replicas = answer.take("i")
                answer.at += 4 * replicas
            if index == partition and leader in brokers:
                return brokers[leader]
        raise UnusualError(f"partition {partition} has no leader (error {error})")
    raise UnusualError("no answer about the topic")


def _fetched(text: bytes, partition: int, offset: int) -> Fetched:
    answer = _AnswerReader(text)
    _, error, _ = answer.take("ihi")
    if error:
        raise UnusualError(f"error {error}")
    if answer.take("i") != 1:
        raise UnusualError("no answer about the topic")
    answer.string()
    if answer.take("i") != 1:
        raise UnusualError("no answer about the partition")
    _, error = answer.take("ih")
    if error:
        raise UnusualError(f"error {error}")
    answer.take("qqq")
    aborted = [answer.take("qq") for _ in range(max(0, answer.take("i")))]
    answer.take("i")
    size = max(0, answer.take("i"))
    return decode_batches(partition, text[answer.at : answer.at + size], offset, aborted)
