"""Metrics say what the store says, their page lists each of them, and what is made of them uses only those."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.cli.shared_options import ListenAddress
from holdfast.dashboard.dashboard_server import served_metrics
from holdfast.dashboard.metric_export import METRICS, metrics_text
from holdfast.dashboard.store_watch import StoreWatch
from watched_runs import orders_pipeline, run_watched

ROOT = Path(__file__).parents[2]
NAMES = {metric.name for metric in METRICS}
_NAME = re.compile(r"\bholdfast_[a-z_]+\b")


def samples(text: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_are_the_figures_of_the_store(tmp_path: Path) -> None:
    watch = StoreWatch(tmp_path)
    run_watched(tmp_path, orders_pipeline())
    found = samples(metrics_text(watch).decode())
    status = watch.look().statuses["orders"]
    assert found["holdfast_rows_read_total", "orders", "orders"] == 4_000
    assert found["holdfast_rows_late_total", "orders", "orders"] == 40
    assert found["holdfast_epochs_total", "orders", "orders"] == status.epoch
    assert found["holdfast_state_rows", "counts", "orders", "orders"] == status.state["counts"].rows
    assert found["holdfast_source_lag_rows", "in", "orders", "orders"] == 0
    assert found["holdfast_guarantee_kept", "orders"] == 1
    assert found["holdfast_guarantee_recovery_bound_seconds", "orders"] == 5
    assert found["holdfast_up", "orders"] == 0
    assert found["holdfast_events_total", "orders", "started"] == 1
    with served_metrics(watch) as served:
        answer = httpx.get(f"{served.url}metrics")
        assert httpx.get(f"{served.url}api/overview").status_code == 404
    assert samples(answer.text).keys() == found.keys()
    later = samples(metrics_text(StoreWatch(tmp_path)).decode())
    assert later["holdfast_events_total", "orders", "started"] == 0, "an exporter counts what it has seen happen"


def test_elsewhere_than_on_loopback_metrics_need_the_token(tmp_path: Path) -> None:
    with served_metrics(StoreWatch(tmp_path), "0.0.0.0", 0, "a-token") as served:
        url = f"http://127.0.0.1:{served.port}/metrics"
        assert httpx.get(url).status_code == 401
        assert httpx.get(url, headers={"authorization": "Bearer a-token"}).status_code == 200


def test_an_address_is_a_port_or_one_with_a_host() -> None:
    kind = ListenAddress()
    assert kind.convert("9350", None, None) == ("127.0.0.1", 9350)
    assert kind.convert("0.0.0.0:9350", None, None) == ("0.0.0.0", 9350)
    assert kind.convert("[::1]:9350", None, None) == ("::1", 9350)
    for wrong in ("", "host", ":9350", "host:port", "70000"):
        with pytest.raises(click.BadParameter, match=r"0\.0\.0\.0:9350"):
            kind.convert(wrong, None, None)


def test_the_page_lists_exactly_the_metrics_there_are() -> None:
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(holdfast_[a-z_]+)` \| ([a-z]+) \| ([^|]*) \| ([^|]*) \|$", page, re.MULTILINE)
    labels = {metric.name: ", ".join(metric.labels) for metric in METRICS}
    assert [(name, kind, given.strip(), text.strip()) for name, kind, given, text in listed] == [
        (metric.name, metric.kind, labels[metric.name], metric.text) for metric in METRICS
    ]


def test_the_dashboard_of_grafana_and_the_alerts_use_metrics_that_there_are() -> None:
    grafana = json.loads((ROOT / "deploy/grafana-dashboard.json").read_text())
    expressions = [target["expr"] for panel in grafana["panels"] for target in panel.get("targets", ())]
    assert len(expressions) >= 8
    alerts = (ROOT / "deploy/alert-rules.yaml").read_text()
    rules = re.findall(r"^ *expr: (.*)$", alerts, re.MULTILINE)
    assert len(rules) >= 5
    for expression in [*expressions, *rules]:
        used = set(_NAME.findall(expression))
        assert used, expression
        assert used <= NAMES, expression


def test_names_follow_the_conventions() -> None:
    for metric in METRICS:
        assert (metric.kind == "counter") == metric.name.endswith("_total"), metric.name
        assert not re.search(r"_(ms|millis|kb|percent)\b", metric.name)
