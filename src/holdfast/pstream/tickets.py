"""Batches on their way through the appender, and what their clients are answered."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import polars as pl

from holdfast.meta import Count, TakenBatch
from holdfast.pstream.punit import PUnit

__all__ = ["Ack", "Ticket", "TicketGroup", "answer_again", "as_taken"]


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
    """Batches that follow one another and are written as one p-unit. `done` is set when it is on disk."""

    tickets: list[Ticket]
    done: bool = False
    unit: PUnit | None = None
    greatest: int | None = None


def as_taken(taken: TakenBatch) -> Ack:
    return Ack(taken.number, taken.offset, taken.rows, True)


def answer_again(ticket: Ticket, answered: Future[Ack]) -> None:
    """The same batch was handed in while it was on its way: it has one fate."""
    error = answered.exception()
    if error is not None:
        ticket.answer.set_exception(error)
    else:
        ticket.answer.set_result(replace(answered.result(), duplicate=True, written=0))
