"""The appender: rows from clients that cannot send them again, made durable before they are acknowledged.

One thread writes and commits: while it does so, what comes in waits, and then goes together, as one p-unit and in one
transaction. So the more comes, the less each batch costs, and a batch that comes alone does not wait. Where so much
waits that encoding it takes long, other threads write, too; commits stay in the order in which batches were handed in.
A batch with an id that was taken before is a duplicate: it is answered as it was the first time, and nothing is
written. The watermark that each p-unit found is kept with it, so that what is late does not depend on what reads the
stream, and when.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from sqlalchemy.exc import SQLAlchemyError

from holdfast.errors import HoldfastError, StreamFullError, TakenBeforeError
from holdfast.meta import Count, Lease, MetaStore, StreamMeta
from holdfast.pstream.announcements import Announcements
from holdfast.pstream.batch_rules import BatchRules, Prepare
from holdfast.pstream.description import StreamDescription
from holdfast.pstream.pstream import PStream
from holdfast.pstream.punit import PUnit
from holdfast.pstream.tickets import Ack, Ticket, TicketGroup, acks_of, answer_again, as_taken, entry_of
from holdfast.pstream.units import UnitWriter, synced_segments
from holdfast.store import Private, SyncedSegments
from holdfast.threads import SYSTEM, Threads

__all__ = ["Ack", "Appender", "open_appender"]

_WRITERS = 2
_SMALL = 1 << 20
"""Batches are put together up to so many bytes. While so many wait, other threads write, too."""
_REMEMBERED_SECONDS = 86_400.0
"""How long the ids of batches are remembered: a client must not wait longer with its retry."""
_COUNTS_REMEMBERED_SECONDS = 365 * 86_400.0
"""Of a client that sends nothing. One that comes back later begins at 0: what it then sends again is taken again."""
_HOUSEKEEPING_SECONDS = 60.0


@dataclass(slots=True)
class _Fill:
    """How full a stream is: the bytes that it holds, and those that are on their way, as they came. `waiting` are those
    of them whose writing has not begun."""

    budget: int | None
    held: int
    pending: int = 0
    waiting: int = 0

    @property
    def is_full(self) -> bool:
        return self.budget is not None and self.held + self.pending >= self.budget


@dataclass(slots=True)
class _Output:
    """Where rows go, in groups that are numbered in the order of their commits."""

    writer: UnitWriter
    segments: SyncedSegments
    groups: int = 0

    def next_number(self) -> int:
        self.groups += 1
        return self.groups

    def write(self, rows: pl.DataFrame, number: int) -> PUnit:
        unit = self.writer.write(f"in-{uuid.uuid4().hex}.arrow", rows, self.segments, number)
        self.segments.settle(unit.name)  # many rows are a file of their own
        return unit


@dataclass(slots=True)
class _LastCommit:
    """The watermark after it. It is `unsure` while it is unknown whether a commit was written."""

    watermark: int | None
    unsure: bool = False


class Appender:
    """The one writer of a stream that clients fill; made by `open_appender`. Safe to use from any thread."""

    def __init__(
        self,
        meta: MetaStore,
        stream: PStream,
        writer: UnitWriter,
        rules: BatchRules,
        *,
        budget: int | None,
        lease: Lease | None,
        clock: Callable[[], float],
        threads: Threads,
        announcements: Announcements,
    ) -> None:
        self._meta = meta
        self._streams = StreamMeta(meta)
        self.stream = stream
        self._output = _Output(writer, synced_segments(stream.store, budget, threads.condition()))
        self._rules = rules
        self._fill = _Fill(budget, stream.retained()[2])
        self._lease = lease
        self._clock = clock
        self._announcements = announcements
        self._last = _LastCommit(stream.state().watermark)
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
        # A batch that was handed in is taken, also when its client stops waiting: the answer cannot be cancelled.
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
                self._fill.pending += size
                self._fill.waiting += size
                self._waiting.append(ticket)
                if batch is not None:
                    self._flying[batch] = ticket
                if self._fill.waiting >= _SMALL:
                    # Here, and not later: another thread may take the batch along, and the pool end with it.
                    self._pool.submit(self._help)
                self._wake.notify_all()
        if first is not None:
            first.answer.add_done_callback(lambda answered: answer_again(ticket, answered))
        return ticket.answer

    def _answer_taken(self, ticket: Ticket) -> bool:
        """Answer a batch that was taken before: a full stream is no reason to leave its client in doubt."""
        known = self._streams.arrivals.taken(self.stream.name, [ticket.batch]) if ticket.batch is not None else {}
        for taken in known.values():
            ticket.answer.set_result(as_taken(taken))
        return bool(known)

    @property
    def is_full(self) -> bool:
        """Whether what is handed in has to wait until it is known how much the stream still holds."""
        return self._fill.is_full

    def pending_bytes(self) -> int:
        """How much was handed in and is not durable yet."""
        return self._fill.pending

    def position(self, client: str) -> int:
        """How far a client that counts has come."""
        return self._streams.arrivals.position(self.stream.name, client)

    def _check_budget(self) -> None:
        """Refuse what does not fit. What waits is counted as it came, before compression."""
        fill = self._fill
        if not fill.is_full:
            return
        self.stream.trim()
        fill.held = self.stream.retained()[2]
        if fill.is_full:
            raise StreamFullError(
                f"p-stream '{self.stream.name}' holds {fill.held:,} bytes and {fill.pending:,} more are on their way; "
                f"its budget is {fill.budget:,}",
                cure="try again when its readers have caught up; start them if they do not run, or raise the budget",
            )

    # threads' side

    def _help(self) -> None:
        """Write in parallel with the thread that commits."""
        with self._wake:
            group = self._next_group() if self._waiting else None
        if group is not None:
            self._fill_group(group)

    def _next_group(self) -> TicketGroup:
        """What waits longest, and with it the small batches that follow: one sync serves them all."""
        group = TicketGroup([self._waiting.popleft()], self._output.next_number())
        total = group.tickets[0].size
        while self._waiting and max(total, self._waiting[0].size) < _SMALL:
            group.tickets.append(self._waiting.popleft())
            total += group.tickets[-1].size
        self._fill.waiting -= total
        self._groups.append(group)
        return group

    def _fill_group(self, group: TicketGroup) -> None:
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
        ids = [ticket.batch for ticket in group.tickets if ticket.batch is not None]
        known = self._streams.arrivals.taken(self.stream.name, ids) if ids else {}
        frames, fresh = [], []
        for ticket in group.tickets:
            taken = known.get(ticket.batch) if ticket.batch is not None else None
            try:
                if taken is not None:
                    self._settle(ticket)
                    ticket.answer.set_result(as_taken(taken))
                    continue
                frame, group.greatest = self._rules.prepared(ticket.frame, group.greatest)
            except Exception as error:  # noqa: BLE001 - its client gets it, and the others are not held up
                self._fail([ticket], error)
                continue
            ticket.written = frame.height
            fresh.append(ticket)
            frames.append(frame)
        group.tickets = fresh
        rows = pl.concat(frames, how="diagonal") if frames else pl.DataFrame()
        if rows.height:
            group.unit = self._output.write(rows, group.number)

    def _settle(self, ticket: Ticket) -> None:
        """A batch is no longer on its way. To be called before its client gets the answer, and may send the next
        one."""
        with self._wake:
            self._fill.pending -= ticket.size
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
                self._wake.wait_for(lambda: self._groups[0].done if self._groups else self._waiting or self._closing)
                if not self._groups and not self._waiting:
                    return
                mine = None if self._groups else self._next_group()
            if mine is not None:
                self._fill_group(mine)
            with self._wake:
                ready: list[TicketGroup] = []
                while self._groups and self._groups[0].done:
                    ready.append(self._groups.popleft())
            groups = [group for group in ready if group.tickets]
            try:
                answers = self._commit(groups)
            except BaseException as error:  # noqa: BLE001 - the clients get it
                # If only the answer of the database was lost, the stream has come further than we know.
                self._last.unsure = True
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
        """Answer what was taken before, and write the rest of its p-units again. The first ones, which nothing refers
        to, go at the next start."""
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
        with self._meta.writing() as connection:
            if self._lease is not None:
                self._meta.fence(connection, self._lease)
            watermark = (
                self._streams.watermark(connection, self.stream.name) if self._last.unsure else self._last.watermark
            )
            new = []
            for group in groups:
                found, watermark = watermark, self._rules.watermark_after(watermark, group.greatest)
                new.append(entry_of(group, found, watermark))
            made = self.stream.write(connection, new)
        for group, entry in zip(groups, made, strict=True):
            answers += acks_of(group, entry)
        written = sum(entry.bytes for entry in made)
        self._announcements.appended(self.stream.name)
        with self._wake:  # not while somebody looks up what is held: this could be missing in what he finds
            self._fill.held = self.stream.retained()[2] if self._last.unsure else self._fill.held + written
        self._last = _LastCommit(watermark)
        return answers

    def _tidy(self) -> None:
        """Forget old batch ids and counts now and then. What fails here must not stop the commits: it is done the next
        time."""
        now = self._clock()
        if now - self._tidied < _HOUSEKEEPING_SECONDS:
            return
        self._tidied = now
        with contextlib.suppress(HoldfastError, SQLAlchemyError):
            self._streams.arrivals.forget(
                self.stream.name,
                batches_before=now - _REMEMBERED_SECONDS,
                clients_before=now - _COUNTS_REMEMBERED_SECONDS,
            )

    def close(self) -> None:
        """Take no more, finish what was handed in, and end the threads."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        self._committer.join()
        self._pool.shutdown()
        self._output.segments.close()


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
    compress: bool = True,
    clock: Callable[[], float] = time.time,
    threads: Threads = SYSTEM,
    announcements: Announcements | None = None,
) -> Appender:
    """Open a stream for writing. A stream has one writer: one that has lost the `lease` cannot commit. What is asked of
    its batches: see `BatchRules`. `compress=False` writes plain Arrow. `announcements` wake readers in this process."""
    log = PStream(meta, root, stream, sync=sync, clock=clock)
    log.declare(StreamDescription({name: str(dtype) for name, dtype in schema.items()}))
    log.sweep(meta.right(lease) if lease is not None else Private("the stream has no other writer"))
    rules = BatchRules(schema, event_time, lateness, prepare, marked)
    writer = UnitWriter(log.store, compress=compress)
    return Appender(
        meta, log, writer, rules, budget=budget, lease=lease, clock=clock, threads=threads,
        announcements=announcements or Announcements(threads),
    )  # fmt: skip
