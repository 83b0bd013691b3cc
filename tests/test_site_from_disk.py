"""The site of the documentation, opened from disk in a real browser: its search works without a server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sync_api = pytest.importorskip("playwright.sync_api")

ROOT = Path(__file__).parents[1]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FOUND = next((path for name in BROWSERS if (path := shutil.which(name))), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(FOUND is None, reason="needs Chromium"),
    pytest.mark.skipif("HOLDFAST_FUZZ" not in os.environ, reason="a long one: make test-long"),
]


def test_the_search_finds_a_page_without_a_server() -> None:
    subprocess.run([sys.executable, "docs/docs_site.py"], cwd=ROOT, check=True, capture_output=True)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=FOUND, args=["--no-sandbox"])
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((ROOT / "build/site/index.html").as_uri())
        page.keyboard.press("/")
        page.get_by_placeholder("Search").first.wait_for()
        page.keyboard.type("equal epochs shadow")
        page.get_by_text("results").first.wait_for(timeout=30_000)
        page.get_by_text("Upgrading a pipeline").locator("visible=true").first.wait_for(timeout=30_000)
        assert [url for url in asked if not url.startswith(("file:", "data:", "blob:", "about:"))] == []
        browser.close()
