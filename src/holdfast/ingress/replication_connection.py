"""A connection to PostgreSQL that speaks its replication protocol, over the same library as every other one.

psycopg has no replication of its own, but libpq has what it takes: copying in both directions at once.
"""

from __future__ import annotations

import select
import struct
import time
from dataclasses import dataclass

from psycopg import OperationalError, generators, pq
from psycopg.conninfo import make_conninfo

from holdfast.connect.bounded_connection import BoundedConnection

__all__ = ["KeepAlive", "LogRecord", "ReplicationConnection", "conninfo_of", "lsn_of", "lsn_text"]

_SETTINGS = {
    "datestyle": "ISO", "timezone": "UTC", "bytea_output": "hex", "extra_float_digits": "3",
    "intervalstyle": "iso_8601",
}  # fmt: skip
"""Values are written as text, in a way that does not depend on how server or user are set up."""
_CONNECT_SECONDS = 10
_HEAD = struct.Struct(">QQq")
_ALIVE = struct.Struct(">QqB")
_STATUS = struct.Struct(">cQQQqB")
_PG_EPOCH = 946_684_800


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A piece of the log, decoded."""

    data: bytes


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """All up to here has been sent."""

    end: int
    answer: bool


def conninfo_of(url: str, **more: str) -> str:
    options = " ".join(f"-c {name}={value}" for name, value in _SETTINGS.items())
    return make_conninfo(
        url, application_name="holdfast", connect_timeout=_CONNECT_SECONDS, tcp_user_timeout=30_000, options=options,
        **more,
    )  # fmt: skip


def lsn_text(lsn: int) -> str:
    """A place in the log as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_of(text: str) -> int:
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


class ReplicationConnection:
    """Opened at once. Raises psycopg's OperationalError. Not safe to use from several threads.

    A connection on which an answer takes longer than `answer_seconds` is closed.
    """

    def __init__(self, url: str, answer_seconds: float) -> None:
        # By way of psycopg's connection: libpq's own calls hold up all threads of the process while they wait.
        self._opened = BoundedConnection.connect(conninfo_of(url, replication="database"), autocommit=True)
        self._opened.answer_seconds = answer_seconds
        self._connection = self._opened.pgconn

    def execute(self, command: str) -> list[dict[str, str | None]]:
        """Rows by column."""
        self._connection.send_query(command.encode())
        result = self._opened.wait(generators.execute(self._connection))[-1]
        if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK, pq.ExecStatus.COPY_BOTH):
            raise self._error()
        names = [(result.fname(column) or b"").decode() for column in range(result.nfields)]
        return [
            {
                name: None if (value := result.get_value(row, column)) is None else value.decode()
                for column, name in enumerate(names)
            }
            for row in range(result.ntuples)
        ]

    def stream(self, slot: str, publication: str) -> None:
        """From where the slot is."""
        self.execute(
            f"START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '1', publication_names '\"{publication}\"')"
        )

    def read(self, seconds: float) -> LogRecord | KeepAlive | None:
        """What comes next; None if nothing comes in time."""
        deadline = time.monotonic() + seconds
        while True:
            size, data = self._connection.get_copy_data(1)
            if size > 0:
                return _parsed(bytes(data))
            if size < 0:
                self._connection.get_result()
                raise self._error()
            left = deadline - time.monotonic()
            if not select.select([self._connection.socket], [], [], max(0.0, left))[0]:
                return None
            self._connection.consume_input()

    def confirm(self, lsn: int, *, answer: bool = False) -> None:
        """Everything before this place is durable here: the server may forget it. It may be asked for an answer."""
        now = round((time.time() - _PG_EPOCH) * 1_000_000)
        self._opened.wait(generators.copy_to(self._connection, _STATUS.pack(b"r", lsn, lsn, lsn, now, answer)))

    def close(self) -> None:
        self._opened.close()

    def _error(self) -> OperationalError:
        return OperationalError(self._connection.get_error_message().strip() or "the connection is lost")


def _parsed(data: bytes) -> LogRecord | KeepAlive | None:
    if data[:1] == b"w":
        return LogRecord(data[1 + _HEAD.size :])
    end, _, answer = _ALIVE.unpack_from(data, 1)
    return KeepAlive(end, bool(answer))
