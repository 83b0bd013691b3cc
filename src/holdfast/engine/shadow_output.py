"""The output of a shadow: new code of a pipeline that runs every epoch alongside the old one, invisibly.

Sinks are replaced by files of the shadow's own, p-streams by p-streams in a directory of its own. They are there until
the epoch was compared with what was committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import polars as pl

from holdfast.connect.base import Receipt, TaskSink
from holdfast.epoch.record import EpochRecord
from holdfast.graph.nodes import Node, SinkNode
from holdfast.hidden_columns import visible
from holdfast.plan.program import Program
from holdfast.pstream import stream_store
from holdfast.pstream.link import StreamSink
from holdfast.pstream.units import read_unit
from holdfast.store import Right, Tiers
from holdfast.store.removal import remove_files

__all__ = ["ShadowWatch", "WithheldSink", "withheld", "withheld_output", "withheld_rows"]


class ShadowWatch(Protocol):
    """Who compares what a shadow has made with what was committed."""

    def compared(self, epoch: int, committed: EpochRecord, own: EpochRecord, program: Program, tiers: Tiers) -> None:
        """Both records of an epoch, with the shadow's program and where the state of both lies. What it has put out is
        there until this returns."""


@dataclass(slots=True)
class WithheldSink(TaskSink):
    """Keeps rows in files that are never published."""

    directory: Path
    guarantee = "nothing: its rows are compared and removed"

    def prepare(self, rows: pl.DataFrame, *, epoch: int, part: str, attempt: str) -> Receipt:
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"{epoch:012d}-{part}-{attempt}.arrow"
        rows.write_ipc(path)
        return {"file": path.name, "rows": rows.height}

    def publish(self, epoch: int, receipts: Sequence[Receipt]) -> None:
        """Nothing is."""

    def seen(self, epoch: int, receipts: Sequence[Receipt], schema: pl.Schema) -> pl.DataFrame | None:
        frames = [pl.read_ipc(self.directory / receipt["file"]) for receipt in receipts]
        return pl.concat(frames) if frames else pl.DataFrame(schema=schema)

    def discard(self, epoch: int, receipts: Sequence[Receipt], right: Right) -> None:
        remove_files((self.directory / receipt["file"] for receipt in receipts), right)

    def sweep(self, before_epoch: int, right: Right) -> None:
        """A shadow never takes over a store."""


def withheld_output(home: Path) -> Path:
    """Where the shadow of a fragment puts what it withholds; workers on all machines see it."""
    return home / "shadow"


def withheld(program: Program, directory: Path) -> Program:
    """The program with sinks that nothing reads. P-streams are written as always, to a directory: which rows carry
    bounds depends on them."""
    nodes: dict[str, Node] = {}
    for name, node in program.nodes.items():
        if isinstance(node, SinkNode):
            streams = isinstance(node.sink, StreamSink)
            sink = node.sink.bound(directory, False) if streams else WithheldSink(directory / name)  # type: ignore[attr-defined]
            node = replace(node, sink=sink)
        nodes[name] = node
    return replace(program, nodes=nodes)


def withheld_rows(program: Program, own: EpochRecord, sink: str, epoch: int) -> pl.DataFrame:
    """What a shadow would have emitted."""
    node = program.nodes[sink]
    assert isinstance(node, SinkNode)
    if isinstance(node.sink, WithheldSink):
        found = node.sink.seen(epoch, own.receipts.get(sink, ()), node.schema)
        assert found is not None
        return _plain(found)
    assert isinstance(node.sink, StreamSink)
    assert node.sink.root is not None
    store = stream_store(node.sink.root, node.sink.stream)
    units = [receipt.unit for receipt in sorted(own.streamed.get(sink, ()), key=lambda receipt: receipt.sender)]
    names = node.schema.names()
    frames = [read_unit(store, unit).select(names) for unit in units]
    return _plain(pl.concat(frames) if frames else pl.DataFrame(schema=node.schema))


def _plain(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select(visible(rows.columns))
