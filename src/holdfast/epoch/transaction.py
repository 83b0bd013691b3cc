"""The transaction of a commit: filled in from top to bottom, and committed once, or not at all.

It is open only for who holds the lease. What it writes: the record of the epoch, entries of p-streams, how far this
fragment has read those of others, and what sinks are to publish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import sqlalchemy as sa

from holdfast.connect.base import Receipt
from holdfast.epoch.record import EpochRecord
from holdfast.meta import Entry, Group, Lease, MetaStore, NewEntry, OutputMeta
from holdfast.pstream import PStream

__all__ = ["Transaction", "committing"]


class Transaction:
    """What one commit of a fragment writes."""

    def __init__(self, meta: MetaStore, connection: sa.Connection, lease: Lease, epoch: int = 0) -> None:
        self._meta = meta
        self._connection = connection
        self._lease = lease
        self.epoch = epoch
        self._outputs = OutputMeta(lease.pipeline)

    def record(
        self,
        record: EpochRecord,
        now: float,
        *,
        keep_from: int = 0,
        inherit: Callable[[int, EpochRecord], EpochRecord] | None = None,
    ) -> bool:
        """The record of the epoch; commits before `keep_from` are forgotten. `inherit` gives the record that takes over
        something from the epoch before, by the number and the record of that one, as it is now. False if the epoch was
        committed before: then nothing is written."""

        def inherited(epoch: int, text: str) -> str:
            assert inherit is not None
            return inherit(epoch, EpochRecord.decode(text)).encode()

        return self._meta.write_commit(
            self._connection, self._lease, self.epoch, record.encode(), now,
            keep_from=keep_from, inherit=None if inherit is None else inherited,
        )  # fmt: skip

    def record_again(self, record: EpochRecord, *, keep_from: int = 0) -> None:
        """Another record for an epoch that is committed, e.g. because its state was made again."""
        self._meta.rewrite_commit(self._connection, self._lease, self.epoch, record.encode(), keep_from=keep_from)

    def append(self, stream: PStream, entry: NewEntry) -> Entry:
        """An entry of a p-stream that this fragment writes."""
        [made] = stream.write(self._connection, [entry])
        return made

    def release(self, stream: PStream, reader: str, number: int, offset: int) -> None:
        """A reader needs nothing of a p-stream before this place."""
        stream.checkpoint(self._connection, reader, number, offset, self.epoch)

    def gather(self, sink: str, place: str | None, prepared: Sequence[Receipt]) -> None:
        """What the epoch has prepared for a sink; it is published with the next group that is closed."""
        self._outputs.gather(self._connection, sink, self.epoch, place, prepared)

    def gathered(self) -> dict[str, int]:
        """The bytes that wait for publication, by sink."""
        return self._outputs.gathered(self._connection)

    def close_group(self, sink: str) -> None:
        """What a sink has gathered may be published."""
        self._outputs.close(self._connection, sink)

    def published(self, groups: Iterable[Group]) -> None:
        """What readers see by now."""
        self._outputs.published(self._connection, groups)


@contextmanager
def committing(meta: MetaStore, lease: Lease, epoch: int | None = None) -> Iterator[Transaction]:
    """A transaction of the fragment, for an epoch or beside them. Fails if another run has the lease by now."""
    with meta.fenced(lease, epoch) as connection:
        yield Transaction(meta, connection, lease, epoch or 0)
