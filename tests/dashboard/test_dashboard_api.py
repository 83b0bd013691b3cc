"""What the dashboard answers is what the store says; who may ask is checked."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

import holdfast as hf
from holdfast.cli import main
from holdfast.dashboard.dashboard_app import dashboard_app
from holdfast.dashboard.store_watch import StoreWatch
from holdfast.engine.lease import this_process
from holdfast.graph.graph_layout import lay_out
from holdfast.meta import MetaStore
from holdfast.replica.shadow_report import ShadowReport, keep_shadow
from holdfast.watch.event_kinds import GapMeasured, NoticeGiven, RecoveryDone
from holdfast.watch.event_log import EventLog
from watched_runs import orders_pipeline, run_watched

TOKEN = "a-token-of-the-test"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dashboard")
    run_watched(path, orders_pipeline())
    return path


def browser(store: Path, host: str = "127.0.0.1") -> TestClient:
    return TestClient(dashboard_app(StoreWatch(store), host, TOKEN), base_url=f"http://{host}:8350")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def client(store: Path) -> Iterator[TestClient]:
    with browser(store) as opened:
        yield opened


def status(store: Path) -> Any:
    told = CliRunner().invoke(main, ["status", "orders", "--json", "--store", str(store)])
    return json.loads(told.output)


def test_the_fleet_shows_the_figures_of_the_store(client: TestClient, store: Path) -> None:
    [row] = client.get("/api/overview").json()["pipelines"]
    known = status(store)
    assert (row["pipeline"], row["epoch"], row["totals"]) == ("orders", known["epoch"], known["totals"])
    assert row["rows_in"] == known["totals"]["read"] == 4_000
    assert row["state_rows"] == known["state"]["counts"]["rows"]
    assert row["state"] == "finished"
    assert row["guarantee"]["state"] == "kept"


def test_a_pipeline_has_the_same_status_as_the_command_prints(client: TestClient, store: Path) -> None:
    view = client.get("/api/pipelines/orders").json()
    assert view["statuses"]["orders"] == status(store)
    assert [operator["node"]["name"] for operator in view["graph"]["operators"]] == ["in", "counts", "out"]
    places = {node["name"]: node["x"] for node in view["graph"]["drawing"]["nodes"]}
    assert places["in"] < places["counts"] < places["out"]
    assert view["guarantee"]["declared"]["recovery"] == 5.0
    assert {event["kind"] for event in view["events"]} >= {"started", "decision"}
    assert sum(json.loads(event["details"])["rows"] for event in view["lost"]) == 40
    assert any(outlook["what"] == "the process dies" for outlook in view["what_if"])


def test_the_slowest_epochs_are_there_by_phase_and_task(client: TestClient, store: Path) -> None:
    traces = client.get("/api/pipelines/orders").json()["traces"]["orders"]
    kept = [json.loads(text) for text in hf.events(store, kind="epochs")["details"]]
    assert traces == [event["slowest"] for event in reversed(kept)]
    assert traces[0]["seconds"] == kept[-1]["longest"]
    assert {stage for stage, *_ in traces[0]["tasks"]} == {0, 1}


def test_levels_and_key_intervals_are_those_of_the_state(client: TestClient, store: Path) -> None:
    known = client.get("/api/pipelines/orders").json()["statuses"]["orders"]["state"]["counts"]
    parts = known["parts"]
    assert len(parts) == known["partitions"]
    assert (parts[0]["begin"], parts[-1]["end"]) == (0.0, 1.0)
    assert [part["begin"] for part in parts[1:]] == [part["end"] for part in parts[:-1]]
    told = sum(size for part in parts for levels in part["levels"].values() for size in levels)
    assert abs(told - known["bytes"]) <= len(parts)  # of p-units that partitions share, each counts its part


def test_what_its_process_uses_is_measured(tmp_path: Path) -> None:
    run_watched(tmp_path, orders_pipeline(1_000))
    meta = MetaStore(tmp_path)
    meta.acquire("orders", this_process(), time.time(), 60.0, None)
    meta.close()
    with browser(tmp_path) as client:
        [used] = client.get("/api/pipelines/orders/resources").json()
        assert (used["host"], used["pid"]) == ("", os.getpid())
        assert used["memory"] > 10_000_000
        assert used["cpus"] > 0


def test_new_code_that_has_followed_is_shown_with_its_verdict(tmp_path: Path) -> None:
    run_watched(tmp_path, orders_pipeline(1_000))
    report = ShadowReport(
        pipeline="orders", code="/srv/new.py:pipeline", checksum="", old="/srv/old.py:pipeline", process="h:1:0.0",
        since=1_790_000_000.0, at=1_790_000_001.0, wanted=20, state="differs", compared={"orders": 7},
        fragment="orders", epoch=12, differences={"out": "one has 3 rows for 'out', the other 4"},
        only_shadow=("country=2, orders=1",),
    )  # fmt: skip
    keep_shadow(tmp_path, report)
    told = "differs at epoch 12 of 'orders' in sink out: one has 3 rows for 'out', the other 4"
    with browser(tmp_path) as client:
        view = client.get("/api/pipelines/orders").json()
    [shown] = view["shadows"]
    assert (shown["verdict"], shown["report"]["only_shadow"]) == (told, ["country=2, orders=1"])
    assert view["statuses"]["orders"] == status(tmp_path)
    assert status(tmp_path)["shadow"]["epoch"] == 12
    printed = CliRunner().invoke(main, ["status", "orders", "--store", str(tmp_path)]).output
    assert "new.py differs at epoch 12" in " ".join(printed.split())
    listed = CliRunner().invoke(main, ["promote", "orders", "--reports", "--store", str(tmp_path)]).output
    assert listed == f"new.py: {told}\n+ country=2, orders=1   (shadow)\n"


def test_curves_add_up_to_what_was_read(client: TestClient) -> None:
    series = client.get("/api/pipelines/orders/series?seconds=600").json()
    assert round(sum(value or 0.0 for value in series["rows"]) * series["step"]) == 4_000
    assert len(series["at"]) == len(series["p99"]) == len(series["phases"]["commit"])


def test_state_is_shown_of_any_retained_epoch_and_by_key(client: TestClient, store: Path) -> None:
    shown = client.get("/api/state/orders/counts").json()
    assert shown["total"] == hf.state(store, "orders", "counts").height
    epoch = status(store)["retained"][0]
    earlier = client.get(f"/api/state/orders/counts?epoch={epoch}").json()
    assert earlier["total"] == hf.state(store, "orders", "counts", epoch=epoch).height
    one = client.get("/api/state/orders/counts", params={"search": "country=2", "epoch": epoch}).json()
    assert {row[0] for row in one["rows"]} == {"2"}
    last = status(store)["epoch"]
    changed = client.get(f"/api/state/orders/counts?before={epoch}&epoch={last}").json()
    assert changed["columns"][0] == "change"
    gone = client.get("/api/state/orders/counts?epoch=99999")
    assert gone.status_code in (400, 404)
    assert "error" in gone.json()


def test_what_is_not_there_is_said_so(client: TestClient) -> None:
    assert client.get("/api/pipelines/nothing").status_code == 404
    assert client.get("/api/streams/nothing/tail").status_code in (400, 404)
    assert client.get("/api/pipelines/orders/series?seconds=soon").status_code == 400


def test_a_store_that_is_empty_yet_has_no_pipelines(tmp_path: Path) -> None:
    with browser(tmp_path) as client:
        assert client.get("/api/overview").json()["pipelines"] == []
        assert client.get("/metrics").status_code == 200


def test_a_page_of_another_site_gets_nothing(client: TestClient) -> None:
    assert client.get("/api/overview", headers={"host": "evil.example"}).status_code == 421
    assert client.get("/api/overview", headers={"host": "localhost:8350"}).status_code == 200
    body = {"fragment": "orders", "operator": "counts", "partitions": 2}
    right = {"authorization": f"Bearer {TOKEN}"}
    assert client.post("/api/scale", json=body).status_code == 401
    assert client.post("/api/scale", json=body, headers={"authorization": "Bearer no"}).status_code == 401
    assert client.post("/api/scale", json=body, headers={**right, "origin": "http://evil.example"}).status_code == 403
    form = {**right, "content-type": "application/x-www-form-urlencoded"}
    assert client.post("/api/scale", content=json.dumps(body), headers=form).status_code == 415
    answered = client.post("/api/scale", json=body, headers=right)
    assert answered.status_code == 404
    assert "is not running" in answered.json()["error"]


def test_elsewhere_than_on_loopback_reading_needs_the_token(store: Path) -> None:
    with browser(store, "192.0.2.7") as client:
        assert client.get("/").status_code == 200  # the page itself tells nothing
        assert client.get("/static/app.js").status_code == 200
        assert client.get("/api/overview").status_code == 401
        assert client.get("/metrics").status_code == 401
        assert client.get(f"/api/overview?token={TOKEN}").status_code == 200
        assert client.get("/metrics", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_the_header_of_a_host_does_not_make_a_page_of_what_needs_the_token(store: Path) -> None:
    client = browser(store, "10.1.2.3")
    assert client.get("/api/overview", headers={"host": "x/static/?"}).status_code == 401


def test_limits_are_bounded_before_anything_is_read(client: TestClient) -> None:
    assert client.get("/api/events", params={"limit": -1}).json() == []
    assert len(client.get("/api/events", params={"limit": 3}).json()) == 3


def test_pages_load_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    static = Path(hf.__file__).parent / "dashboard" / "static"
    for path in [*static.glob("*.js"), *static.glob("*.css"), static / "index.html"]:
        text = path.read_text(encoding="utf-8")
        assert "https://" not in text, path
        assert "http://" not in text.replace("http://www.w3.org", ""), path


def test_a_guarantee_is_broken_by_what_was_measured(tmp_path: Path) -> None:
    run_watched(tmp_path, orders_pipeline(500))
    with browser(tmp_path) as client:
        now = client.get("/api/overview").json()["now"]
    with EventLog(tmp_path, "test") as log:
        log.put(RecoveryDone(at=now - 9, pipeline="orders", fragment="orders", seconds=1.5, phases={"data": 1.5}))
    with browser(tmp_path) as client:
        [row] = client.get("/api/overview").json()["pipelines"]
    assert (row["guarantee"]["state"], row["guarantee"]["longest"]) == ("kept", 1.5)
    with EventLog(tmp_path, "test") as log:
        log.put(
            GapMeasured(at=now - 5, pipeline="orders", fragment="orders", host="b", scheme="hot standby", seconds=7.0)
        )
    with browser(tmp_path) as client:
        view = client.get("/api/pipelines/orders").json()
    assert view["guarantee"]["verdict"]["state"] == "broken"
    budget = view["guarantee"]["budget"]
    assert (budget["recoveries"], budget["over"], budget["broken_seconds"]) == (1, 1, 2.0)  # the gap counts, as seen
    assert budget["share"] == pytest.approx(1 - 2.0 / budget["seconds"])
    assert budget["used"] == pytest.approx(2.0 / (0.001 * budget["seconds"]))
    assert view["guarantee"]["worst"] == 7.0
    assert view["recoveries"][0]["phases"] == {"data": 1.5}


def test_events_of_the_whole_day_come_after_those_of_the_last_hour(tmp_path: Path) -> None:
    now = time.time()
    with EventLog(tmp_path) as log:
        for age in (7_200.0, 60.0, 90_000.0):
            log.put(NoticeGiven(at=now - age, pipeline="orders", message=f"{age:.0f} s ago"))
    watch = StoreWatch(tmp_path)
    assert watch.look().events[-1].text == "60 s ago"
    watch.settle()
    assert [event.text for event in watch.look().events] == ["7200 s ago", "60 s ago"]


def test_a_graph_is_drawn_in_columns_without_crossings() -> None:
    drawing = lay_out({"a": (), "b": (), "x": ("a",), "y": ("b",), "j": ("x", "y"), "late": ("x",), "s": ("j",)})
    at = {node.name: (node.x, node.y) for node in drawing.nodes}
    assert at["a"][0] < at["x"][0] < at["j"][0] < at["s"][0]
    assert (at["a"][1] < at["b"][1]) == (at["x"][1] < at["y"][1])
    assert len({(node.x, node.y) for node in drawing.nodes}) == len(drawing.nodes)
    assert all(
        node.x + node.width <= drawing.width and node.y + node.height <= drawing.height for node in drawing.nodes
    )
    assert lay_out({}).nodes == ()
