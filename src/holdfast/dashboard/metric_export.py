"""The figures of a store for Prometheus. Every name is in `METRICS` with its type and what it says, and in
docs/metrics.md; totals come from the store, so they go on where they were after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from holdfast.dashboard.fleet_view import FleetRow, fleet, source_figures
from holdfast.dashboard.graph_view import OperatorFigures, graph_of
from holdfast.dashboard.store_watch import Snapshot, StoreWatch
from holdfast.watch.event_table import KINDS

__all__ = ["METRICS", "ExportedMetric", "Sample", "StoreCollector", "metrics_text", "registry_of", "samples_of"]


@dataclass(frozen=True, slots=True)
class ExportedMetric:
    """A metric: its name as it is exported, its type, its labels and what it says."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


_P, _F = ("pipeline",), ("pipeline", "fragment")
_SOURCE = ("pipeline", "fragment", "source")
_OPERATOR = ("pipeline", "fragment", "operator")
METRICS = tuple(
    ExportedMetric(*given)
    for given in (
        ("holdfast_up", "gauge", _P, "1 while a process runs the pipeline, else 0."),
        ("holdfast_epochs_total", "counter", _F, "Committed epochs."),
        ("holdfast_rows_read_total", "counter", _F, "Rows that were read, from outside and from p-streams."),
        ("holdfast_rows_output_total", "counter", _F, "Rows that went to sinks."),
        ("holdfast_rows_late_total", "counter", _F, "Rows that arrived after all their windows had closed."),
        ("holdfast_rows_dead_total", "counter", _F, "Rows that could not be read or processed."),
        ("holdfast_last_commit_timestamp_seconds", "gauge", _F, "When the last epoch was committed."),
        ("holdfast_input_rows_per_second", "gauge", _P, "Rows from outside, over the last ten seconds."),
        ("holdfast_epoch_duration_seconds", "gauge", (*_P, "quantile"),
         "From the launch of an epoch to its commit, over the last ten seconds."),
        ("holdfast_epoch_phase_seconds", "gauge", (*_F, "phase"), "Where the time of epochs went, on average."),
        ("holdfast_source_lag_rows", "gauge", _SOURCE, "Rows waiting in a source, where it knows."),
        ("holdfast_source_lag_seconds", "gauge", _SOURCE, "How long reading them takes at the current rate."),
        ("holdfast_source_event_delay_seconds", "gauge", _SOURCE, "How far event time is behind the clock."),
        ("holdfast_source_rows_per_second", "gauge", _SOURCE, "Rows read, over the last ten seconds."),
        ("holdfast_operator_busy_ratio", "gauge", _OPERATOR, "The share of a CPU that its busiest partition uses."),
        ("holdfast_operator_partitions", "gauge", _OPERATOR, "Partitions of a stateful operator."),
        ("holdfast_state_rows", "gauge", _OPERATOR, "Rows of state after the last commit."),
        ("holdfast_state_bytes", "gauge", _OPERATOR, "Bytes of state after the last commit."),
        ("holdfast_stream_held_rows", "gauge", ("stream",), "Rows that a p-stream holds."),
        ("holdfast_stream_held_bytes", "gauge", ("stream",), "Bytes that a p-stream holds."),
        ("holdfast_stream_reader_behind_rows", "gauge", ("stream", "reader"), "Rows that a reader has not released."),
        ("holdfast_replay_epochs", "gauge", _F, "Epochs that would run again if the process were lost now."),
        ("holdfast_guarantee_kept", "gauge", _P, "1 if the declared bound on recovery is kept, 0 if not or at risk."),
        ("holdfast_guarantee_recovery_bound_seconds", "gauge", _P, "The declared bound on recovery."),
        ("holdfast_recovery_predicted_seconds", "gauge", _P, "The gap that hosts predict for a failure now."),
        ("holdfast_recovery_longest_seconds", "gauge", _P, "The longest recovery or gap of the last day."),
        ("holdfast_cost_per_hour", "gauge", _P, "The cost of the CPUs of tasks and secondaries."),
        ("holdfast_events_total", "counter", (*_P, "kind"), "Events, since this exporter started."),
    )
)  # fmt: skip


class StoreCollector(Collector):
    """Makes the metrics of one look at the store."""

    def __init__(self, watch: StoreWatch) -> None:
        self._watch = watch

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        families = {metric.name: _family(metric) for metric in METRICS}
        for name, labels, value in samples_of(self._watch.look()):
            families[name].add_metric(labels, value)
        yield from families.values()


def _family(metric: ExportedMetric) -> CounterMetricFamily | GaugeMetricFamily:
    if metric.kind == "counter":
        return CounterMetricFamily(metric.name.removesuffix("_total"), metric.text, labels=metric.labels)
    return GaugeMetricFamily(metric.name, metric.text, labels=metric.labels)


Sample = tuple[str, tuple[str, ...], float]


def samples_of(snapshot: Snapshot) -> Iterator[Sample]:
    """Names, values of the labels, and values."""
    for row in fleet(snapshot):
        yield from _pipeline(snapshot, row)
        for fragment in row.fragments:
            yield from _fragment(snapshot, row.pipeline, fragment)
        for figures in source_figures(snapshot, row.pipeline):
            where = (row.pipeline, figures.fragment, figures.source)
            yield from _known("holdfast_source_lag_rows", where, figures.lag_rows)
            yield from _known("holdfast_source_lag_seconds", where, figures.lag_seconds)
            yield from _known("holdfast_source_event_delay_seconds", where, figures.event_delay)
            yield "holdfast_source_rows_per_second", where, figures.rows
        for operator in graph_of(snapshot, row.pipeline).operators:
            yield from _operator(row.pipeline, operator)
        for kind in KINDS:
            yield "holdfast_events_total", (row.pipeline, kind), snapshot.counted.get((row.pipeline, kind), 0)
    for name, stream in snapshot.streams.items():
        yield "holdfast_stream_held_rows", (name,), stream.rows
        yield "holdfast_stream_held_bytes", (name,), stream.bytes
        for marker in stream.markers:
            if marker.is_of_reader:
                yield "holdfast_stream_reader_behind_rows", (name, marker.by), stream.offset - marker.offset


def _known(name: str, labels: tuple[str, ...], value: float | None) -> Iterator[Sample]:
    if value is not None:
        yield name, labels, value


def _pipeline(snapshot: Snapshot, row: FleetRow) -> Iterator[Sample]:
    mine = (row.pipeline,)
    yield "holdfast_up", mine, float(row.state == "running")
    yield "holdfast_input_rows_per_second", mine, row.recent.rows
    yield from _known("holdfast_epoch_duration_seconds", (*mine, "0.5"), row.recent.p50)
    yield from _known("holdfast_epoch_duration_seconds", (*mine, "0.99"), row.recent.p99)
    yield "holdfast_cost_per_hour", mine, row.cost_per_hour
    if row.guarantee.state != "none":
        from_events = snapshot.descriptions[row.pipeline].guarantee.recovery
        yield "holdfast_guarantee_kept", mine, float(row.guarantee.state == "kept")
        yield from _known("holdfast_guarantee_recovery_bound_seconds", mine, from_events)
    guarantee = row.guarantee
    yield from _known("holdfast_recovery_predicted_seconds", mine, guarantee.predicted)
    yield from _known("holdfast_recovery_longest_seconds", mine, guarantee.longest)


def _fragment(snapshot: Snapshot, pipeline: str, fragment: str) -> Iterator[Sample]:
    status = snapshot.statuses.get(fragment)
    if status is None:
        return
    mine = (pipeline, fragment)
    yield "holdfast_epochs_total", mine, status.epoch
    for name, total in (("read", "read"), ("output", "output"), ("late", "late"), ("dead", "bad")):
        yield f"holdfast_rows_{name}_total", mine, status.totals.get(total, 0)
    yield from _known("holdfast_last_commit_timestamp_seconds", mine, status.committed_at)
    again = len(status.planned) + (0 if status.replay_from is None else status.epoch - status.replay_from)
    yield "holdfast_replay_epochs", mine, again
    if status.times is not None:
        for phase, seconds in status.times.parts().items():
            yield "holdfast_epoch_phase_seconds", (*mine, phase), seconds
    for operator, state in status.state.items():
        where = (*mine, operator)
        yield "holdfast_operator_partitions", where, state.partitions
        yield "holdfast_state_rows", where, state.rows
        yield "holdfast_state_bytes", where, state.bytes


def _operator(pipeline: str, operator: OperatorFigures) -> Iterator[Sample]:
    where = (pipeline, operator.node.fragment, operator.node.name)
    yield from _known("holdfast_operator_busy_ratio", where, operator.busy)


def registry_of(watch: StoreWatch) -> CollectorRegistry:
    """A registry of its own: nothing of this process itself is in it."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StoreCollector(watch))
    return registry


def metrics_text(watch: StoreWatch) -> bytes:
    """The text that Prometheus reads."""
    return generate_latest(registry_of(watch))
