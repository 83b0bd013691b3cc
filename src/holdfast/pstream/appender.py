"""The appender: rows from clients that cannot send them again, made durable before anybody is told so.

Batches are encoded and written by a few threads at a time, then committed in the order in which they were handed in,
all that are ready in one transaction. A batch with an id that was taken before is a duplicate: it is answered as it was
the first time, and nothing is written. The watermark that each batch found is kept with it, so that what is late does
not depend on who reads the stream, and when.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
from sqlalchemy.exc import SQLAlchemyError

from holdfast.errors import BadRowError, HoldfastError, StreamFullError
from holdfast.meta import MetaStore, StreamMeta
from holdfast.pstream.punit import PUnit
from holdfast.pstream.stream import PStream, StreamUnit, new_entry
from holdfast.pstream.times import Times, row_bounds
from holdfast.pstream.units import UnitWriter

__all__ = ["Ack", "Appender", "open_appender"]

_WRITERS = 2
_REMEMBERED_SECONDS = 86_400.0
"""How long the ids of batches are remembered: a client must not wait longer with its retry."""
_HOUSEKEEPING_SECONDS = 60.0

Prepare = Callable[[pl.DataFrame], pl.DataFrame]


@dataclass(frozen=True, slots=True)
class Ack:
    """A batch is durable: the `number`-th entry of the stream, after `offset` rows. `duplicate` says that it was so
    before, and nothing was written now."""

    number: int
    offset: int
    rows: int
    duplicate: bool = False


@dataclass(slots=True)
class _Ticket:
    """A batch on its way. `done` is set when its p-unit is on disk, or when that failed."""

    batch: str | None
    client: tuple[str, int] | None
    size: int
    rows: int
    answer: Future[Ack] = field(default_factory=Future)
    done: bool = False
    unit: PUnit | None = None
    times: Times = field(default_factory=Times)


class Appender:
    """The one writer of a stream that clients fill; made by `open_appender`. Safe to use from any thread."""

    def __init__(
        self,
        meta: MetaStore,
        stream: PStream,
        writer: UnitWriter,
        *,
        event_time: str | None,
        lateness: int,
        budget: int | None,
        prepare: Prepare | None,
        clock: Callable[[], float],
    ) -> None:
        self._meta = meta
        self._streams = StreamMeta(meta)
        self.stream = stream
        self._writer = writer
        self._event_time = event_time
        self._lateness = lateness
        self._budget = budget
        self._prepare = prepare
        self._clock = clock
        self._watermark = stream.state().watermark
        self._held = stream.retained()[2]
        self._pending = 0
        self._queue: deque[_Ticket] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._tidied = clock()
        self._pool = ThreadPoolExecutor(_WRITERS, thread_name_prefix=f"append-{stream.name}")
        self._committer = threading.Thread(target=self._commit_loop, name=f"commit-{stream.name}", daemon=True)
        self._committer.start()

    # clients' side

    def append(self, frame: pl.DataFrame, batch: str | None = None, client: tuple[str, int] | None = None) -> Ack:
        """Make rows durable; returns when they are.

        `batch` is the client's id of the batch, unique in the stream. `client` is for clients that count what they
        send: a name, and the count behind this batch; `position` tells it again.
        """
        return self.submit(frame, batch, client).result()

    def submit(
        self, frame: pl.DataFrame, batch: str | None = None, client: tuple[str, int] | None = None
    ) -> Future[Ack]:
        """`append` without waiting. Batches are committed in the order of these calls."""
        size = int(frame.estimated_size())
        with self._wake:
            if self._closing:
                raise HoldfastError("the stream is being closed", cure="send the batch again after the restart")
            self._check_budget()
            ticket = _Ticket(batch, client, size, frame.height)
            # A batch that was handed in is taken, also when its client stops waiting: nobody can cancel the answer.
            ticket.answer.set_running_or_notify_cancel()
            self._pending += size
            self._queue.append(ticket)
        self._pool.submit(self._write, ticket, frame)
        return ticket.answer

    def pending_bytes(self) -> int:
        """How much was handed in and is not durable yet."""
        return self._pending

    def position(self, client: str) -> int:
        """How far a client that counts has come."""
        return self._streams.client_position(self.stream.name, client)

    def _check_budget(self) -> None:
        """Refuse what does not fit. What waits is counted as it came, before compression."""
        if self._budget is None or self._held + self._pending < self._budget:
            return
        self.stream.trim()
        self._held = self.stream.retained()[2]
        if self._held + self._pending >= self._budget:
            raise StreamFullError(
                f"p-stream '{self.stream.name}' holds {self._held:,} bytes and {self._pending:,} are on their way; "
                f"its budget is {self._budget:,}",
                cure="try again when its readers have caught up; start them if they do not run, or raise the budget",
            )

    # threads' side

    def _write(self, ticket: _Ticket, frame: pl.DataFrame) -> None:
        try:
            bound = None
            if self._event_time is not None:
                times = frame[self._event_time].to_physical().cast(pl.Int64)
                if times.null_count():
                    raise BadRowError(
                        f"{times.null_count()} rows have no event time ('{self._event_time}' is null)",
                        cure="give every row a time, or filter such rows out before they are sent",
                    )
                ticket.times, bound = row_bounds(times, None, self._lateness)
            if bound is not None:
                frame = frame.with_columns(bound)
            if self._prepare is not None:
                frame = self._prepare(frame)
            ticket.rows = frame.height
            if frame.height:
                ticket.unit = self._writer.write(f"in-{uuid.uuid4().hex}.arrow", frame)
        except BaseException as error:  # noqa: BLE001 - the client gets it
            ticket.answer.set_exception(error)
        finally:
            with self._wake:
                ticket.done = True
                self._wake.notify_all()

    def _commit_loop(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(
                    lambda: (self._queue and self._queue[0].done) or (self._closing and not self._queue)
                )
                if not self._queue:
                    return
                ready: list[_Ticket] = []
                while self._queue and self._queue[0].done:
                    ready.append(self._queue.popleft())
            try:
                self._commit([ticket for ticket in ready if not ticket.answer.done()])
            except BaseException as error:  # noqa: BLE001 - the clients get it
                for ticket in ready:
                    if not ticket.answer.done():
                        ticket.answer.set_exception(error)
            finally:
                with self._wake:
                    self._pending -= sum(ticket.size for ticket in ready)
            self._tidy()

    def _commit(self, tickets: list[_Ticket]) -> None:
        answers: list[tuple[_Ticket, Ack]] = []
        surplus: list[str] = []
        watermark, written = self._watermark, 0
        with self._meta.writing() as connection:
            known = self._streams.taken(
                connection, self.stream.name, [ticket.batch for ticket in tickets if ticket.batch is not None]
            )
            seen: dict[str, Ack] = {
                batch: Ack(taken.number, taken.offset, taken.rows, True) for batch, taken in known.items()
            }
            for ticket in tickets:
                if ticket.batch is not None and ticket.batch in seen:
                    answers.append((ticket, seen[ticket.batch]))
                    if ticket.unit is not None:
                        surplus.append(ticket.unit.name)
                    continue
                units = [StreamUnit(ticket.unit, watermark)] if ticket.unit is not None else []
                if ticket.times.greatest is not None:
                    reached = ticket.times.greatest - self._lateness
                    watermark = reached if watermark is None else max(watermark, reached)
                entry = new_entry(
                    units, after=watermark, ended=False, lineage={"batch": ticket.batch},
                    batch=ticket.batch, client=ticket.client,
                )  # fmt: skip
                [made] = self.stream.write(connection, [entry])
                written += made.bytes
                answers.append((ticket, Ack(made.number, made.offset, made.rows)))
                if ticket.batch is not None:
                    seen[ticket.batch] = Ack(made.number, made.offset, made.rows, True)
        self._watermark = watermark
        with self._wake:  # not while somebody looks up what is held: this could be missing in what he finds
            self._held += written
        self.stream.store.remove(surplus)
        for ticket, ack in answers:
            ticket.answer.set_result(ack)

    def _tidy(self) -> None:
        """Forget old batch ids now and then. What fails here must not stop the commits: it is done the next time."""
        now = self._clock()
        if now - self._tidied < _HOUSEKEEPING_SECONDS:
            return
        self._tidied = now
        try:
            self._streams.forget_batches(self.stream.name, now - _REMEMBERED_SECONDS)
        except (HoldfastError, SQLAlchemyError):
            return

    def close(self) -> None:
        """Take no more, finish what was handed in, and end the threads."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        self._committer.join()
        self._pool.shutdown()


def open_appender(
    meta: MetaStore,
    root: Path,
    stream: str,
    schema: pl.Schema,
    *,
    event_time: str | None,
    lateness: int,
    budget: int | None,
    prepare: Prepare | None = None,
    sync: bool = True,
    clock: Callable[[], float] = time.time,
) -> Appender:
    """Open a stream for writing. The caller holds the right to do so: a stream has one writer.

    `prepare` is applied to the rows before they are written, and must keep the columns whose names begin with `__hf_`.
    """
    log = PStream(meta, root, stream, sync=sync, clock=clock)
    log.declare({"schema": {name: str(dtype) for name, dtype in schema.items()}})
    log.sweep()
    return Appender(
        meta, log, UnitWriter(log.store), event_time=event_time, lateness=lateness, budget=budget, prepare=prepare,
        clock=clock,
    )  # fmt: skip
