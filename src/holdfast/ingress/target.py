"""What the receivers share of a source: who may send to it, how much is on its way, and what it has taken.

Back pressure has two parts. The appender refuses rows when the budget of the stream on disk is used up; here a body is
refused before it is read when too many bytes are in memory already, being received or waiting for the disk.
"""

from __future__ import annotations

import hmac
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace

import polars as pl

from holdfast.connect.sources.push import PushSource
from holdfast.connect.sources.received import ReceivedSource
from holdfast.errors import AccessDeniedError, IngressBusyError, MalformedBodyError, NotAuthenticatedError
from holdfast.ingress.weight import MOST_TIMES_BODY
from holdfast.meta import Count
from holdfast.pstream.appender import Ack, Appender

__all__ = ["RETRY_SECONDS", "IngressTarget", "Received", "StreamTarget", "Totals", "ack_json", "bearer", "check_batch"]

_LEAST_MEMORY = 256_000_000
RETRY_SECONDS = 0.05
_BATCH = re.compile(r"[\x21-\x7e]{1,200}")


@dataclass(frozen=True, slots=True)
class Totals:
    """What a source has taken since the start of the receivers, and the rows in its stream as last heard."""

    rows: int = 0
    batches: int = 0
    duplicates: int = 0
    skipped: int = 0
    refused: int = 0
    offset: int | None = None


class StreamTarget:
    """A source as its receiver sees it: what it takes, and where that goes. Safe to use from any thread."""

    def __init__(self, name: str, source: ReceivedSource, appender: Appender) -> None:
        self.name = name
        self.source = source
        self.appender = appender
        self._most = max(_LEAST_MEMORY, MOST_TIMES_BODY * source.max_body)
        self._lock = threading.Lock()
        self._received = 0
        self._totals = Totals()

    @property
    def totals(self) -> Totals:
        return self._totals

    @contextmanager
    def receiving(self) -> Iterator[Received]:
        """Count bytes in memory while a body is received, decoded and made durable."""
        received = Received(self)
        try:
            yield received
        finally:
            received.reduce()

    def _check_room(self, more: int, own: int, share: float) -> None:
        """Refuse `more` bytes where memory would not do. One body always has room, whatever its size: `own` is what
        it holds already."""
        held = self._received + self.appender.pending_bytes()
        if held > own and held + more > share * self._most:
            raise IngressBusyError(
                f"{held:,} bytes are on their way to the disk, and {more:,} more would exceed the limit",
                cure="send the batch again in a moment, with the same batch id",
                operator=self.name,
            )

    def submit(self, frame: pl.DataFrame, batch: str | None, count: Count | None = None) -> Future[Ack]:
        """Hand rows in; the answer comes when they are durable, in the order of these calls."""
        answer = self.appender.submit(frame, batch, count)
        answer.add_done_callback(self._count)
        return answer

    def count(self, *, skipped: int = 0, refused: int = 0) -> None:
        with self._lock:
            now = self._totals
            self._totals = replace(now, skipped=now.skipped + skipped, refused=now.refused + refused)

    def _count(self, answer: Future[Ack]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            return
        ack = answer.result()
        with self._lock:
            now = self._totals
            if ack.duplicate:
                self._totals = replace(now, duplicates=now.duplicates + 1)
                return
            behind = max(ack.offset + ack.written, now.offset or 0)
            self._totals = replace(now, rows=now.rows + ack.rows, batches=now.batches + 1, offset=behind)

    def hold(self, more: int, own: int, share: float = 1.0) -> None:
        """Count bytes of a body that has `own` already, or refuse them where `share` of the memory is taken."""
        with self._lock:
            if more > 0:
                self._check_room(more, own, share)
            self._received += more


class IngressTarget(StreamTarget):
    """A source that clients push to."""

    source: PushSource

    def __init__(self, name: str, source: PushSource, appender: Appender) -> None:
        super().__init__(name, source, appender)

    def opens(self, token: str | None) -> bool:
        """Whether the token, or none, is the right one. Takes the same time whatever is wrong with it."""
        if self.source.token is None:
            return True
        return hmac.compare_digest((token or "").encode(), self.source.token.encode())

    def authorize(self, token: str | None) -> None:
        if self.opens(token):
            return
        if token is None:
            raise NotAuthenticatedError(
                "the source requires a token, and none was given",
                cure="send the header 'Authorization: Bearer <token>', over TCP the first line '#token <token>'",
                operator=self.name,
            )
        raise AccessDeniedError(
            "this is not the token of the source", cure="send the token that it was declared with", operator=self.name
        )


class Received:
    """The bytes of one body that are, or are about to be, in memory."""

    __slots__ = ("_target", "bytes")

    def __init__(self, target: StreamTarget) -> None:
        self._target = target
        self.bytes = 0

    def add(self, more: int) -> None:
        self._target.hold(more, self.bytes)
        self.bytes += more

    def wait(self, more: int, give_up: Callable[[], bool], share: float = 1.0) -> None:
        """`add` for clients that are held back by not reading on: waits for room, as long as a client may be idle
        itself, or until there is another reason to give up."""
        deadline = time.monotonic() + self._target.source.idle
        while True:
            try:
                self._target.hold(more, self.bytes, share)
            except IngressBusyError:
                if time.monotonic() > deadline or give_up():
                    raise
                time.sleep(RETRY_SECONDS)
            else:
                self.bytes += more
                return

    def reduce(self, to: int = 0) -> None:
        self._target.hold(to - self.bytes, 0)
        self.bytes = to


def bearer(header: str | None) -> str | None:
    """The token of an Authorization header, or None."""
    scheme, _, token = (header or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def check_batch(batch: str | None) -> str | None:
    """The client's batch id, if it is one."""
    if batch is None or _BATCH.fullmatch(batch):
        return batch
    raise MalformedBodyError(
        "the batch id is not valid", cure="use 1 to 200 visible ASCII characters without spaces", place="batch id"
    )


def ack_json(ack: Ack, batch: str | None) -> dict[str, str | int | None]:
    """An acknowledgement as clients get it."""
    return {
        "batch": batch,
        "number": ack.number,
        "offset": ack.offset,
        "rows": ack.rows,
        "duplicate": ack.duplicate,
    }
