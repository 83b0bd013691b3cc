"""Traces, metrics and logs for OpenTelemetry, sent to a receiver of OTLP over HTTP: made of the events of a store.

A thread follows the events. An epoch becomes a span with a span for each phase, and one for each task of the phases in
which workers read and assemble; of epochs that took less than a second, the slowest of each second. All other events
become log records. Metrics are those of Prometheus (`metric_export`), every ten seconds. A receiver that does not
answer costs telemetry, nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import xxhash
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags

from holdfast import __version__
from holdfast.dashboard.metric_export import METRICS, ExportedMetric, Sample, samples_of
from holdfast.dashboard.store_watch import Snapshot, StoreWatch
from holdfast.watch.event_kinds import EpochsDone, EpochTrace, LoggedEvent
from holdfast.watch.event_reader import EventTail

__all__ = ["TelemetryExport", "epoch_spans"]

_LOOK_SECONDS = 1.0
_METRIC_SECONDS = 10.0
_PATIENCE_SECONDS = 5.0
_SCOPE = InstrumentationScope("holdfast", __version__)
_SEVERITIES = {
    "error": SeverityNumber.ERROR,
    **dict.fromkeys(("recovery", "takeover", "gap", "late", "dead", "waiting", "notice"), SeverityNumber.WARN),
}
_UNITS = {"seconds": "s", "bytes": "By", "ratio": "1"}
_log = logging.getLogger(__name__)
_Item = TypeVar("_Item")


class TelemetryExport:
    """Sends to `endpoint`, e.g. http://127.0.0.1:4318, until it is closed. Headers and certificates are taken from the
    variables of the environment that OpenTelemetry has for them."""

    def __init__(self, watch: StoreWatch, endpoint: str, *, look_seconds: float = _LOOK_SECONDS) -> None:
        base = endpoint.rstrip("/")
        self._watch = watch
        self._look_seconds = look_seconds
        self._resource = Resource.create({"service.name": "holdfast", "service.version": __version__})
        self._spans = OTLPSpanExporter(endpoint=f"{base}/v1/traces", timeout=_PATIENCE_SECONDS)
        self._logs = OTLPLogExporter(endpoint=f"{base}/v1/logs", timeout=_PATIENCE_SECONDS)
        reader = PeriodicExportingMetricReader(
            OTLPMetricExporter(endpoint=f"{base}/v1/metrics", timeout=_PATIENCE_SECONDS),
            export_interval_millis=1_000 * _METRIC_SECONDS,
        )
        self._meters = MeterProvider([reader], self._resource, shutdown_on_exit=False)
        self._samples: tuple[Snapshot | None, dict[str, list[Sample]]] = (None, {})
        for metric in METRICS:
            self._observe(metric)
        self._tail = EventTail(watch.store, watch.look().now)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="telemetry", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send the rest, and end."""
        self._over.set()
        self._thread.join()
        self._send()
        ends: tuple[Callable[[], object], ...] = (self._meters.shutdown, self._spans.shutdown, self._logs.shutdown)
        for end in ends:
            with contextlib.suppress(Exception):  # a receiver that is gone must not keep a run from ending
                end()

    def __enter__(self) -> TelemetryExport:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        while not self._over.wait(self._look_seconds):
            self._send()

    def _send(self) -> None:
        events = self._tail.new()
        spans = [
            span for event in events if isinstance(event, EpochsDone) for span in epoch_spans(event, self._resource)
        ]
        records = [self._record(event) for event in events if not isinstance(event, EpochsDone)]
        _exported(self._spans.export, spans)
        _exported(self._logs.export, records)

    def _record(self, event: LoggedEvent) -> ReadableLogRecord:
        severity = _SEVERITIES.get(event.kind, SeverityNumber.INFO)
        record = LogRecord(
            timestamp=_nanoseconds(event.at), observed_timestamp=_nanoseconds(event.at), severity_number=severity,
            severity_text=severity.name, body=event.text, event_name=f"holdfast.{event.kind}",
            attributes={**_whose(event), "holdfast.kind": event.kind},
        )  # fmt: skip
        return ReadableLogRecord(record, self._resource, _SCOPE)

    def _observe(self, metric: ExportedMetric) -> None:
        name = "holdfast." + metric.name.removeprefix("holdfast_").removesuffix("_total")
        unit = _UNITS.get(metric.name.rpartition("_")[2], "1")
        meter = self._meters.get_meter("holdfast", __version__)
        make = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge

        def observed(_: CallbackOptions) -> Iterable[Observation]:
            return [
                Observation(value, dict(zip(metric.labels, labels, strict=True)))
                for _, labels, value in self._seen().get(metric.name, ())
            ]

        make(name, [observed], unit=unit, description=metric.text)

    def _seen(self) -> dict[str, list[Sample]]:
        """All samples of one look at the store, by metric."""
        snapshot = self._watch.look()
        if self._samples[0] is not snapshot:
            found: dict[str, list[Sample]] = {}
            for sample in samples_of(snapshot):
                found.setdefault(sample[0], []).append(sample)
            self._samples = (snapshot, found)
        return self._samples[1]


def _exported(export: Callable[[Sequence[_Item]], object], items: Sequence[_Item]) -> None:
    if items:
        try:
            export(items)
        except Exception:  # noqa: BLE001 - whatever a receiver does, the run goes on
            _log.warning("telemetry could not be sent", exc_info=True)


def epoch_spans(event: EpochsDone, resource: Resource) -> Iterator[ReadableSpan]:
    """The spans of the slowest of some epochs. Phases follow one another; tasks of a phase begin together, because the
    clocks of several machines cannot be compared."""
    trace = event.slowest
    if trace is None:
        return
    whole = f"{event.pipeline}/{event.fragment}/{trace.epoch}/{trace.started}"
    waited = trace.phases.get("wait", 0.0)
    begin = trace.started - waited
    attributes = {
        **_whose(event), "holdfast.epoch": trace.epoch, "holdfast.rows": trace.rows,
        "holdfast.epochs": event.count,
    }  # fmt: skip
    root = _span("epoch", whole, "", None, begin, begin + sum(trace.phases.values()), attributes, resource)
    yield root
    for name, start, seconds in _placed(trace):
        key = f"{whole}/{name}"
        phase = _span(name, whole, key, root, begin + start, begin + start + seconds, {}, resource)
        yield phase
        for task in trace.tasks:
            if (name == "read" and task.stage == 0) or (name == "assemble" and task.stage > 0):
                facts = {"holdfast.stage": task.stage, "holdfast.task": task.task, "holdfast.syncing": task.syncing}
                end = begin + start + max(0.0, task.seconds - task.syncing)
                name_of_task = f"{name} task {task.task}"
                yield _span(
                    name_of_task, whole, f"{key}/{task.stage}-{task.task}", phase, begin + start, end, facts, resource
                )


def _placed(trace: EpochTrace) -> Iterator[tuple[str, float, float]]:
    start = 0.0
    for name, seconds in trace.phases.items():
        yield name, start, seconds
        start += seconds


def _span(
    name: str,
    whole: str,
    key: str,
    parent: ReadableSpan | None,
    begin: float,
    end: float,
    attributes: Mapping[str, str | int | float],
    resource: Resource,
) -> ReadableSpan:
    """Its number is made of what it is: whoever sends it twice sends the same span."""
    trace_id = xxhash.xxh3_128_intdigest(whole.encode()) or 1
    context = SpanContext(trace_id, xxhash.xxh3_64_intdigest(f"{whole}#{key}".encode()) or 1, False, TraceFlags(1))
    return ReadableSpan(
        name, context, None if parent is None else parent.get_span_context(), resource, attributes,
        start_time=_nanoseconds(begin), end_time=_nanoseconds(end), instrumentation_scope=_SCOPE,
    )  # fmt: skip


def _whose(event: LoggedEvent) -> dict[str, str | int | float]:
    named = {"pipeline": event.pipeline, "fragment": event.fragment, "host": event.host}
    return {f"holdfast.{name}": value for name, value in named.items() if value}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
