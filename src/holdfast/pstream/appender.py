"""The appender: rows from clients that cannot send them again, made durable before anybody is told so.

Batches are encoded and written by a few threads at a time, small ones that follow one another as one p-unit, then
committed in the order in which they were handed in, all that are ready in one transaction. A batch with an id that was
taken before is a duplicate: it is answered as it was the first time, and nothing is written. The watermark that each
p-unit found is kept with it, so that what is late does not depend on who reads the stream, and when.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path

import polars as pl
from sqlalchemy.exc import SQLAlchemyError

from holdfast.connect.time_range import TimeRange
from holdfast.errors import BadRowError, HoldfastError, StreamFullError, TakenBeforeError, WrongTypeError
from holdfast.hidden_columns import BOUND
from holdfast.meta import Count, Lease, MetaStore, StreamMeta
from holdfast.pstream.description import StreamDescription
from holdfast.pstream.stream import PStream, StreamUnit, new_entry
from holdfast.pstream.tickets import Ack, Ticket, TicketGroup, answer_again, as_taken
from holdfast.pstream.times import row_bounds, row_marks, times_of
from holdfast.pstream.units import UnitWriter
from holdfast.store import Private
from holdfast.threads import SYSTEM, Threads

__all__ = ["Ack", "Appender", "open_appender"]

_WRITERS = 2
_SMALL = 1 << 20
"""Batches are put together up to so many bytes."""
_REMEMBERED_SECONDS = 86_400.0
"""How long the ids of batches are remembered: a client must not wait longer with its retry."""
_COUNTS_REMEMBERED_SECONDS = 365 * 86_400.0
"""How long the count of a client that sends nothing is remembered. One that comes back later begins at 0, as a new one
does: what it then sends again is taken again."""
_HOUSEKEEPING_SECONDS = 60.0

Prepare = Callable[[pl.DataFrame], pl.DataFrame]


class Appender:
    """The one writer of a stream that clients fill; made by `open_appender`. Safe to use from any thread."""

    def __init__(
        self,
        meta: MetaStore,
        stream: PStream,
        writer: UnitWriter,
        schema: pl.Schema,
        *,
        event_time: str | None,
        lateness: int,
        budget: int | None,
        prepare: Prepare | None,
        marked: bool,
        lease: Lease | None,
        clock: Callable[[], float],
        threads: Threads,
    ) -> None:
        self._meta = meta
        self._streams = StreamMeta(meta)
        self._arrivals = self._streams.arrivals
        self.stream = stream
        self._writer = writer
        self._schema = schema
        self._event_time = event_time
        self._lateness = lateness
        self._budget = budget
        self._prepare = prepare
        self._marked = marked
        self._lease = lease
        self._clock = clock
        self._watermark = stream.state().watermark
        self._unsure = False
        self._held = stream.retained()[2]
        self._pending = 0
        self._waiting: deque[Ticket] = deque()
        self._groups: deque[TicketGroup] = deque()
        self._flying: dict[str, Ticket] = {}
        self._wake = threads.condition()
        self._closing = False
        self._tidied = clock()
        self._pool = threads.pool(_WRITERS, f"append-{stream.name}")
        self._committer = threads.start(self._commit_loop, f"commit-{stream.name}")

    # clients' side

    def append(self, frame: pl.DataFrame, batch: str | None = None, count: Count | None = None) -> Ack:
        """Make rows durable; returns when they are.

        `batch` is the client's id of the batch, unique in the stream. `count` is for clients that count what they send;
        `position` tells how far they are. One that does not stand where the count begins is refused.
        """
        return self.submit(frame, batch, count).result()

    def submit(self, frame: pl.DataFrame, batch: str | None = None, count: Count | None = None) -> Future[Ack]:
        """`append` without waiting. Batches are committed in the order of these calls."""
        size = int(frame.estimated_size())
        ticket = Ticket(frame, batch, count, size, frame.height)
        # A batch that was handed in is taken, also when its client stops waiting: nobody can cancel the answer.
        ticket.answer.set_running_or_notify_cancel()
        with self._wake:
            if self._closing:
                raise HoldfastError("the stream is being closed", cure="send the batch again after the restart")
            first = self._flying.get(batch) if batch is not None else None
            if first is None:
                try:
                    self._check_budget()
                except StreamFullError:
                    if not self._answer_taken(ticket):
                        raise
                    return ticket.answer
                self._pending += size
                self._waiting.append(ticket)
                if batch is not None:
                    self._flying[batch] = ticket
                # Here, and not later: another thread may take the batch along, and the pool end with it.
                self._pool.submit(self._work)
        if first is not None:
            first.answer.add_done_callback(lambda answered: answer_again(ticket, answered))
        return ticket.answer

    def _answer_taken(self, ticket: Ticket) -> bool:
        """Answer a batch that was taken before: a full stream is no reason to leave its client in doubt."""
        known = self._arrivals.taken(self.stream.name, [ticket.batch]) if ticket.batch is not None else {}
        for taken in known.values():
            ticket.answer.set_result(as_taken(taken))
        return bool(known)

    def pending_bytes(self) -> int:
        """How much was handed in and is not durable yet."""
        return self._pending

    def position(self, client: str) -> int:
        """How far a client that counts has come."""
        return self._arrivals.position(self.stream.name, client)

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

    def _work(self) -> None:
        """Write what waits longest, and with it the small batches that follow: one sync serves them all."""
        with self._wake:
            if not self._waiting:
                return
            group = TicketGroup([self._waiting.popleft()])
            total = group.tickets[0].size
            while self._waiting and max(total, self._waiting[0].size) < _SMALL:
                group.tickets.append(self._waiting.popleft())
                total += group.tickets[-1].size
            self._groups.append(group)
        try:
            self._write(group)
        except BaseException as error:  # noqa: BLE001 - the clients get it
            self._fail(group.tickets, error)
            group.tickets = []
        finally:
            with self._wake:
                group.done = True
                self._wake.notify_all()

    def _write(self, group: TicketGroup) -> None:
        known = self._arrivals.taken(self.stream.name, [t.batch for t in group.tickets if t.batch is not None])
        frames, fresh = [], []
        for ticket in group.tickets:
            taken = known.get(ticket.batch) if ticket.batch is not None else None
            try:
                if taken is not None:
                    self._settle(ticket)
                    ticket.answer.set_result(as_taken(taken))
                    continue
                frame = self._prepared(group, ticket.frame)
            except Exception as error:  # noqa: BLE001 - its client gets it, and the others are not held up
                self._fail([ticket], error)
                continue
            ticket.written = frame.height
            fresh.append(ticket)
            frames.append(frame)
        group.tickets = fresh
        rows = pl.concat(frames, how="diagonal") if frames else pl.DataFrame()
        if rows.height:
            group.unit = self._writer.write(f"in-{uuid.uuid4().hex}.arrow", rows)

    def _prepared(self, group: TicketGroup, frame: pl.DataFrame) -> pl.DataFrame:
        """What is written of a batch, with the bounds of rows behind the watermark that the group has brought, or of
        all rows if readers want them."""
        greatest = group.greatest
        if self._event_time is not None:
            bad = TimeRange(self._event_time).split(frame)[1]
            if bad is not None:
                raise BadRowError(
                    f"{len(bad.at)} rows cannot be placed in time; of the first of them, row {bad.at[0] + 1}:"
                    f" {bad.reasons(1)[0]}",
                    cure="give every row a time that is allowed, or filter such rows out before they are sent",
                )
            times = frame[self._event_time].to_physical().cast(pl.Int64)
            seen = times_of(times)
            if seen is not None:
                bound = row_bounds(times, seen, greatest, self._lateness)
                if self._marked:
                    bound = row_marks(times, greatest, self._lateness).alias(BOUND)
                frame = frame.with_columns(bound) if bound is not None else frame
                greatest = seen.greatest if greatest is None else max(greatest, seen.greatest)
        if self._prepare is not None:
            frame = self._prepare(frame)
        self._check_schema(frame)
        group.greatest = greatest
        return frame

    def _check_schema(self, frame: pl.DataFrame) -> None:
        """Refuse a batch of other columns, before it is put together with those of others."""
        found = {name: dtype for name, dtype in frame.schema.items() if name != BOUND}
        if found != dict(self._schema):
            raise WrongTypeError(
                f"the batch has {_columns(found)}, the p-stream {_columns(self._schema)}",
                cure="send the columns that the stream was declared with",
            )

    def _settle(self, ticket: Ticket) -> None:
        """A batch is no longer on its way. To be called before its client is told, who may hand in the next one."""
        with self._wake:
            self._pending -= ticket.size
            if ticket.batch is not None:
                self._flying.pop(ticket.batch, None)

    def _fail(self, tickets: list[Ticket], error: BaseException) -> None:
        for ticket in tickets:
            if not ticket.answer.done():
                self._settle(ticket)
                ticket.answer.set_exception(error)

    def _commit_loop(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(
                    lambda: (
                        (self._groups and self._groups[0].done)
                        or (self._closing and not self._groups and not self._waiting)
                    )
                )
                if not self._groups:
                    return
                ready: list[TicketGroup] = []
                while self._groups and self._groups[0].done:
                    ready.append(self._groups.popleft())
            groups = [group for group in ready if group.tickets]
            try:
                answers = self._commit(groups)
            except BaseException as error:  # noqa: BLE001 - the clients get it
                # If only the answer of the database was lost, the stream has come further than we know.
                self._unsure = True
                for group in groups:
                    self._fail(group.tickets, error)
            else:
                for ticket, ack in answers:
                    self._settle(ticket)
                    ticket.answer.set_result(ack)
            self._tidy()

    def _commit(self, groups: list[TicketGroup]) -> list[tuple[Ticket, Ack]]:
        """Commit what is on disk, in one transaction, but for what was taken before; returns what to answer."""
        while groups:
            try:
                return self._commit_all(groups)
            except TakenBeforeError as error:
                self._drop_taken(groups, error)
                groups = [group for group in groups if group.tickets]
        return []

    def _drop_taken(self, groups: list[TicketGroup], error: TakenBeforeError) -> None:
        """Answer what was taken before, and write the rest of its p-units again. The first ones, which nobody names, go
        at the next start."""
        for group in groups:
            # Not by being equal: of the same lines handed in twice, one may be the first.
            moved = {id(count) for count in error.counts}
            stale = [t for t in group.tickets if t.batch in error.batches or id(t.count) in moved]
            if not stale:
                continue
            group.tickets = [ticket for ticket in group.tickets if ticket not in stale]
            group.unit, group.greatest = None, None
            for ticket in stale:
                self._settle(ticket)
                if ticket.batch is not None and ticket.batch in error.batches:
                    ticket.answer.set_result(as_taken(error.batches[ticket.batch]))
                else:
                    ticket.answer.set_exception(error)
            self._write(group)

    def _commit_all(self, groups: list[TicketGroup]) -> list[tuple[Ticket, Ack]]:
        answers: list[tuple[Ticket, Ack]] = []
        written = 0
        with self._meta.writing() as connection:
            if self._lease is not None:
                self._meta.fence(connection, self._lease)
            watermark = self._streams.watermark(connection, self.stream.name) if self._unsure else self._watermark
            for group in groups:
                units = [StreamUnit.of(group.unit, watermark)] if group.unit is not None else []
                if group.greatest is not None:
                    reached = group.greatest - self._lateness
                    watermark = reached if watermark is None else max(watermark, reached)
                before = list(itertools.accumulate((ticket.written for ticket in group.tickets), initial=0))
                tickets = list(zip(group.tickets, before, strict=False))
                entry = new_entry(
                    units,
                    after=watermark,
                    ended=False,
                    lineage={"batches": [ticket.batch for ticket in group.tickets]},
                    batches=tuple((t.batch, start, t.rows) for t, start in tickets if t.batch is not None),
                    counts=tuple(ticket.count for ticket in group.tickets if ticket.count is not None),
                )
                [made] = self.stream.write(connection, [entry])
                written += made.bytes
                answers += [
                    (ticket, Ack(made.number, made.offset + start, ticket.rows, written=ticket.written))
                    for ticket, start in tickets
                ]
        with self._wake:  # not while somebody looks up what is held: this could be missing in what he finds
            self._held = self.stream.retained()[2] if self._unsure else self._held + written
        self._watermark, self._unsure = watermark, False
        return answers

    def _tidy(self) -> None:
        """Forget old batch ids and counts now and then. What fails here must not stop the commits: it is done the next
        time."""
        now = self._clock()
        if now - self._tidied < _HOUSEKEEPING_SECONDS:
            return
        self._tidied = now
        try:
            self._arrivals.forget(
                self.stream.name,
                batches_before=now - _REMEMBERED_SECONDS,
                clients_before=now - _COUNTS_REMEMBERED_SECONDS,
            )
        except (HoldfastError, SQLAlchemyError):
            return

    def close(self) -> None:
        """Take no more, finish what was handed in, and end the threads."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        self._committer.join()
        self._pool.shutdown()


def _columns(schema: Mapping[str, pl.DataType]) -> str:
    return ", ".join(f"{name} {dtype}" for name, dtype in schema.items())


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
    marked: bool = False,
    lease: Lease | None = None,
    sync: bool = True,
    clock: Callable[[], float] = time.time,
    threads: Threads = SYSTEM,
) -> Appender:
    """Open a stream for writing. A stream has one writer: who has lost the `lease` cannot commit.

    `prepare` is applied to the rows before they are written, and must keep hidden columns.
    `marked` says that readers want to know the watermark before each row.
    """
    log = PStream(meta, root, stream, sync=sync, clock=clock)
    log.declare(StreamDescription({name: str(dtype) for name, dtype in schema.items()}))
    log.sweep(meta.right(lease) if lease is not None else Private("the stream has no other writer"))
    return Appender(
        meta, log, UnitWriter(log.store), schema, event_time=event_time, lateness=lateness, budget=budget,
        prepare=prepare, lease=lease, clock=clock, threads=threads, marked=marked,
    )  # fmt: skip
