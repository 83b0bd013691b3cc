"""Sinks on the driver's side: deliver before the commit, publish after it, finish at the next start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import polars as pl

from holdfast.connect.base import DriverSink, TaskSink
from holdfast.epoch.messages import Message, decode_frame
from holdfast.epoch.record import EpochRecord
from holdfast.errors import HoldfastError, OperatorError
from holdfast.graph.nodes import SinkNode
from holdfast.plan.program import Program
from holdfast.pstream import PUnit
from holdfast.pstream.link import StreamSink
from holdfast.store import Right

__all__ = ["Delivery"]


class Delivery:
    """All sinks of a program."""

    def __init__(self, program: Program) -> None:
        self._sinks = program.sinks
        for node in self._sinks:
            try:
                node.sink.attach(program.name, node.name)
                node.sink.bind(node.schema)
            except HoldfastError as error:
                raise error.at(operator=node.name) from error.__cause__

    def before_commit(
        self, epoch: int, messages: list[Message], vector: Mapping[str, Any]
    ) -> list[tuple[SinkNode, pl.DataFrame]]:
        """Give rows to the sinks on the driver, with the vector they depend on; returns them for `after_commit`."""
        delivered = []
        for node in self._sinks:
            if isinstance(node.sink, DriverSink):
                mine = [m for m in messages if m.kind == "rows" and m.head["sink"] == node.name]
                mine.sort(key=lambda message: message.head["from"])
                if mine:
                    rows = pl.concat([decode_frame(message.blob) for message in mine])
                    with _at(node, epoch):
                        node.sink.deliver(epoch, rows, vector)
                    delivered.append((node, rows))
        return delivered

    def after_commit(self, epoch: int, delivered: list[tuple[SinkNode, pl.DataFrame]]) -> None:
        for node, rows in delivered:
            assert isinstance(node.sink, DriverSink)
            with _at(node, epoch):
                node.sink.after_commit(epoch, rows)

    def publish(self, epoch: int, record: EpochRecord) -> None:
        """Let readers see the epoch. Also called at the start, for a publish that was interrupted."""
        for node in self._sinks:
            if isinstance(node.sink, TaskSink) and record.receipts.get(node.name):
                with _at(node, epoch):
                    node.sink.publish(epoch, record.receipts[node.name])

    def discard(self, epoch: int, record: EpochRecord) -> None:
        """Remove what an attempt has prepared, because another one was committed."""
        for node in self._sinks:
            receipts = record.receipts.get(node.name, ())
            if isinstance(node.sink, StreamSink):
                node.sink.discard([PUnit.from_json(receipt["unit"]) for receipt in receipts])
            elif isinstance(node.sink, TaskSink) and receipts:
                with _at(node, epoch):
                    node.sink.discard(epoch, receipts)

    def check(self, committed: int) -> None:
        """Refuse output of another history of the pipeline."""
        for node in self._sinks:
            if isinstance(node.sink, TaskSink | DriverSink):
                try:
                    node.sink.check(committed)
                except HoldfastError as error:
                    raise error.at(operator=node.name) from error.__cause__

    def sweep(self, before_epoch: int, right: Right) -> None:
        """Remove what lost attempts have prepared. Only after the last commit was published."""
        for node in self._sinks:
            if isinstance(node.sink, TaskSink):
                right.check()
                node.sink.sweep(before_epoch)


@contextmanager
def _at(node: SinkNode, epoch: int) -> Iterator[None]:
    """Say which sink failed, in which epoch."""
    try:
        yield
    except HoldfastError as error:
        raise error.at(operator=node.name, epoch=epoch) from error.__cause__
    except Exception as error:
        raise OperatorError(
            f"the sink raised {type(error).__name__}: {error}",
            cure="mend the sink and start again; rows of an epoch that was not committed come again",
            operator=node.name,
            epoch=epoch,
        ) from error
