"""What the dashboard costs: how soon its first page is there with a day of events, and what a pipeline pays for being
watched.

A pipeline runs in a process of its own, `holdfast ui` in another, and a reader asks for what an open page does: the
overview, and a pipeline with its curves, once a second. Watched and unwatched times take turns, and what is compared is
the CPU time of the pipeline's process: other work on the machine disturbs both alike.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from holdfast.errors import HoldfastError
from holdfast.watch.event_kinds import EpochsDone, PartitionShare
from holdfast.watch.event_log import EventLog, event_files
from holdfast_lab.bench.watched_pipeline import NAME

__all__ = ["DashboardCost", "measure_dashboard", "write_a_day"]

OPEN_BAR, COST_BAR = 1.0, 0.01
_DAY = 86_400
_TURNS = 6
_PAGES = 5
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_PHASES = {"wait": 0.01, "read": 0.02, "exchange": 0.001, "assemble": 0.02, "sync": 0.01, "commit": 0.002}


@dataclass(frozen=True, slots=True)
class DashboardCost:
    """`opens` is until the overview shows its figures, in a browser if there is one, else until all is answered that it
    asks for; `first` the same right after the start of `holdfast ui`. `unwatched` and `watched` are CPUs of the
    pipeline's process, `cost` by how much more that is, `dashboard` the CPUs of `holdfast ui`, all as medians."""

    events: int
    browser: bool
    first: float
    opens: float
    unwatched: float
    watched: float
    cost: float
    dashboard: float

    def to_json(self) -> dict[str, Any]:
        bars = [
            {"name": "seconds until the overview is shown, with a day of events", "value": round(self.opens, 3),
             "bar": OPEN_BAR, "ok": self.opens < OPEN_BAR},
            {"name": "CPU of a pipeline that is watched, above that of the same unwatched",
             "value": round(self.cost, 4), "bar": COST_BAR, "ok": self.cost < COST_BAR},
        ]  # fmt: skip
        return {
            "query": "dashboard", "events": self.events, "browser": self.browser, "first": round(self.first, 3),
            "unwatched": round(self.unwatched, 4), "watched": round(self.watched, 4),
            "dashboard": round(self.dashboard, 4), "bars": bars,
        }  # fmt: skip

    def lines(self) -> list[str]:
        where = "in Chromium" if self.browser else "asked for without a browser"
        return [
            f"opens in {self.opens:.2f} s {where}, with {self.events:,} events; the first time after the start in"
            f" {self.first:.2f} s; the bar is {OPEN_BAR:.0f} s",
            f"a pipeline that is watched uses {self.cost:+.2%} CPU: {self.watched:.3f} CPUs, unwatched"
            f" {self.unwatched:.3f}; the bar is {COST_BAR:.0%}",
            f"the dashboard itself uses {self.dashboard:.3f} CPUs while one page is open",
        ]


def measure_dashboard(place: Path, seconds: float) -> DashboardCost:
    """`seconds` are watched and as many unwatched, in turns."""
    store = place / "watched-store"
    events = write_a_day(store, time.time())
    with _process("-m", "holdfast_lab.bench.watched_pipeline", str(store)) as pipeline, _dashboard(store) as (ui, url):
        _await_commits(url)
        with _reader(url) as open_page:
            first, *pages = [open_page() for _ in range(1 + _PAGES)]
        turns = [_turn(psutil.Process(pipeline.pid), psutil.Process(ui.pid), url, seconds / _TURNS)
                 for _ in range(_TURNS)]  # fmt: skip
    unwatched = statistics.median(turn[0] for turn in turns)
    watched = statistics.median(turn[1] for turn in turns)
    return DashboardCost(
        events=events, browser=_browser() is not None, first=first, opens=statistics.median(pages),
        unwatched=unwatched, watched=watched,
        cost=statistics.median(turn[1] / turn[0] - 1 for turn in turns),
        dashboard=statistics.median(turn[2] for turn in turns),
    )  # fmt: skip


def write_a_day(store: Path, until: float) -> int:
    """The events of a day before `until`: one for each second, as a busy pipeline writes them, in files by the hour.
    How many."""
    share = tuple(PartitionShare(0.05, 2_500) for _ in range(8))
    now = [until - _DAY]
    with EventLog(store, "day", clock=lambda: now[0]) as log:
        for second in range(_DAY):
            now[0] = at = until - _DAY + second
            log.put(_epochs(at, second, share))
            if second % 60 == 59:
                log.flush()
    for path in event_files(store):  # as old as what is in it
        begun = int(path.name.split("-")[0]) / 1000
        os.utime(path, (begun + 3_600, begun + 3_600))
    return _DAY


def _epochs(at: float, second: int, share: tuple[PartitionShare, ...]) -> EpochsDone:
    """What a second of a busy pipeline comes to."""
    return EpochsDone(
        at=at, since=at - 1, pipeline=NAME, fragment=NAME, epoch=10 * second + 10, first=10 * second + 1, count=10,
        rows=20_000, entered=20_000, output_rows=1_000, state_rows=1_000, state_bytes=50_000, p50=0.06, p99=0.11,
        longest=0.12, phases=_PHASES, read={"orders": 20_000}, lag={"orders": 0}, work={"counts": share},
        reading=share,
    )  # fmt: skip


@contextlib.contextmanager
def _process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _dashboard(store: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with _process("-m", "holdfast", "ui", "--port", "0", "--store", str(store)) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().split()[1].partition("#")[0]


def _await_commits(url: str) -> None:
    until = time.monotonic() + 120
    while b'"state":"running"' not in _get(f"{url}api/overview").replace(b'": "', b'":"'):
        if time.monotonic() > until:
            raise HoldfastError("the pipeline has not committed in time", cure="is the machine very busy? try again")
        time.sleep(0.2)


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        content: bytes = answer.read()
    return content


def _browser() -> str | None:
    if importlib.util.find_spec("playwright") is None:
        return None
    return next((path for name in _BROWSERS if (path := shutil.which(name))), None)


@contextlib.contextmanager
def _reader(url: str) -> Iterator[Callable[[], float]]:
    """Who opens the page of the pipeline, and says how long it took."""
    found = _browser()
    if found is None:
        yield lambda: _asked(url)
        return
    with importlib.import_module("playwright.sync_api").sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        try:

            def opened() -> float:
                page = browser.new_page()
                begun = time.perf_counter()
                page.goto(f"{url}#/p/{NAME}/overview")
                page.locator(".tile .value").first.wait_for(timeout=60_000)
                took = time.perf_counter() - begun
                page.close()
                return took

            yield opened
        finally:
            browser.close()


def _asked(url: str) -> float:
    begun = time.perf_counter()
    for path in ("", "static/app.js", "static/screens.js", "static/vendor/uplot.js", "api/overview",
                 f"api/pipelines/{NAME}", f"api/pipelines/{NAME}/series?seconds=300"):  # fmt: skip
        _get(url + path)
    return time.perf_counter() - begun


def _turn(pipeline: psutil.Process, ui: psutil.Process, url: str, seconds: float) -> tuple[float, float, float]:
    """CPUs of the pipeline unwatched and watched, and those of the dashboard while it is."""
    unwatched = _used(pipeline, seconds)
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(url, over))
    watcher.start()
    before, begun = sum(ui.cpu_times()[:2]), time.monotonic()
    watched = _used(pipeline, seconds)
    used = (sum(ui.cpu_times()[:2]) - before) / (time.monotonic() - begun)
    over.set()
    watcher.join()
    return unwatched, watched, used


def _used(process: psutil.Process, seconds: float) -> float:
    before, begun = sum(process.cpu_times()[:2]), time.monotonic()
    time.sleep(seconds)
    return float((sum(process.cpu_times()[:2]) - before) / (time.monotonic() - begun))


def _watch(url: str, over: threading.Event) -> None:
    """What an open page asks for once a second, with the curves of five minutes."""
    while not over.wait(1.0):
        for path in ("api/overview", f"api/pipelines/{NAME}", f"api/pipelines/{NAME}/series?seconds=300"):
            _get(url + path)
