"""The transaction of a fragment: filled in from top to bottom, and committed once, or not at all.

Only the holder of the lease can open it. A plan is written with the answers to the commands that it carries out; a
commit with the record of the epoch, entries of p-streams, how far this fragment has read the p-streams of others, and
what sinks have to publish; a start writes what the pipeline looks like now, and the outcome of repairs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import sqlalchemy as sa

from holdfast.connect.base import Receipt
from holdfast.epoch.plan import EpochPlan
from holdfast.epoch.record import EpochRecord
from holdfast.epoch.record_change import RecordChain, RecordText, record_of
from holdfast.epoch.repair_messages import RepairOutcome
from holdfast.meta import (
    Command,
    Commands,
    Commit,
    Entry,
    Group,
    Lease,
    MetaStore,
    NewEntry,
    OutputMeta,
    Repairs,
)
from holdfast.plan.scale_command import ScaleAnswer, ScaleCommand
from holdfast.pstream.pstream import PStream
from holdfast.state.pipeline_shape import PipelineShape

__all__ = ["Transaction", "committing"]


class Transaction:
    """What is written together."""

    def __init__(self, meta: MetaStore, connection: sa.Connection, lease: Lease, epoch: int = 0) -> None:
        self._meta = meta
        self._connection = connection
        self._lease = lease
        self.epoch = epoch
        self._outputs = OutputMeta(lease.pipeline)

    # a plan

    def plan(self, plan: EpochPlan, now: float, epoch: int | None = None) -> tuple[EpochPlan, bool]:
        """Fix the input of an epoch, by default that of the transaction. The first plan wins: it is returned, whoever
        wrote it, and whether it is this one."""
        epoch = epoch or self.epoch
        known, generation = self._meta.planning(self._connection, self._lease.pipeline, epoch)
        if known:
            found = self._meta.find(self._connection, self._lease.pipeline, epoch)
            assert found is not None
            return EpochPlan.decode(found.plan), False
        text = replace(plan, generation=generation).encode()
        self._meta.write_plan(self._connection, self._lease, epoch, text, now)
        return EpochPlan.decode(text), True

    def waiting(self) -> list[Command]:
        """The commands that have not been obeyed yet, oldest first."""
        return Commands(self._meta).waiting_in(self._connection, self._lease.pipeline)

    def answer(self, command: int, answer: ScaleAnswer, now: float) -> None:
        """What a command has led to. If it was taken back meanwhile, the transaction fails."""
        Commands(self._meta).answer_in(self._connection, command, answer.encode(), now)

    # a commit

    def record(
        self, record: EpochRecord, now: float, *, chain: RecordChain | None = None, forget: Collection[int] = ()
    ) -> RecordText | None:
        """The record of the epoch, as what it changes in the last one of a chain, or whole; some commits are forgotten.
        Returns what was written, to be given to the chain when the transaction is committed. None if the epoch was
        committed before: then nothing is written."""
        text = RecordText(record.encode()) if chain is None else chain.text(self.epoch, record, now)
        done = self._meta.write_commit(
            self._connection, self._lease, self.epoch, text.text, now,
            generation=record.generation, whole=text.whole, forget=forget,
        )  # fmt: skip
        return text if done else None

    def last_record(self) -> tuple[int, EpochRecord] | None:
        """The last epoch that is committed, and its record, as it is now."""
        last = self._meta.find_last(self._connection, self._lease.pipeline)
        return None if last is None else (last.epoch, record_of(last))

    def is_last(self) -> bool:
        """Whether nothing is committed after the epoch."""
        return self._meta.last_committed(self._connection, self._lease.pipeline) == self.epoch

    def record_again(self, record: EpochRecord, *, forget: Collection[int] = ()) -> None:
        """Another record for an epoch that is committed, e.g. because its state was made again; some commits are
        forgotten. If the record of the next epoch is a change of the one before, it is written whole."""
        following = self._meta.find(self._connection, self._lease.pipeline, self.epoch + 1)
        if isinstance(following, Commit) and following.since:
            text = record_of(following).encode()
            self._meta.rewrite_commit(self._connection, self._lease, following.epoch, text)
        self._meta.rewrite_commit(self._connection, self._lease, self.epoch, record.encode())
        self._meta.forget_commits(self._connection, self._lease, forget)

    def append(self, stream: PStream, entry: NewEntry) -> Entry:
        """An entry of a p-stream that this fragment writes."""
        [made] = stream.write(self._connection, [entry])
        return made

    def release(self, stream: PStream, reader: str, number: int, offset: int) -> None:
        """A reader needs nothing of a p-stream before this place."""
        stream.checkpoint(self._connection, reader, number, offset, self.epoch)

    def gather(self, sink: str, place: str | None, prepared: Sequence[Receipt]) -> int:
        """What the epoch has prepared for a sink; it is published with the next group that is closed. How many bytes it
        is."""
        return self._outputs.gather(self._connection, sink, self.epoch, place, prepared)

    def gathered(self) -> dict[str, int]:
        """The bytes that wait for publication, by sink."""
        return self._outputs.gathered(self._connection)

    def close_group(self, sink: str) -> None:
        """What a sink has gathered may be published."""
        self._outputs.close(self._connection, sink)

    def published(self, groups: Iterable[Group]) -> None:
        """What readers see by now."""
        self._outputs.published(self._connection, groups)

    # a start

    def shape(self, shape: PipelineShape) -> None:
        """What the pipeline looks like from now on."""
        self._meta.write_shape(self._connection, self._lease, shape.encode())

    def rename(self, sources: Mapping[str, str], operators: Mapping[str, str]) -> None:
        """Sources and operators have new names, in all plans and records."""
        for known in self._meta.find_all(self._connection, self._lease.pipeline):
            fresh = replace(known, plan=EpochPlan.decode(known.plan).renamed(sources, operators).encode())
            if isinstance(fresh, Commit):
                fresh = replace(fresh, record=record_of(fresh).renamed(sources, operators).encode(), since=())
            self._meta.rewrite(self._connection, self._lease, fresh)

    def ask(self, command: ScaleCommand, now: float) -> None:
        """What the next plan is to obey."""
        Commands(self._meta).ask_in(self._connection, self._lease.pipeline, command.encode(), now)

    def repaired(self, repair: int, outcome: RepairOutcome, now: float) -> None:
        """What came of a repair. What is planned from now on is of a new generation."""
        Repairs(self._meta).carried_out_in(self._connection, repair, outcome.encode(), now)

    def forget_plans(self, epochs: Collection[int]) -> None:
        """Forget what was planned. If one of the epochs was committed meanwhile, the transaction fails."""
        self._meta.forget_plans(self._connection, self._lease, epochs)


@contextmanager
def committing(
    meta: MetaStore, lease: Lease, epoch: int | None = None, *, synced: bool = True
) -> Iterator[Transaction]:
    """A transaction of the fragment, for an epoch or for none. Fails if another run has the lease by now. One that is
    not `synced` may be lost with the power of the machine, but not with the process."""
    with meta.fenced(lease, epoch, synced=synced) as connection:
        yield Transaction(meta, connection, lease, epoch or 0)
