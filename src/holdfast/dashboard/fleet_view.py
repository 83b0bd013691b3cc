"""The fleet: a line for each pipeline of a store, with the figures of its last seconds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from holdfast.dashboard.guarantee_view import GuaranteeVerdict, verdict_of
from holdfast.dashboard.store_watch import Snapshot
from holdfast.graph.durations import ticks
from holdfast.replica.prediction import Prices, recovery_cost
from holdfast.watch.event_kinds import EpochsDone, ErrorSeen, PartitionShare, RunStarted
from holdfast.watch.pipeline_description import DescribedPipeline

__all__ = ["FleetRow", "LastError", "RecentFigures", "SourceFigures", "fleet", "recent_figures", "source_figures"]

RECENT_SECONDS = 10.0
_SPARK_SECONDS = 60


@dataclass(frozen=True, slots=True)
class LastError:
    """The last thing that went wrong; `over` where the pipeline has run on since."""

    at: float
    text: str
    over: bool


@dataclass(frozen=True, slots=True)
class RecentFigures:
    """Of the last ten seconds: rows per second in and out, seconds of an epoch, epochs and CPUs per second."""

    rows: float = 0.0
    output_rows: float = 0.0
    epochs: float = 0.0
    p50: float | None = None
    p99: float | None = None
    cpus: float = 0.0
    written_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class SourceFigures:
    """A source: rows that wait, how long it takes to read them at the present rate, and by how much its event time is
    behind the clock."""

    source: str
    fragment: str
    rows: float
    lag_rows: int | None
    lag_seconds: float | None
    event_delay: float | None


@dataclass(frozen=True, slots=True)
class FleetRow:
    """A pipeline as it is now."""

    pipeline: str
    state: str
    fragments: tuple[str, ...]
    epoch: int
    committed_at: float | None
    started_at: float | None
    recent: RecentFigures
    lag_rows: int | None
    lag_seconds: float | None
    rows_in: int
    """Rows from outside, in all: what the fragments with sources of their own have read."""
    totals: Mapping[str, int]
    state_rows: int
    state_bytes: int
    guarantee: GuaranteeVerdict
    error: LastError | None
    cost_per_hour: float
    hosts: tuple[str, ...]
    spark: tuple[float, ...]


def fleet(snapshot: Snapshot) -> list[FleetRow]:
    """Every pipeline, those that run first."""
    rows = [_row(snapshot, name, parts) for name, parts in snapshot.pipelines.items()]
    return sorted(rows, key=lambda row: (row.state not in ("running", "failed"), row.pipeline))


def _row(snapshot: Snapshot, pipeline: str, parts: Sequence[str]) -> FleetRow:
    statuses = [snapshot.statuses[part] for part in parts if part in snapshot.statuses]
    sources = source_figures(snapshot, pipeline)
    lags = [source.lag_rows for source in sources if source.lag_rows is not None]
    waits = [source.lag_seconds for source in sources if source.lag_seconds is not None]
    started = next((event.at for event in snapshot.of(pipeline, ("started",)) if isinstance(event, RunStarted)), None)
    totals: dict[str, int] = {}
    for status in statuses:
        for name, count in status.totals.items():
            totals[name] = totals.get(name, 0) + count
    error = _error(snapshot, pipeline, max((status.committed_at or 0.0 for status in statuses), default=0.0))
    recent = recent_figures(snapshot.epochs(pipeline, RECENT_SECONDS), snapshot.now)
    running = any(status.running for status in statuses)
    finished = bool(statuses) and all(status.finished for status in statuses)
    return FleetRow(
        pipeline=pipeline,
        state="running" if running else "failed" if error and not error.over else "finished" if finished else "stopped",
        fragments=tuple(parts),
        epoch=max((status.epoch for status in statuses), default=0),
        committed_at=max((status.committed_at for status in statuses if status.committed_at), default=None),
        started_at=started,
        recent=recent,
        lag_rows=sum(lags) if lags else None,
        lag_seconds=max(waits) if waits else None,
        rows_in=_rows_in(snapshot, pipeline, parts),
        totals=totals,
        state_rows=sum(state.rows for status in statuses for state in status.state.values()),
        state_bytes=sum(state.bytes for status in statuses for state in status.state.values()),
        guarantee=verdict_of(snapshot, pipeline),
        error=error,
        cost_per_hour=_cost(snapshot, parts, recent) if running else 0.0,
        hosts=tuple(sorted({host for part in parts if part in snapshot.agreed for host in _hosts(snapshot, part)})),
        spark=_spark(snapshot.epochs(pipeline, _SPARK_SECONDS), snapshot.now),
    )


def _rows_in(snapshot: Snapshot, pipeline: str, parts: Sequence[str]) -> int:
    described = snapshot.descriptions.get(pipeline)
    reading = set(parts)
    if described is not None:
        reading = {node.fragment for node in described.nodes if node.kind == "source"}
    return sum(snapshot.statuses[part].totals.get("read", 0) for part in reading if part in snapshot.statuses)


def _hosts(snapshot: Snapshot, fragment: str) -> Iterable[str]:
    return snapshot.agreed[fragment].seats.members


def _error(snapshot: Snapshot, pipeline: str, committed: float) -> LastError | None:
    for event in snapshot.of(pipeline, ("error",)):
        if isinstance(event, ErrorSeen):
            return LastError(event.at, event.message, over=committed > event.at)
    return None


def _cost(snapshot: Snapshot, parts: Sequence[str], recent: RecentFigures) -> float:
    """The CPUs of the tasks, and what secondaries cost."""
    money = recent.cpus * Prices().cpu_hour
    for part in parts:
        agreed = snapshot.agreed.get(part)
        if agreed is not None and agreed.notes.metrics is not None:
            money += recovery_cost(agreed.seats.scheme, agreed.notes.metrics, Prices()).money
    return money


def recent_figures(epochs: Sequence[EpochsDone], now: float) -> RecentFigures:
    """Sums as rates; a run that has just begun is not made slower by the time before it."""
    if not epochs:
        return RecentFigures()
    began = max(now - RECENT_SECONDS, min(event.since for event in epochs))
    seconds = max(1.0, now - began)
    entered = sum(event.entered for event in epochs) or sum(event.rows for event in epochs)
    cpu = sum(share.cpu for event in epochs for share in _shares(event))
    last = {event.fragment: event for event in epochs}.values()
    return RecentFigures(
        rows=entered / seconds,
        output_rows=sum(event.output_rows for event in epochs) / seconds,
        epochs=sum(event.count for event in epochs) / seconds,
        p50=sum(event.p50 for event in last),
        p99=max(event.p99 for event in epochs),
        cpus=cpu / seconds,
        written_bytes=sum(event.written_bytes for event in epochs) / seconds,
    )


def _shares(event: EpochsDone) -> Iterator[PartitionShare]:
    yield from event.reading
    for shares in event.work.values():
        yield from shares


def _spark(epochs: Sequence[EpochsDone], now: float) -> tuple[float, ...]:
    """Rows of each of the last seconds."""
    outside = any(event.entered for event in epochs)
    buckets = [0.0] * (_SPARK_SECONDS // 2)
    for event in epochs:
        place = int((event.at - (now - _SPARK_SECONDS)) / 2)
        if 0 <= place < len(buckets):
            buckets[place] += (event.entered if outside else event.rows) / 2
    return tuple(buckets)


def source_figures(snapshot: Snapshot, pipeline: str) -> list[SourceFigures]:
    """The sources of a pipeline, those that read p-streams among them."""
    described = snapshot.descriptions.get(pipeline)
    epochs = snapshot.epochs(pipeline, RECENT_SECONDS)
    read: dict[tuple[str, str], int] = {}
    for event in epochs:
        for source, rows in event.read.items():
            read[event.fragment, source] = read.get((event.fragment, source), 0) + rows
    found = []
    latest = {event.fragment: event for event in snapshot.epochs(pipeline, 3600.0)}
    for fragment, last in latest.items():
        for source in last.read:
            seconds = max(1.0, min(RECENT_SECONDS, snapshot.now - min(event.since for event in epochs or [last])))
            rate, lag = read.get((fragment, source), 0) / seconds, last.lag.get(source)
            found.append(
                SourceFigures(
                    source, fragment, rate, lag,
                    None if lag is None else 0.0 if lag == 0 else lag / rate if rate else None,
                    _delay(last.greatest.get(source), _unit(described, source), snapshot.now),
                )
            )  # fmt: skip
    return found


def _unit(described: DescribedPipeline | None, source: str) -> str:
    """The unit of a source's event time; a p-stream has that of the sources before it."""
    units = {node.name: node.unit for node in described.nodes} if described is not None else {}
    return units.get(source) or next((unit for unit in units.values() if unit), "")


def _delay(greatest: int | None, unit: str, now: float) -> float | None:
    """By how much event time is behind the clock, where it counts from 1970."""
    if greatest is None or unit not in ("s", "ms", "us", "ns"):
        return None
    seconds = greatest / ticks("1s", unit)  # type: ignore[arg-type]
    return now - seconds if seconds > 3e8 else None
