"""Streaming queries of Spark that write to a p-stream, each micro-batch once.

Tasks write p-units under names that no other attempt uses; when all have ended, the driver makes them one entry of the
stream, in a transaction that also notes how far the query is. A micro-batch that Spark runs again, because it was
killed before it had written that down, finds the note and leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from holdfast.connect.spark_types import from_spark_batch, polars_schema
from holdfast.errors import DeclarationError, HoldfastError, StreamFullError, TakenBeforeError, UnknownStreamError
from holdfast.meta import Count, MetaStore, StreamMeta
from holdfast.pstream import Lineage, PUnit, StreamUnit
from holdfast.pstream.description import StreamDescription
from holdfast.pstream.link import StreamSink
from holdfast.pstream.pstream import PStream, new_entry
from holdfast.store import make_directories

__all__ = ["PStreamWriter"]

_ROWS = 1_000_000
_QUERY = "sql.streaming.queryId"
_PATIENCE_SECONDS = 600.0
_PAUSE_SECONDS = 0.2


@dataclass
class _TaskUnits(WriterCommitMessage):
    """What a task has written, and for which query."""

    query: str
    task: int
    units: list[PUnit] = field(default_factory=list)


class PStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, store: Path, stream: str, meta: str | None, columns: StructType, budget: int | None) -> None:
        if "." in stream or "/" in stream:
            raise DeclarationError(
                f"'{stream}' is not the name of a p-stream that Spark can write to: those of pipelines have a dot",
                cure="give a plain name, e.g. 'events', and read it with hf.source.pstream('events', ...)",
            )
        self._store = store
        self._stream = stream
        self._meta = meta
        self._schema = polars_schema(columns, "writeStream")
        self._budget = budget

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty(_QUERY)
        assert query is not None, "Spark has not said which query it is"
        written = _TaskUnits(query, context.partitionId())
        frames: list[pl.DataFrame] = []
        rows = 0
        for batch in iterator:
            frame = from_spark_batch(batch, self._schema)
            frames, rows = [*frames, frame], rows + frame.height
            if rows >= _ROWS:
                self._write(written, frames)
                frames, rows = [], 0
        if rows:
            self._write(written, frames)
        return written

    def _write(self, written: _TaskUnits, frames: Sequence[pl.DataFrame]) -> None:
        part = f"{written.task}-{len(written.units)}"
        written.units += self._sink().write(pl.concat(frames), epoch=0, part=part, attempt=uuid.uuid4().hex)

    def _sink(self) -> StreamSink:
        return StreamSink(self._stream).bound(self._store.resolve(), sync=True)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        written = sorted((one for one in messages if isinstance(one, _TaskUnits)), key=lambda one: one.task)
        units = [unit for one in written for unit in one.units]
        if not units:
            return
        make_directories(self._store)
        meta = MetaStore(self._meta or self._store)
        try:
            log = self._declared(meta)
            self._wait_for_room(log)
            if not _append(meta, log, _client(written[0]), batchId, units):
                self._sink().discard(units)
        finally:
            meta.close()

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Spark also calls this if `commit` has failed, which may have gone through all the same: what an entry of the
        stream names stays, and so does all of it where that cannot be found out."""
        written = [one for one in messages if isinstance(one, _TaskUnits)]
        if not written or not self._store.exists():
            return
        try:
            meta = MetaStore(self._meta or self._store)
        except HoldfastError:
            return
        with contextlib.closing(meta), contextlib.suppress(HoldfastError):
            if StreamMeta(meta).arrivals.position(self._stream, _client(written[0])) <= batchId:
                self._sink().discard([unit for one in written for unit in one.units])

    def _declared(self, meta: MetaStore) -> PStream:
        """The stream, which must have the columns of the query."""
        log = PStream(meta, self._store.resolve(), self._stream)
        mine = {name: str(dtype) for name, dtype in self._schema.items()}
        known = StreamDescription.decode(log.declare(StreamDescription(mine)).description)
        if dict(known.schema) != mine:
            raise UnknownStreamError(
                f"p-stream '{self._stream}' has the columns {_shown(known.schema)}, the query {_shown(mine)}",
                cure="select the columns of the stream in their order and types, or write to another p-stream",
            )
        return log

    def _wait_for_room(self, log: PStream) -> None:
        """Hold the query back while the stream holds more than it may."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while self._budget is not None and (held := log.retained()[2]) >= self._budget:
            log.trim()
            if time.monotonic() > deadline:
                raise StreamFullError(
                    f"p-stream '{log.name}' has held {held:,} bytes for {_PATIENCE_SECONDS:.0f} s; its budget is"
                    f" {self._budget:,}",
                    cure="start the pipelines that read it, or give a larger budget; then start the query again",
                )
            time.sleep(_PAUSE_SECONDS)


def _client(written: _TaskUnits) -> str:
    """By what name a query counts its batches."""
    return f"spark {written.query}"


def _append(meta: MetaStore, log: PStream, client: str, batch: int, units: Sequence[PUnit]) -> bool:
    """Make the p-units an entry; False if the batch of this query is in the stream already."""
    while (at := StreamMeta(meta).arrivals.position(log.name, client)) <= batch:
        entry = new_entry(
            [StreamUnit.of(unit) for unit in units],
            after=None,
            ended=False,
            lineage=Lineage(by=client, epoch=batch),
            counts=(Count(client, at, batch + 1),),
        )
        try:
            with meta.writing() as connection:
                log.write(connection, [entry])
        except TakenBeforeError:
            continue  # another attempt was faster: look how far the query is now
        return True
    return False


def _shown(schema: object) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in dict(schema).items())  # type: ignore[call-overload]
