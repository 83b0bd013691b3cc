"""Batches on their way through the appender, and what their clients are answered."""

from __future__ import annotations

import itertools
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import polars as pl

from holdfast.meta import Count, Entry, NewEntry, TakenBatch
from holdfast.pstream.pstream import new_entry
from holdfast.pstream.punit import PUnit
from holdfast.pstream.stream_entry import Lineage, StreamUnit

__all__ = ["Ack", "Ticket", "TicketGroup", "acks_of", "answer_again", "as_taken", "entry_of"]


@dataclass(frozen=True, slots=True)
class Ack:
    """A batch is durable, in the `number`-th entry of the stream, after `offset` rows. `rows` were sent and `written`
    of them are in the stream: operators that come first may have left some out. `duplicate` says that the batch was
    taken before, and nothing was written now."""

    number: int
    offset: int
    rows: int
    duplicate: bool = False
    written: int = 0


@dataclass(slots=True, eq=False)
class Ticket:
    """A batch on its way, and what is left of it to be written."""

    frame: pl.DataFrame
    batch: str | None
    count: Count | None
    size: int
    rows: int
    written: int = 0
    answer: Future[Ack] = field(default_factory=Future)


@dataclass(slots=True)
class TicketGroup:
    """Batches that follow one another and are written as one p-unit. `number` counts the groups of an appender; `done`
    is set when the group is on disk."""

    tickets: list[Ticket]
    number: int
    done: bool = False
    unit: PUnit | None = None
    greatest: int | None = None

    def starts(self) -> list[tuple[Ticket, int]]:
        """The batches, each with how many rows of the group are before it."""
        before = itertools.accumulate((ticket.written for ticket in self.tickets), initial=0)
        return list(zip(self.tickets, before, strict=False))


def entry_of(group: TicketGroup, before: int | None, after: int | None) -> NewEntry:
    """The entry that a group becomes; it has found the watermark `before`, and brings it to `after`."""
    return new_entry(
        [StreamUnit.of(group.unit, before)] if group.unit is not None else [],
        after=after,
        ended=False,
        lineage=Lineage(batches=tuple(ticket.batch for ticket in group.tickets)),
        batches=tuple((one.batch, start, one.rows) for one, start in group.starts() if one.batch is not None),
        counts=tuple(ticket.count for ticket in group.tickets if ticket.count is not None),
    )


def acks_of(group: TicketGroup, entry: Entry) -> list[tuple[Ticket, Ack]]:
    """What to answer, once the entry is committed."""
    return [
        (ticket, Ack(entry.number, entry.offset + start, ticket.rows, written=ticket.written))
        for ticket, start in group.starts()
    ]


def as_taken(taken: TakenBatch) -> Ack:
    return Ack(taken.number, taken.offset, taken.rows, True)


def answer_again(ticket: Ticket, answered: Future[Ack]) -> None:
    """The same batch was handed in while it was on its way: it has one fate."""
    error = answered.exception()
    if error is not None:
        ticket.answer.set_exception(error)
    else:
        ticket.answer.set_result(replace(answered.result(), duplicate=True, written=0))
