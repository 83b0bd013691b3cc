"""Commands to running pipelines: asked by anybody, carried out and answered by the process that holds the lease."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from holdfast.errors import CommandGoneError
from holdfast.meta.leases import Lease
from holdfast.meta.sql_tables import commands
from holdfast.meta.store import MetaStore

__all__ = ["Command", "Commands"]

_KEPT_SECONDS = 86_400.0
"""How long an answer is kept: no caller waits longer for it."""

_WAITING = (
    sa.select(commands.c.number, commands.c.command)
    .where(commands.c.pipeline == sa.bindparam("of"), commands.c.answer.is_(None))
    .order_by(commands.c.number)
)


@dataclass(frozen=True, slots=True)
class Command:
    """What somebody asks a pipeline to do, as JSON text; what is in it is known above (`holdfast.plan`)."""

    number: int
    what: str


class Commands:
    """The commands of a store. A command is answered once, by a holder of the lease."""

    def __init__(self, meta: MetaStore) -> None:
        self._meta = meta

    def ask(self, pipeline: str, what: str, now: float) -> int:
        with self._meta.writing() as connection:
            return self.ask_in(connection, pipeline, what, now)

    def ask_in(self, connection: sa.Connection, pipeline: str, what: str, now: float) -> int:
        """Ask as part of a transaction."""
        made = connection.execute(commands.insert().values(pipeline=pipeline, command=what, asked_at=now))
        number = made.inserted_primary_key
        assert number is not None
        return int(number[0])

    def waiting(self, pipeline: str) -> list[Command]:
        """What was not answered yet, oldest first."""
        with self._meta.reading() as connection:
            return self.waiting_in(connection, pipeline)

    def waiting_in(self, connection: sa.Connection, pipeline: str) -> list[Command]:
        """The same, as a transaction sees it."""
        return [Command(row.number, row.command) for row in connection.execute(_WAITING, {"of": pipeline})]

    def answer(self, lease: Lease, number: int, answer: str, now: float) -> None:
        with self._meta.fenced(lease) as connection:
            self.answer_in(connection, number, answer, now)

    def answer_in(self, connection: sa.Connection, number: int, answer: str, now: float) -> None:
        """Answer in the transaction of what was done, which must not be done if the command is not there any more.
        Answers that nothing can be waiting for are discarded."""
        mine = (commands.c.number == number, commands.c.answer.is_(None))
        answered = connection.execute(commands.update().where(*mine).values(answer=answer, answered_at=now))
        if answered.rowcount != 1:
            raise CommandGoneError(
                f"command {number} was withdrawn or answered meanwhile", cure="check which commands are pending"
            )
        connection.execute(commands.delete().where(commands.c.answered_at < now - _KEPT_SECONDS))

    def withdraw(self, number: int) -> bool:
        """Take a command back; False if it was answered before."""
        with self._meta.writing() as connection:
            gone = connection.execute(commands.delete().where(commands.c.number == number, commands.c.answer.is_(None)))
            return gone.rowcount == 1

    def answered(self, number: int) -> str | None:
        query = sa.select(commands.c.answer).where(commands.c.number == number)
        with self._meta.reading() as connection:
            text: str | None = connection.execute(query).scalar_one_or_none()
        return text
