"""The application behind `holdfast ui`: pages, their data as JSON, live news, metrics, and actions.

It only reads, but for two actions: an operator gets another number of partitions, and a drill. Both go through the
commands of the meta store, as `holdfast scale` and `holdfast drill` do it, and are events.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from holdfast import __version__
from holdfast.dashboard.dashboard_guard import DashboardGuard
from holdfast.dashboard.drill_desk import DrillDesk, DrillUnderWay
from holdfast.dashboard.drill_report import DrillReport, kept_reports
from holdfast.dashboard.drill_run import drill_code, planned_drill
from holdfast.dashboard.fleet_view import FleetRow, fleet
from holdfast.dashboard.host_resources import ResourceMeter
from holdfast.dashboard.metric_export import metrics_text
from holdfast.dashboard.pipeline_view import pipeline_view, shown_events
from holdfast.dashboard.series_view import series_of
from holdfast.dashboard.store_rows import MOST_ROWS, shown_diff, shown_state_rows, shown_tail
from holdfast.dashboard.store_watch import StoreWatch
from holdfast.errors import HoldfastError, UnknownStateError
from holdfast.meta import opened_meta
from holdfast.plan.drill_command import Victim
from holdfast.plan.scale_command import MOST_PARTITIONS, ScaleCommand
from holdfast.stored_json import encode_json
from holdfast.ui.scale_request import ask_to_scale
from holdfast.watch.event_kinds import ActionAsked, ScaleChanged
from holdfast.watch.event_log import EventLog

__all__ = ["DrillRequest", "Drills", "Overview", "ScaleRequest", "dashboard_app", "metrics_app"]

_STATIC = Path(__file__).parent / "static"
_TICK_SECONDS = 1.0
_ANSWER_SECONDS = 15.0
_LONGEST_SECONDS = 86_400.0
_MOST_REPORTS = 100
_Asked = TypeVar("_Asked")


class Overview(msgspec.Struct, frozen=True):
    """What the fleet screen shows, and what is sent live."""

    now: float
    version: str
    store: str
    pipelines: list[FleetRow]


class ScaleRequest(msgspec.Struct, frozen=True):
    """An operator is to have so many partitions."""

    fragment: str
    operator: str
    partitions: int


class DrillRequest(msgspec.Struct, frozen=True):
    """Something is to be killed on purpose."""

    pipeline: str
    fragment: str
    kill: Victim


@dataclass(frozen=True, slots=True)
class Drills:
    """The drills of a pipeline: the reports that the store has, and the one that was last asked for here."""

    reports: list[DrillReport]
    last: DrillUnderWay | None


def dashboard_app(watch: StoreWatch, host: str, token: str) -> DashboardGuard:
    """The application for a store, which listens on `host`."""
    pages = _Pages(watch)
    routes = [
        Route("/", pages.index),
        Route("/metrics", pages.metrics),
        Route("/api/overview", pages.overview),
        Route("/api/live", pages.live),
        Route("/api/events", pages.events),
        Route("/api/pipelines/{pipeline}", pages.pipeline),
        Route("/api/pipelines/{pipeline}/series", pages.series),
        Route("/api/state/{fragment}/{operator}", pages.state),
        Route("/api/streams/{stream}/tail", pages.tail),
        Route("/api/pipelines/{pipeline}/resources", pages.resources),
        Route("/api/pipelines/{pipeline}/drills", pages.drills),
        Route("/api/drill", pages.drill, methods=["POST"]),
        Route("/api/scale", pages.scale, methods=["POST"]),
        Mount("/static", StaticFiles(directory=_STATIC)),
    ]
    app = Starlette(routes=routes, exception_handlers={HoldfastError: _told, ValueError: _wrong})
    return DashboardGuard(app, host, token)


def metrics_app(watch: StoreWatch, host: str, token: str) -> DashboardGuard:
    """Only what Prometheus reads, at `/metrics`."""
    return DashboardGuard(Starlette(routes=[Route("/metrics", _Pages(watch).metrics)]), host, token)


def _json(value: object, status: int = 200) -> Response:
    return Response(encode_json(value), status, media_type="application/json")


def _told(request: Request, error: Exception) -> Response:
    return _json({"error": str(error)}, 404 if isinstance(error, UnknownStateError) else 400)


def _wrong(request: Request, error: Exception) -> Response:
    return _json({"error": f"the request is not valid: {error}"}, 400)


class _Pages:
    def __init__(self, watch: StoreWatch) -> None:
        self._watch = watch
        self._desk = DrillDesk(watch.store, watch.meta)
        self._meter = ResourceMeter()

    async def index(self, request: Request) -> Response:
        return FileResponse(_STATIC / "index.html")

    async def metrics(self, request: Request) -> Response:
        return Response(await run_in_threadpool(metrics_text, self._watch), media_type=CONTENT_TYPE_LATEST)

    async def overview(self, request: Request) -> Response:
        return _json(await run_in_threadpool(self._overview))

    def _overview(self) -> Overview:
        snapshot = self._watch.look()
        return Overview(snapshot.now, __version__, str(self._watch.store), fleet(snapshot))

    async def pipeline(self, request: Request) -> Response:
        name = request.path_params["pipeline"]
        view = await run_in_threadpool(lambda: pipeline_view(self._watch.look(), name))
        if view is None:
            raise UnknownStateError(f"there is no pipeline '{name}'", cure="choose one of the fleet")
        return _json(view)

    async def series(self, request: Request) -> Response:
        seconds = min(_LONGEST_SECONDS, max(30.0, float(request.query_params.get("seconds", "900"))))
        name = request.path_params["pipeline"]
        return _json(await run_in_threadpool(lambda: series_of(self._watch.look(), name, seconds)))

    async def events(self, request: Request) -> Response:
        asked = request.query_params
        kinds = [kind for kind in asked.get("kind", "").split(",") if kind]
        limit = _limit(asked.get("limit"), 200, 1_000)
        snapshot = await run_in_threadpool(self._watch.look)
        if asked.get("pipeline"):
            found = snapshot.of(asked["pipeline"], kinds)
        else:
            found = [event for event in reversed(snapshot.events) if not kinds or event.kind in kinds]
        return _json(shown_events(found[:limit]))

    async def state(self, request: Request) -> Response:
        asked, (store, meta) = request.query_params, (self._watch.store, self._watch.meta)
        fragment, operator = request.path_params["fragment"], request.path_params["operator"]
        epoch = int(asked["epoch"]) if asked.get("epoch") else None
        limit = _limit(asked.get("limit"), 50, MOST_ROWS)
        if asked.get("before") and epoch is not None:
            before = int(asked["before"])
            return _json(await run_in_threadpool(shown_diff, store, meta, fragment, operator, before, epoch, limit))
        found = await run_in_threadpool(
            shown_state_rows, store, meta, fragment, operator, epoch, asked.get("search", ""), limit
        )
        return _json(found)

    async def tail(self, request: Request) -> Response:
        limit = _limit(request.query_params.get("limit"), 50, MOST_ROWS)
        store, meta, stream = self._watch.store, self._watch.meta, request.path_params["stream"]
        return _json(await run_in_threadpool(shown_tail, store, meta, stream, limit))

    async def resources(self, request: Request) -> Response:
        name, store = request.path_params["pipeline"], self._watch.store
        return _json(await run_in_threadpool(lambda: self._meter.look(self._watch.look(), name, store)))

    async def live(self, request: Request) -> Response:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._news(request), media_type="text/event-stream", headers=headers)

    async def _news(self, request: Request) -> AsyncIterator[str]:
        """The overview, once a second while somebody listens."""
        while not await request.is_disconnected():
            overview = await run_in_threadpool(self._overview)
            yield f"event: overview\ndata: {encode_json(overview)}\n\n"
            await asyncio.sleep(_TICK_SECONDS)

    async def drills(self, request: Request) -> Response:
        name = request.path_params["pipeline"]
        reports = await run_in_threadpool(kept_reports, self._watch.store, name)
        return _json(Drills(reports[:_MOST_REPORTS], self._desk.last(name)))

    async def drill(self, request: Request) -> Response:
        asked = await _asked(request, DrillRequest)
        return _json(await run_in_threadpool(self._drill, asked), 202)

    def _drill(self, asked: DrillRequest) -> DrillUnderWay:
        """Begin it, where it can be done and judged; the page follows it."""
        snapshot = self._watch.look()
        planned = planned_drill(snapshot, asked.pipeline, asked.kill, asked.fragment)
        drill_code(snapshot, asked.pipeline)
        return self._desk.begin(planned)

    async def scale(self, request: Request) -> Response:
        asked = await _asked(request, ScaleRequest)
        if not 1 <= asked.partitions <= MOST_PARTITIONS:
            raise ValueError(f"give 1 to {MOST_PARTITIONS} partitions")
        return _json(await run_in_threadpool(self._scale, asked))

    def _scale(self, asked: ScaleRequest) -> ScaleChanged:
        """Ask the process that runs the fragment, and wait for its answer."""
        snapshot = self._watch.look()
        status = snapshot.statuses.get(asked.fragment)
        if status is None or not status.running:
            raise UnknownStateError(f"'{asked.fragment}' is not running", cure="start it first")
        owner = next((name for name, parts in snapshot.pipelines.items() if asked.fragment in parts), asked.fragment)
        with (
            EventLog(self._watch.store, "ui") as log,
            opened_meta(self._watch.store, self._watch.meta, writes=True) as opened,
        ):
            what = f"{asked.partitions} partitions of {asked.operator}"
            log.put(ActionAsked(at=time.time(), pipeline=owner, fragment=asked.fragment, what=what, by="dashboard"))
            command, reason = ScaleCommand(asked.operator, asked.partitions), "requested in the dashboard"
            store = self._watch.store
            return ask_to_scale(opened, store, asked.fragment, command, _ANSWER_SECONDS, reason)[1]


async def _asked(request: Request, kind: type[_Asked]) -> _Asked:
    try:
        return msgspec.json.decode(await request.body(), type=kind)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def _limit(given: str | None, usual: int, most: int) -> int:
    return max(0, min(most, int(given or usual)))
