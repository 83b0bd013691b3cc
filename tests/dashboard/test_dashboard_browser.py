"""The dashboard in a real browser, beside a real pipeline that is killed, started again and scaled."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.dashboard.drill_report import kept_reports

sync_api = pytest.importorskip("playwright.sync_api")

ROOT = Path(__file__).parents[2]
SHOP = Path(__file__).with_name("shop.py")
HOLDFAST = [sys.executable, "-m", "holdfast"]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FOUND = next((path for name in BROWSERS if (path := shutil.which(name))), None)
PICTURES = os.environ.get("HOLDFAST_PICTURES")
"""Where screenshots are kept: a directory of CI's artefacts, or docs/images."""

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(280),
    pytest.mark.skipif(FOUND is None, reason="needs Chromium"),
    pytest.mark.long,
]


SCREENS = (
    "overview", "graph", "epochs", "guarantee", "recovery", "state", "scaling", "hosts", "rows", "what-if", "drill",
    "events", "upgrade",
)  # fmt: skip
NAMELESS = """[...document.querySelectorAll("a, button, input, select, [role=button], [role=img]")]
  .filter((e) => !(e.getAttribute("aria-label") || e.textContent.trim() || e.closest("label")))
  .map((e) => e.outerHTML.slice(0, 80))"""
"""What a screen reader could not name."""


class Shop:
    """The pipeline in processes of its own, and the dashboard of its store."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.store = place / "store"
        self.run: subprocess.Popen[str] | None = None
        self.ui = self._start("ui", "--port", "0", "--store", str(self.store))
        assert self.ui.stdout is not None
        self.link = self.ui.stdout.readline().split()[1]
        self.url = self.link.partition("#")[0]

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*HOLDFAST, *arguments], cwd=self.place, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def start(self) -> None:
        with (self.place / "log").open("a") as log:
            self.run = subprocess.Popen(
                [*HOLDFAST, "run", str(SHOP), "--plain", "--latency", "200ms", "--retain", "60s", "--store",
                 str(self.store)],
                cwd=self.place, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        assert self.run is not None
        os.killpg(self.run.pid, signal.SIGKILL)
        self.run.wait()

    def stop(self) -> None:
        assert self.run is not None
        self.run.terminate()
        self.run.wait(60)

    def status(self) -> dict[str, Any]:
        told = subprocess.run(
            [*HOLDFAST, "status", "--json", "--store", str(self.store)], capture_output=True, text=True, check=True
        )
        return {found["pipeline"]: found for found in json.loads(told.stdout)}

    def close(self) -> None:
        if self.run is not None and self.run.poll() is None:
            self.kill()
        self.ui.terminate()
        self.ui.wait(20)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path)
    yield made
    made.close()


@pytest.fixture
def page() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=FOUND, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1360, "height": 860})
        opened.set_default_timeout(20_000)
        yield opened
        browser.close()


def until(check: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "it has not come to that in time"
        time.sleep(0.3)


def picture(page: Any, name: str) -> None:
    if PICTURES:
        Path(PICTURES).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(PICTURES) / f"{name}.png"))


def epochs(shop: Shop) -> int:
    return sum(json.loads(text)["count"] for text in hf.events(shop.store, kind="epochs")["details"])


def number(text: str) -> int:
    return int("".join(character for character in text if character.isdigit()))


def test_every_screen_shows_what_the_store_says_while_it_is_killed_and_scaled(shop: Shop, page: Any) -> None:
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(shop.link)
    page.get_by_text("No pipeline has run in this store yet").wait_for()

    shop.start()
    page.locator("td .name", has_text="shop").wait_for(timeout=60_000)
    page.locator(".pill.good", has_text="running").wait_for(timeout=120_000)
    until(lambda: epochs(shop) > 50)
    shop.kill()
    shop.start()
    until(lambda: hf.events(shop.store, kind="recovery").height == 2)
    until(lambda: epochs(shop) > 150)
    picture(page, "fleet")

    def show(screen: str) -> None:
        page.goto(f"{shop.url}#/p/shop/{screen}")
        page.locator("h1", has_text="shop").wait_for()
        page.locator(f'nav a[aria-current=page][href$="/{screen}"]').wait_for()  # the screen before has that head, too

    show("overview")
    page.locator(".chart canvas").nth(3).wait_for()
    until(lambda: number(page.locator(".tile .note").first.inner_text()) > 0)
    time.sleep(25.0 if PICTURES else 1.0)  # a picture of the curves needs some
    picture(page, "overview")

    show("graph")
    page.locator(".graph .node").nth(6).wait_for()
    assert {"orders", "paid", "paid_orders", "by_country", "totals"} <= set(
        page.locator(".graph .name").all_text_contents()
    )
    page.get_by_role("button", name="paid_orders, p-stream").press("Enter")
    page.get_by_text("shop.totals").wait_for()  # who reads it
    picture(page, "graph")

    show("epochs")
    page.locator(".bar").nth(1).wait_for()
    page.get_by_role("button", name="Earlier").click()  # from now on it stands still
    lanes = page.locator(".waterfall .lane").count()
    told = page.locator("section", has_text="One epoch, by worker").locator("header .soft").inner_text()
    shown = number(told.partition(", ")[0])  # "epoch 1,234, 12:00:01, 80 rows: ..."
    traces = [json.loads(text)["slowest"] for text in hf.events(shop.store, kind="epochs")["details"]]
    assert lanes in {1 + len(trace["tasks"]) for trace in traces if trace["epoch"] == shown}
    picture(page, "epochs")

    show("guarantee")
    assert "20.0 s" in page.locator(".promise").inner_text()
    longest = max(json.loads(text)["seconds"] for text in hf.events(shop.store, kind="recovery")["details"])
    measured = page.locator(".promise .big").nth(2).inner_text()
    assert measured in (f"{longest:.2f} s", f"{1_000 * longest:.0f} ms", f"{longest:.1f} s")
    page.locator(".pill.good", has_text="guarantee kept").wait_for()
    page.get_by_text("0 of 2 recoveries took longer than 20.0 s").wait_for()
    picture(page, "guarantee")

    show("recovery")
    assert page.locator("tbody tr").count() == 2
    replayed = {json.loads(text).get("replayed", 0) for text in hf.events(shop.store, kind="recovery")["details"]}
    assert {number(row.locator("td").last.inner_text()) for row in page.locator("tbody tr").all()} == replayed
    picture(page, "recovery")

    show("state")
    page.locator("input[type=range]").wait_for()
    page.get_by_placeholder("country=DE, or any text").fill("country=DE")
    page.get_by_role("button", name="Search").click()
    found = page.locator("section", has_text="State of by_country")
    until(lambda: {cell.inner_text() for cell in found.locator("tbody tr td:first-child").all()} == {"DE"})
    levels = page.locator("section", has_text="those of similar size are merged")
    parts = shop.status()["shop.totals"]["state"]["by_country"]["parts"]
    assert levels.locator("tbody tr").count() == sum(len(part["levels"]) for part in parts)
    picture(page, "state")

    show("scaling")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_label("partitions of by_country").fill("3")
    page.get_by_role("button", name="Scale").last.click()
    page.get_by_text("by_country has 3 partitions from epoch").wait_for()
    until(lambda: shop.status()["shop.totals"]["state"]["by_country"]["partitions"] == 3)
    assert {"action", "scale"} <= set(hf.events(shop.store)["kind"])
    page.get_by_text("2 → 3 partitions").wait_for()
    until(lambda: page.locator(".keyspace").last.locator("i").count() == 3)
    ends = [part["end"] for part in shop.status()["shop.totals"]["state"]["by_country"]["parts"]]
    told = page.locator(".keyspace").last.get_attribute("aria-label")
    assert all(f"to {100 * end:.0f} %" in told or f"to {100 * end:.1f} %" in told for end in ends)
    picture(page, "scaling")

    show("drill")
    page.get_by_label("what to kill").select_option(label="a worker of totals")
    page.get_by_role("button", name="Kill a worker").click()
    page.locator(".pill.good", has_text="passed").wait_for(timeout=90_000)
    [report] = kept_reports(shop.store)
    page.get_by_text(report.verdict).last.wait_for()
    assert (report.fragment, report.passed) == ("shop.totals", True)
    assert "drill" in set(hf.events(shop.store)["kind"])
    picture(page, "drill")

    screens = ("hosts", "one process runs it"), ("what-if", "the process dies"), ("events", "recovered")
    for screen, text in (*screens, ("upgrade", "No new code has followed it yet")):
        show(screen)
        if screen == "hosts":
            assert shop.run is not None
            page.get_by_role("cell", name=str(shop.run.pid), exact=True).wait_for()
        if screen == "events":  # those of epochs are by far the most
            page.get_by_label("kind").select_option("recovery")
        page.get_by_text(text).first.wait_for()
        picture(page, screen)
    show("rows")
    page.get_by_text("late rows").first.wait_for()
    picture(page, "rows")

    shop.stop()
    page.locator(".pill", has_text="stopped").wait_for()
    page.goto(f"{shop.url}#/")
    show("overview")
    totals = shop.status()["shop.paid_orders"]["totals"]
    until(lambda: number(page.locator(".tile .note").first.inner_text()) == totals["read"])

    page.get_by_role("button", name="switch between light and dark").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    show("graph")
    picture(page, "dark")
    page.keyboard.press("4")
    page.locator(".promise").wait_for()
    page.set_viewport_size({"width": 390, "height": 800})
    for screen in SCREENS:
        show(screen)
        page.locator("main .card, main .tile").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), screen
        assert page.evaluate(NAMELESS) == [], screen
    show("overview")
    picture(page, "phone")
    first = page.locator("a, button, input, select, [tabindex]").first
    assert first.inner_text() == "to the content"  # the first link leads past the menu
    first.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    assert wrong == []
