"""What others are told: OpenTelemetry by a receiver of OTLP over HTTP, OpenLineage by a catalogue or in a file."""

from __future__ import annotations

import gzip
import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import holdfast as hf
from holdfast.cli import main
from holdfast.dashboard.lineage_export import LineageExport, LineageRuns, lineage_receiver
from holdfast.dashboard.metric_export import METRICS
from holdfast.dashboard.store_watch import StoreWatch
from holdfast.dashboard.telemetry_export import TelemetryExport
from holdfast.errors import DeclarationError
from holdfast.watch.event_kinds import EpochsDone, ErrorSeen, RunEnded, RunStarted
from watched_runs import orders_pipeline, run_watched


class Receiver(ThreadingHTTPServer):
    """Takes what is posted, by path."""

    daemon_threads = True
    status = 200

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[tuple[str, bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def of(self, path: str) -> list[bytes]:
        return [body for found, body in self.received if found == path]


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.received.append((self.path, body))
        self.send_response(self.server.status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def receiving() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_epochs_become_spans_with_their_phases_and_tasks(tmp_path: Path) -> None:
    with receiving() as receiver:
        with TelemetryExport(StoreWatch(tmp_path), receiver.url):
            run_watched(tmp_path, orders_pipeline())
        spans = [
            span
            for body in receiver.of("/v1/traces")
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        logs = [
            record
            for body in receiver.of("/v1/logs")
            for resource in ExportLogsServiceRequest.FromString(body).resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
        ]
        metrics = {
            metric.name: metric
            for body in receiver.of("/v1/metrics")
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }
    roots = [span for span in spans if span.name == "epoch"]
    kept = [
        json.loads(text)["slowest"] for text in hf.events(tmp_path, kind="epochs").filter(pipeline="orders")["details"]
    ]
    assert [fact.value.int_value for span in roots for fact in span.attributes if fact.key == "holdfast.epoch"] == [
        trace["epoch"] for trace in kept
    ]
    root, trace = roots[0], kept[0]
    parts = {span.name: span for span in spans if span.parent_span_id == root.span_id}
    assert set(parts) == set(trace["phases"]) == {"wait", "read", "exchange", "assemble", "sync", "commit", "publish"}
    for name, part in parts.items():
        assert (part.end_time_unix_nano - part.start_time_unix_nano) / 1e9 == pytest.approx(
            trace["phases"][name], abs=2e-6
        )
        assert root.start_time_unix_nano <= part.start_time_unix_nano <= part.end_time_unix_nano
    tasks = [span.name for span in spans if span.parent_span_id == parts["assemble"].span_id]
    assert len(tasks) == sum(stage > 0 for stage, *_ in trace["tasks"]) > 0
    assert {record.event_name for record in logs} >= {"holdfast.started", "holdfast.late", "holdfast.decision"}
    assert any("came too late" in record.body.string_value and record.severity_text == "WARN" for record in logs)
    [read] = metrics["holdfast.rows_read"].sum.data_points
    assert (read.as_double or read.as_int) == 4_000
    assert {fact.key: fact.value.string_value for fact in read.attributes} == {
        "pipeline": "orders", "fragment": "orders",
    }  # fmt: skip
    assert metrics["holdfast.state_bytes"].unit == "By"
    names = {"holdfast." + metric.name.removeprefix("holdfast_").removesuffix("_total") for metric in METRICS}
    assert set(metrics) <= names


def test_a_receiver_that_is_gone_costs_telemetry_and_nothing_else(tmp_path: Path) -> None:
    with receiving() as receiver:
        gone = receiver.url
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    with LineageExport(StoreWatch(tmp_path), f"{gone}/api/v1/lineage"):
        run_watched(tmp_path, orders_pipeline(500))
    assert StoreWatch(tmp_path).look().statuses["orders"].finished


def test_lineage_is_told_at_the_start_and_while_it_runs(tmp_path: Path) -> None:
    with receiving() as receiver:
        with LineageExport(StoreWatch(tmp_path), f"{receiver.url}/api/v1/lineage", gather=0.0):
            run_watched(tmp_path, orders_pipeline())
        told = [json.loads(body) for body in receiver.of("/api/v1/lineage")]
    assert [event["eventType"] for event in told][:2] == ["START", "RUNNING"]
    assert len({event["run"]["runId"] for event in told}) == 1
    last = told[-1]
    assert (last["job"]["namespace"], last["job"]["name"]) == ("holdfast", "orders")
    assert last["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    [source], [sink] = last["inputs"], last["outputs"]
    assert (source["name"], source["inputFacets"]["inputStatistics"]["rowCount"]) == ("orders.in", 4_000)
    rows = sum(json.loads(text).get("output_rows", 0) for text in hf.events(tmp_path, kind="epochs")["details"])
    assert (sink["name"], sink["outputFacets"]["outputStatistics"]["rowCount"]) == ("orders.out", rows)
    assert last["schemaURL"].endswith("OpenLineage.json#/$defs/RunEvent")


def test_epochs_of_milliseconds_are_gathered_for_lineage() -> None:
    runs = LineageRuns("here", gather=30.0)
    kinds = [
        made.event_type
        for event in (
            RunStarted(at=100.0, pipeline="p", fragments={"p": 0}),
            *(EpochsDone(at=100.0 + second, pipeline="p", fragment="p", read={"in": 10}) for second in range(65)),
            RunEnded(at=165.0, pipeline="p"),
        )
        for made in runs.take(event, None)
    ]
    assert kinds == ["START", "RUNNING", "RUNNING", "COMPLETE"]
    [failed] = runs.take(ErrorSeen(at=200.0, pipeline="p", message="no such file"), None)
    assert failed.event_type == "FAIL"
    assert failed.run.facets["errorMessage"]["message"] == "no such file"


def test_lineage_goes_to_a_file_as_lines(tmp_path: Path) -> None:
    receive = lineage_receiver(str(tmp_path / "lineage.ndjson"))
    receive(b"{}")
    receive(b"{}")
    assert (tmp_path / "lineage.ndjson").read_text() == "{}\n{}\n"
    with pytest.raises(DeclarationError, match="not a receiver of OpenLineage"):
        lineage_receiver("kafka://here/topic")


def test_a_missing_library_is_named_with_its_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.connect.extra_library.find_spec", lambda name: None)
    told = CliRunner().invoke(main, ["ui", "--store", str(tmp_path), "--port", "0", "--otlp", "http://127.0.0.1:1"])
    assert told.exit_code == 1
    assert "pip install 'holdfast[otel]'" in told.output
