"""Output that is committed and that readers may not have yet: what each epoch has prepared for its sinks.

A row is written in the transaction that commits the epoch, and goes when the epoch is known to be published. So the
store knows what readers were given, whatever they have done with it since. Epochs are published in groups. Which epochs
are in a group is decided here, once, before any of it is shown: what a crash interrupts continues as the same group.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import sqlalchemy as sa

from holdfast.connect.base import Receipt
from holdfast.formats import STORE_VERSION
from holdfast.meta.sealed import SealedPlace
from holdfast.meta.sql_tables import epochs as _epochs
from holdfast.meta.sql_tables import outputs as _outputs

__all__ = ["Group", "OutputMeta", "unpublished_before_version_6"]

# Statements of every epoch are made once: making one takes longer than the database needs for it.
_MINE = _outputs.c.pipeline == sa.bindparam("of")
_OPEN = _MINE, _outputs.c.closed.is_(None)
_OPEN_OF = *_OPEN, _outputs.c.sink == sa.bindparam("its_sink")
_INSERT = _outputs.insert()
_GATHERED = sa.select(_outputs.c.sink, sa.func.sum(_outputs.c.bytes)).where(*_OPEN).group_by(_outputs.c.sink)
_LAST_OPEN = sa.select(sa.func.max(_outputs.c.epoch)).where(*_OPEN_OF)
_CLOSE = _outputs.update().where(*_OPEN_OF).values(closed=sa.bindparam("last"))
_GROUPS = (
    sa.select(_outputs)
    .where(_MINE, _outputs.c.closed.is_not(None))
    .order_by(_outputs.c.closed, _outputs.c.sink, _outputs.c.epoch)
)
_PUBLISHED = _outputs.delete().where(
    _MINE, _outputs.c.sink == sa.bindparam("its_sink"), _outputs.c.closed == sa.bindparam("group")
)


@dataclass(frozen=True, slots=True)
class Group:
    """Epochs of a sink that are published together, under the number of the last one."""

    sink: str
    epoch: int
    receipts: tuple[Receipt, ...]
    places: frozenset[str]
    """What the sink wrote to when they were committed, where that is known."""

    @property
    def name(self) -> tuple[str, int]:
        return self.sink, self.epoch


@dataclass(frozen=True, slots=True)
class OutputMeta:
    """The output of one pipeline, as part of transactions that others begin."""

    pipeline: str

    def gather(
        self, connection: sa.Connection, sink: str, epoch: int, place: str | None, receipts: Sequence[Receipt]
    ) -> int:
        """The epoch is committed, with what its tasks have prepared for a sink: so many bytes."""
        size = sum(int(receipt.get("bytes", 0)) for receipt in receipts)
        values = {
            "place": place,
            "receipts": self._place(sink, epoch).sealed(json.dumps(list(receipts))),
            "bytes": size,
        }
        connection.execute(_INSERT, {"pipeline": self.pipeline, "sink": sink, "epoch": epoch, **values})
        return size

    def gathered(self, connection: sa.Connection) -> dict[str, int]:
        """The bytes that wait in no group yet, of each sink that has any epoch waiting."""
        return {sink: int(size) for sink, size in connection.execute(_GATHERED, {"of": self.pipeline}).all()}

    def close(self, connection: sa.Connection, sink: str) -> None:
        """Make a group of all that waits in none."""
        mine = {"of": self.pipeline, "its_sink": sink}
        last = connection.execute(_LAST_OPEN, mine).scalar_one()
        connection.execute(_CLOSE, {**mine, "last": last})

    def groups(self, connection: sa.Connection) -> list[Group]:
        """What is to be published, or was and is not known to be, in its order."""
        found = []
        known = connection.execute(_GROUPS, {"of": self.pipeline}).all()
        for (epoch, sink), rows in groupby(known, lambda row: (row.closed, row.sink)):
            outputs = list(rows)
            opened = [json.loads(self._place(sink, row.epoch).opened(row.receipts, STORE_VERSION)) for row in outputs]
            receipts = tuple(receipt for some in opened for receipt in some)
            places = frozenset(row.place for row in outputs if row.place is not None)
            found.append(Group(sink, epoch, receipts, places))
        return found

    def published(self, connection: sa.Connection, groups: Iterable[Group]) -> None:
        """Readers were given these groups."""
        for group in groups:
            connection.execute(_PUBLISHED, {"of": self.pipeline, "its_sink": group.sink, "group": group.epoch})

    def _place(self, sink: str, epoch: int) -> SealedPlace:
        return SealedPlace(f"output for sink '{sink}'", self.pipeline, epoch)


def unpublished_before_version_6(connection: sa.Connection) -> None:
    """Older versions did not note what was published: the last commit of each pipeline may not have been. Its sinks
    find out."""
    _outputs.create(connection, checkfirst=True)
    last = sa.select(_epochs.c.pipeline, sa.func.max(_epochs.c.epoch).label("epoch"))
    last = last.where(_epochs.c.record.is_not(None)).group_by(_epochs.c.pipeline)
    for pipeline, epoch in connection.execute(last).all():
        record = sa.select(_epochs.c.record).where(_epochs.c.pipeline == pipeline, _epochs.c.epoch == epoch)
        for sink, receipts in json.loads(connection.execute(record).scalar_one())["receipts"].items():
            mine = [receipt for receipt in receipts if "unit" not in receipt]  # not of a p-stream
            if mine:
                OutputMeta(pipeline).gather(connection, sink, epoch, None, mine)
