"""The graph of a pipeline with what each operator does now. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.dashboard.fleet_view import RECENT_SECONDS, SourceFigures, source_figures
from holdfast.dashboard.store_watch import Snapshot
from holdfast.graph.graph_layout import Drawing, lay_out
from holdfast.ui.stream_status import StreamStatus
from holdfast.watch.event_kinds import EpochsDone, KeyShare, PartitionShare, StreamWaiting
from holdfast.watch.pipeline_description import DescribedNode

__all__ = ["GraphView", "OperatorFigures", "StreamReader", "graph_of"]

_WAITING_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class StreamReader:
    """Who reads a p-stream, and how far behind its end that is."""

    reader: str
    behind: int


@dataclass(frozen=True, slots=True)
class OperatorFigures:
    """An operator as it was declared, and what it does. `busy` is the part of a CPU that its busiest partition uses;
    `waiting` says that it is held up by a p-stream that is full."""

    node: DescribedNode
    rows: float | None = None
    busy: float | None = None
    waiting: str = ""
    lag_rows: int | None = None
    lag_seconds: float | None = None
    event_delay: float | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    partitions: tuple[PartitionShare, ...] = ()
    hot: tuple[KeyShare, ...] = ()
    held_rows: int | None = None
    held_bytes: int | None = None
    readers: tuple[StreamReader, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphView:
    """The graph with a place for every operator."""

    drawing: Drawing
    operators: tuple[OperatorFigures, ...]


def graph_of(snapshot: Snapshot, pipeline: str) -> GraphView:
    """As the pipeline was declared at its last start; empty where nothing is known of that."""
    described = snapshot.descriptions.get(pipeline)
    nodes = () if described is None else described.nodes
    drawing = lay_out({node.name: node.inputs for node in nodes})
    epochs = snapshot.epochs(pipeline, RECENT_SECONDS)
    seconds = max(1.0, min(RECENT_SECONDS, snapshot.now - min((event.since for event in epochs), default=0.0)))
    sources = {(figures.fragment, figures.source): figures for figures in source_figures(snapshot, pipeline)}
    waits = {
        event.fragment: event.message
        for event in snapshot.since(snapshot.now - _WAITING_SECONDS)
        if isinstance(event, StreamWaiting)
    }
    made = []
    for node in nodes:
        own = [event for event in epochs if event.fragment == node.fragment]
        waiting = waits.get(node.fragment, "")
        match node.kind:
            case "source":
                made.append(_source(node, own, seconds, waiting, sources.get((node.fragment, node.name))))
            case "stateful":
                made.append(_stateful(snapshot, node, own, seconds, waiting))
            case "stream":
                made.append(_stream(node, own, seconds, waiting, snapshot.streams.get(node.stream)))
            case "sink":
                sinks = [other for other in nodes if other.kind == "sink" and other.fragment == node.fragment]
                rows = sum(event.output_rows for event in own) / seconds if len(sinks) == 1 else None
                made.append(OperatorFigures(node, rows=rows, waiting=waiting))
            case _:
                made.append(OperatorFigures(node, waiting=waiting))
    return GraphView(drawing, tuple(made))


def _source(
    node: DescribedNode, own: Sequence[EpochsDone], seconds: float, waiting: str, figures: SourceFigures | None
) -> OperatorFigures:
    if figures is None:
        return OperatorFigures(node, waiting=waiting)
    tasks = _summed([event.reading for event in own])
    return OperatorFigures(
        node, rows=figures.rows, busy=_busy(tasks, seconds), waiting=waiting, lag_rows=figures.lag_rows,
        lag_seconds=figures.lag_seconds, event_delay=figures.event_delay, partitions=tasks,
    )  # fmt: skip


def _stateful(
    snapshot: Snapshot, node: DescribedNode, own: Sequence[EpochsDone], seconds: float, waiting: str
) -> OperatorFigures:
    parts = _summed([event.work[node.name] for event in own if node.name in event.work])
    status = snapshot.statuses.get(node.fragment)
    state = None if status is None else status.state.get(node.name)
    return OperatorFigures(
        node,
        rows=sum(part.rows for part in parts) / seconds,
        busy=_busy(parts, seconds),
        waiting=waiting,
        state_rows=None if state is None else state.rows,
        state_bytes=None if state is None else state.bytes,
        partitions=parts,
        hot=next((event.hot[node.name] for event in reversed(own) if node.name in event.hot), ()),
    )


def _stream(
    node: DescribedNode, own: Sequence[EpochsDone], seconds: float, waiting: str, status: StreamStatus | None
) -> OperatorFigures:
    if status is None:
        return OperatorFigures(node, waiting=waiting)
    readers = tuple(
        StreamReader(marker.by, status.offset - marker.offset) for marker in status.markers if marker.is_of_reader
    )
    return OperatorFigures(
        node, rows=sum(event.streamed_rows for event in own) / seconds, waiting=waiting, held_rows=status.rows,
        held_bytes=status.bytes, readers=readers,
    )  # fmt: skip


def _busy(parts: Sequence[PartitionShare], seconds: float) -> float | None:
    return max((part.cpu / seconds for part in parts), default=None)


def _summed(works: Sequence[tuple[PartitionShare, ...]]) -> tuple[PartitionShare, ...]:
    if not works:
        return ()
    alike = [work for work in works if len(work) == len(works[-1])]
    return tuple(
        PartitionShare(sum(work[number].cpu for work in alike), sum(work[number].rows for work in alike))
        for number in range(len(works[-1]))
    )
