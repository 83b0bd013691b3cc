"""The output of a task: rows for sinks and p-streams, kept until the task ends, and what they become then."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass, field

import polars as pl

from holdfast.connect.base import DriverSink, Receipt, TaskSink
from holdfast.epoch.digest import OutputDigest, combined, digest_of
from holdfast.epoch.messages import MOST_BLOB_ROWS, Message, RowsHead, encode_frame
from holdfast.epoch.task_commit import StreamReceipt
from holdfast.errors import HoldfastError, OperatorError
from holdfast.graph.nodes import SinkNode
from holdfast.hidden_columns import BOUND, visible
from holdfast.plan.program import Program
from holdfast.pstream.link import StreamSink
from holdfast.store import OpenSegments

__all__ = ["PreparedOutput"]

_FOR_GOOD = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}


@dataclass(slots=True)
class PreparedOutput:
    """Of one task. `receipts` and `streamed` are for its commit. P-units of p-streams go to `segments`, if there are
    some, which the caller syncs."""

    program: Program
    stage: int
    task: int
    epoch: int
    attempt: str
    segments: OpenSegments | None = None
    receipts: dict[str, tuple[Receipt, ...]] = field(default_factory=dict)
    streamed: dict[str, tuple[StreamReceipt, ...]] = field(default_factory=dict)
    _sinks: dict[str, list[pl.DataFrame]] = field(default_factory=dict)
    _streams: dict[tuple[str, int], list[pl.DataFrame]] = field(default_factory=dict)

    def add(self, node: SinkNode, rows: pl.DataFrame) -> None:
        self._sinks.setdefault(node.name, []).append(rows)

    def add_to_stream(self, node: SinkNode, rows: pl.LazyFrame, source: int) -> None:
        """Rows of different sources are kept apart: each has its own watermark. Those behind it keep their bound."""
        bounds = [BOUND] if BOUND in rows.collect_schema() else []
        made = rows.select(*node.schema.names(), *bounds).collect()
        if bounds and made[BOUND].null_count() == made.height:
            made = made.drop(BOUND)
        if made.height:
            self._streams.setdefault((node.name, source), []).append(made)

    def set_stream(self, name: str, source: int, rows: pl.DataFrame) -> None:
        self._streams[name, source] = [rows]

    def digests(self) -> dict[str, OutputDigest]:
        """Checksums of what goes out, by sink."""
        found: dict[str, OutputDigest] = {}
        frames = [(name, frame) for (name, _), frames in self._streams.items() for frame in frames]
        frames += [(name, frame) for name, kept in self._sinks.items() for frame in kept]
        for name, frame in frames:
            found[name] = combined(found.get(name), digest_of(frame.select(visible(frame.columns))))
        return found

    def deliver(self) -> Iterator[Message]:
        """Prepare task sinks and p-streams; rows of driver sinks become messages."""
        self._write_streams()
        for name, frames in self._sinks.items():
            node = self.program.nodes[name]
            assert isinstance(node, SinkNode)
            rows = pl.concat(frames)
            if not rows.height:
                continue
            if isinstance(node.sink, TaskSink):
                try:
                    receipt = node.sink.prepare(
                        rows, epoch=self.epoch, part=f"{self.stage}-{self.task}", attempt=self.attempt
                    )
                except HoldfastError as error:
                    raise error.at(operator=name, epoch=self.epoch) from error.__cause__
                except Exception as error:
                    raise _sink_failed(error, name, self.epoch) from error
                self.receipts[name] = (*self.receipts.get(name, ()), dict(receipt))
            else:
                assert isinstance(node.sink, DriverSink)
                for number, start in enumerate(range(0, rows.height, MOST_BLOB_ROWS)):
                    piece = rows.slice(start, MOST_BLOB_ROWS)
                    head = RowsHead(name, (self.stage, self.task, number), piece.height)
                    yield Message(0, head, encode_frame(piece))

    def _write_streams(self) -> None:
        for (name, source), frames in self._streams.items():
            node = self.program.nodes[name]
            assert isinstance(node, SinkNode)
            assert isinstance(node.sink, StreamSink)
            rows = pl.concat(frames, how="diagonal") if len(frames) > 1 else frames[0]
            try:
                part = f"{self.stage}-{self.task}-{max(source, 0)}"
                units = node.sink.write(rows, epoch=self.epoch, part=part, attempt=self.attempt, segments=self.segments)
            except HoldfastError as error:
                raise error.at(operator=name, epoch=self.epoch) from error.__cause__
            receipts = (
                StreamReceipt((self.stage, self.task, source, number), unit) for number, unit in enumerate(units)
            )
            self.streamed[name] = (*self.streamed.get(name, ()), *receipts)


def _sink_failed(error: Exception, sink: str, epoch: int) -> Exception:
    """What to raise for an error of a sink: Spark tries the task again if another try, or another machine, may help."""
    if isinstance(error, OSError) and error.errno not in _FOR_GOOD:
        return OSError(error.errno, f"sink '{sink}', epoch {epoch}: {error.strerror or error}")
    return OperatorError(
        f"the sink cannot write: {type(error).__name__}: {error}",
        cure="check that the directory exists and is writable, or fix the sink; the epoch was not committed and"
        " is run again at the next start",
        operator=sink,
        epoch=epoch,
    )
