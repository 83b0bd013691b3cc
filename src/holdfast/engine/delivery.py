"""Sinks on the driver's side: check before the first job, deliver before the commit, publish after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import polars as pl

from holdfast.connect.base import DriverSink, Owner, Position, Receipt, TaskSink
from holdfast.engine.publication import Publication
from holdfast.engine.sink_calls import SinkCalls
from holdfast.epoch.deadline import Deadlines
from holdfast.epoch.messages import Message, rows_for
from holdfast.epoch.record import EpochRecord
from holdfast.epoch.record_change import records_of
from holdfast.graph.nodes import SinkNode
from holdfast.meta import MetaStore
from holdfast.plan.program import Program
from holdfast.pstream.link import StreamSink
from holdfast.store import Private

__all__ = ["SinkDelivery"]

_SUPERSEDED = Private("an attempt of this process made it under names of its own, and another one was committed")


class SinkDelivery:
    """All sinks of a program."""

    def __init__(self, program: Program, meta: MetaStore, clock: Callable[[], float], deadlines: Deadlines) -> None:
        self._program = program
        self._meta = meta
        self._sinks = program.sinks
        self._calls = SinkCalls(deadlines)
        self.publication = Publication(program.name, self._sinks, meta, clock, self._calls)
        store = meta.identity()
        for node in self._sinks:
            self._calls.call(node, None, "to open", node.sink.attach, Owner(store, program.name, node.name))
            self._calls.call(node, None, "to open", node.sink.bind, node.schema)

    def check(self) -> None:
        """Refuse sinks that cannot be written to, or that hold the output of others."""
        committed = self._meta.last_epoch(self._program.name)
        for node in self._sinks:
            look = "to look at what is there"
            if isinstance(node.sink, TaskSink):
                self._calls.call(node, None, look, node.sink.check, committed, self._retained(node.name))
            elif isinstance(node.sink, DriverSink):
                self._calls.call(node, None, look, node.sink.check, committed)

    def _retained(self, sink: str) -> dict[int, list[Receipt]]:
        """What the store still knows of the output of a sink."""
        commits = self._meta.commits(self._program.name)
        return {epoch: list(record.receipts.get(sink, ())) for epoch, record in records_of(commits).items()}

    def before_commit(
        self, epoch: int, messages: list[Message], vector: Mapping[str, Position]
    ) -> list[tuple[SinkNode, pl.DataFrame]]:
        """Give rows to the sinks on the driver, with the vector they depend on; returns them for `after_commit`."""
        delivered = []
        for node in self._sinks:
            if isinstance(node.sink, DriverSink) and (frames := rows_for(messages, node.name)):
                rows = pl.concat(frames)
                self._calls.call(node, epoch, "to deliver", node.sink.deliver, epoch, rows, vector)
                delivered.append((node, rows))
        return delivered

    def after_commit(self, epoch: int, delivered: list[tuple[SinkNode, pl.DataFrame]]) -> None:
        for node, rows in delivered:
            assert isinstance(node.sink, DriverSink)
            if type(node.sink).after_commit is not DriverSink.after_commit:  # a call that does nothing costs as much
                self._calls.call(node, epoch, "to show the epoch", node.sink.after_commit, epoch, rows)

    @property
    def before_commits(self) -> bool:
        """Whether a sink gets the rows of an epoch before it is committed."""
        return any(isinstance(node.sink, DriverSink) for node in self._sinks)

    def delivered(self, epoch: int) -> str | None:
        """A sink that has rows of this epoch for good, if there is one."""
        for node in self._sinks:
            if isinstance(node.sink, DriverSink):
                last = self._calls.call(node, epoch, "what it has", node.sink.delivered)
                if last is not None and last >= epoch:
                    return node.name
        return None

    def discard(self, epoch: int, record: EpochRecord) -> None:
        """Remove what an attempt has prepared, because another one was committed."""
        for node in self._sinks:
            receipts = record.receipts.get(node.name, ())
            if isinstance(node.sink, StreamSink):
                node.sink.discard([receipt.unit for receipt in record.streamed.get(node.name, ())])
            elif isinstance(node.sink, TaskSink) and receipts:
                self._calls.call(node, epoch, "to discard", node.sink.discard, epoch, receipts, _SUPERSEDED)
