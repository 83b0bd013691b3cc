"""A pipeline on two hosts, as processes: a host is killed on purpose and new code takes over, and no row is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.connect.sinks.file_sink import read_output
from holdfast.dashboard.drill_report import DrillReport, kept_reports
from holdfast.dashboard.store_watch import Snapshot, StoreWatch
from holdfast.meta import MetaStore, RunNotes
from holdfast.replica.schemes import wheel
from holdfast.replica.shadow_report import kept_shadows
from holdfast.spans import duration

SHOP = Path(__file__).with_name("shop.py")
HOLDFAST = [sys.executable, "-m", "holdfast"]

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif("HOLDFAST_FUZZ" not in os.environ, reason="a long one: make test-long"),
]


class HostedShop:
    """`holdfast up` of the shop, with two hosts."""

    def __init__(self, place: Path) -> None:
        self.place, self.store = place, place / "store"
        self.watch = StoreWatch(self.store)
        (place / "shop.py").write_text(SHOP.read_text())
        with (place / "up.log").open("w") as log:
            self.up = subprocess.Popen(
                [*HOLDFAST, "up", "shop.py", "--hosts", "2", "--latency", "500ms", "--retain", "20 min",
                 "--detection", "2", "--beat", "500ms", "--store", "store"],
                cwd=place, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*HOLDFAST, *arguments, "--store", "store"], cwd=self.place, capture_output=True, text=True, check=False
        )

    def look(self) -> Snapshot:
        return self.watch.look()

    def until(self, condition: Callable[[Snapshot], object], what: str) -> None:
        deadline = time.monotonic() + 300
        while not condition(self.look()):
            assert time.monotonic() < deadline, f"no {what}:\n{(self.place / 'up.log').read_text()}"
            assert self.up.poll() is None, (self.place / "up.log").read_text()
            time.sleep(0.3)

    def until_whole(self) -> None:
        """Both hosts have what the schemes ask for, and epochs go on."""
        epochs = {part: status.epoch for part, status in self.look().statuses.items()}
        self.until(
            lambda found: (
                len(found.statuses) == 2
                and all(
                    status.replicas is not None and status.replicas.ready and status.epoch > epochs.get(part, 0) + 20
                    for part, status in found.statuses.items()
                )
            ),
            "hosts that are ready",
        )

    def close(self) -> None:
        self.up.send_signal(signal.SIGTERM)
        try:
            self.up.wait(120)
        except subprocess.TimeoutExpired:
            os.killpg(self.up.pid, signal.SIGKILL)
        for file in (self.store / "hosts").glob("*.process"):
            pid = int(file.read_text().rsplit(":", 2)[1])
            os.killpg(pid, signal.SIGKILL)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[HostedShop]:
    made = HostedShop(tmp_path)
    yield made
    made.close()


def kill_a_host(shop: HostedShop) -> DrillReport:
    told = shop.run("drill", "shop", "--kill", "host", "--fragment", "totals", "--yes", "--wait", "5 min", "--json")
    assert told.returncode == 0, told.stdout + told.stderr
    return kept_reports(shop.store)[0]


def check_what_was_learnt(shop: HostedShop) -> None:
    """The takeover is noted by its parts, and the next prediction rests on it."""
    shop.until(lambda found: found.agreed["shop.totals"].notes.recoveries, "note of the takeover")
    notes = shop.look().agreed["shop.totals"].notes
    noted = notes.recoveries[0]
    assert noted.noticed is not None
    assert noted.steps is not None
    assert noted.predicted is not None
    assert 0 < noted.noticed < noted.seconds
    assert 0 < noted.steps < noted.seconds
    assert notes.metrics is not None
    assert noted.scheme in notes.calibration.to_json()
    assert set(notes.predicted) == {scheme.name for scheme in wheel.SCHEMES}


def test_a_host_is_killed_and_new_code_takes_over_and_no_row_is_lost(shop: HostedShop) -> None:
    shop.until_whole()
    report = kill_a_host(shop)
    assert (report.passed, report.fragment, report.what[:4]) == (True, "shop.totals", "host")
    assert (report.intact, report.problem, report.differences) == (True, "", {})
    assert report.compared[0] <= report.epoch <= report.compared[-1]
    # How fast this machine is now, nobody can promise; but what is said of it is measured, and taken apart.
    assert report.predicted.seconds is not None
    assert report.seconds is not None
    assert report.predicted.text.endswith("by what its controller has measured")
    assert f"it took {duration(report.seconds)}, {duration(report.predicted.seconds)} were predicted" in report.verdict
    print(report.text())
    shop.until_whole()
    check_what_was_learnt(shop)
    [gap, *_] = [json.loads(text) for text in hf.events(shop.store, kind="gap")["details"]]
    assert gap["seconds"] > 0
    assert "drill" in set(hf.events(shop.store)["kind"])

    other = SHOP.read_text().replace('"amount") > 1.0', '"amount") > 40.0')
    (shop.place / "other.py").write_text(other)
    told = shop.run("up", "other.py", "--shadow", "--compare", "10", "--promote")
    assert told.returncode == 1, told.stdout + told.stderr
    assert "other.py: differs at epoch" in told.stdout
    assert kept_shadows(shop.store)["shop"][0].state == "differs"

    (shop.place / "new.py").write_text(SHOP.read_text().replace('"amount") > 1.0', '"amount") >= 2.0'))
    told = shop.run("up", "--shadow", "new.py", "--compare", "10", "--promote")
    assert told.returncode == 0, told.stdout + told.stderr
    assert "new.py: equal for 10 epochs" in told.stdout
    assert "new.py has taken over 'shop' on" in told.stdout
    meta = MetaStore(shop.store)
    primary = shop.look().agreed["shop.totals"].seats.primary
    assert primary is not None
    assert (RunNotes(meta).code("shop.totals", primary.host) or "").endswith("new.py:pipeline")
    meta.close()
    shop.until_whole()
    shop.up.send_signal(signal.SIGTERM)
    shop.up.wait(200)
    totals = read_output(shop.place / "out" / "totals")
    keys = totals.select("country", "window_start")
    assert keys.is_unique().all(), "a window is there twice"
    windows = keys["window_start"].unique().sort()
    assert windows.diff().drop_nulls().unique().to_list() == [1_000], "a window is missing"
