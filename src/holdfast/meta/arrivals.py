"""What clients have sent to a p-stream: the ids of their batches, and how far those are that count their lines.

Both are written in the transaction of the rows they stand for, and looked at there, too: a commit whose answer was
lost, or is late, shows up when it likes, so that whoever looked before may have looked too early.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import sqlalchemy as sa

from holdfast.client_batches import Count, TakenBatch
from holdfast.errors import TakenBeforeError
from holdfast.meta.leases import Leases
from holdfast.meta.sql_tables import batches, clients

__all__ = ["Arrivals"]

# Statements of every batch are made once: making one takes longer than the database needs for it.
_of: sa.BindParameter[str] = sa.bindparam("of")
_TAKEN = sa.select(batches).where(batches.c.stream == _of, batches.c.batch.in_(sa.bindparam("ids", expanding=True)))
_POSITIONS = sa.select(clients).where(
    clients.c.stream == _of, clients.c.client.in_(sa.bindparam("names", expanding=True))
)
_NEW_BATCHES = batches.insert()
_NEW_CLIENT = clients.insert()
_MOVE_CLIENT = (
    clients.update()
    .where(clients.c.stream == _of, clients.c.client == sa.bindparam("who"))
    .values(position=sa.bindparam("behind"), taken_at=sa.bindparam("now"))
)


class Arrivals:
    """Methods with a `connection` are part of the transaction that appends, which holds the lock of the stream."""

    def __init__(self, meta: Leases) -> None:
        self._meta = meta

    def taken(self, stream: str, ids: Iterable[str]) -> dict[str, TakenBatch]:
        """Those of the batches that were taken before."""
        with self._meta.reading() as connection:
            return _taken(connection, stream, ids)

    def position(self, stream: str, client: str) -> int:
        """How far a client has come, in its own count."""
        with self._meta.reading() as connection:
            return _positions(connection, stream, [client]).get(client, 0)

    def refuse_taken(self, connection: sa.Connection, stream: str, ids: Sequence[str], counts: Sequence[Count]) -> None:
        """Fail if any of it was taken before."""
        taken = _taken(connection, stream, ids) if ids else {}
        at = _positions(connection, stream, {count.client for count in counts}) if counts else {}
        moved = []
        for count in counts:
            if at.get(count.client, 0) == count.before:
                at[count.client] = count.behind
            else:
                moved.append(count)
        if taken or moved:
            parts = [f"batch '{batch}'" for batch in taken]
            parts += [
                f"lines behind {c.before} of client '{c.client}', which is at {at.get(c.client, 0)}" for c in moved
            ]
            raise TakenBeforeError(
                f"already accepted by a delayed commit: {', '.join(parts)}",
                cure="connect again and continue from the count in the answer",
                batches=taken,
                counts=moved,
            )

    def remember(
        self,
        connection: sa.Connection,
        stream: str,
        taken: Mapping[str, TakenBatch],
        counts: Iterable[Count],
        now: float,
    ) -> None:
        """Write down what was taken."""
        rows = [
            {
                "stream": stream, "batch": batch, "number": place.number, "offset": place.offset, "rows": place.rows,
                "taken_at": now,
            }
            for batch, place in taken.items()
        ]  # fmt: skip
        if rows:
            connection.execute(_NEW_BATCHES, rows)
        for count in counts:
            values = {"of": stream, "who": count.client, "behind": count.behind, "now": now}
            if connection.execute(_MOVE_CLIENT, values).rowcount == 0:
                fresh = {"stream": stream, "client": count.client, "position": count.behind, "taken_at": now}
                connection.execute(_NEW_CLIENT, fresh)

    def forget(self, stream: str, *, batches_before: float, clients_before: float) -> None:
        """Forget batches that were taken before a time, and clients that have sent nothing since a time: what comes
        again after that is taken as new."""
        with self._meta.writing() as connection:
            for table, before in ((batches, batches_before), (clients, clients_before)):
                connection.execute(table.delete().where(table.c.stream == stream, table.c.taken_at < before))


def _taken(connection: sa.Connection, stream: str, ids: Iterable[str]) -> dict[str, TakenBatch]:
    rows = connection.execute(_TAKEN, {"of": stream, "ids": list(ids)})
    return {row.batch: TakenBatch(row.number, row.offset, row.rows) for row in rows}


def _positions(connection: sa.Connection, stream: str, names: Iterable[str]) -> dict[str, int]:
    rows = connection.execute(_POSITIONS, {"of": stream, "names": list(names)})
    return {row.client: row.position for row in rows}
