"""What a person reads while a pipeline runs."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import polars as pl
import pytest
from rich.console import Console

import holdfast as hf
from holdfast.connect.time_range import END_OF_TIME
from holdfast.engine.observer import Observers
from holdfast.engine.recovery import RecoveryReport
from holdfast.engine.summary import Tally
from holdfast.epoch.report import EpochReport
from holdfast.epoch.task_commit import PartitionWork
from holdfast.ui.figures import amount, duration, moment, quantile, size
from holdfast.ui.progress import Progress
from holdfast.ui.terminal_graph import TerminalGraph
from holdfast.ui.views import LiveView, PlainView

REPORT = EpochReport(
    fragment="p", epoch=7, rows=1_000, entered=1_000, started=100.0, committed=100.2, seconds=0.2,
    output_rows=5, late_rows=0, bad_rows=0,
    state_rows=40, state_bytes=4_096, written_bytes=900, streamed_rows=0,
    streamed_bytes=0, greatest={"events": 2_000}, watermark=2_000, lag=12,
)  # fmt: skip


def commits(count: int, every: float) -> list[EpochReport]:
    return [replace(REPORT, epoch=7 + i, started=100 + i * every, committed=100.2 + i * every) for i in range(count)]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (amount(950), "950"),
        (amount(12_345), "12.3 k"),
        (amount(200_000_000), "200 M"),
        (amount(999_999), "1.0 M"),
        (size(1_500_000), "1.5 MB"),
        (duration(0.085), "85 ms"),
        (duration(1.25), "1.25 s"),
        (duration(200), "3 min 20 s"),
        (moment(1_700_000_000_000, "ms"), "2023-11-14 22:13:20"),
        (moment(12_500, "ms"), "12.500 s"),
        (moment(END_OF_TIME, "us"), "end of input"),
        (moment((1 << 61) + 1, "ns"), "2043-01-25 23:56:49.213"),
        (moment(None, "s"), "-"),
    ],
)
def test_figures_are_short(shown: str, expected: str) -> None:
    assert shown == expected


def test_quantiles_are_values_that_occurred() -> None:
    assert quantile([], 0.5) is None
    assert quantile([2.0, 1.0], 0.5) == 1.0
    assert quantile([float(i) for i in range(1, 101)], 0.95) == 95.0


def test_the_rate_is_that_of_the_last_ten_seconds() -> None:
    progress = Progress("p", "ms", began=90.0)
    for report in commits(100, every=0.5):
        progress.add(report)
    now = 100.2 + 99 * 0.5
    assert progress.rate(now) == pytest.approx(2_000, rel=0.1)
    assert progress.rate(now + 60) == 0
    assert progress.summary.rows == 100_000


def test_plain_lines_come_at_most_once_a_second() -> None:
    now = [100.0]
    lines: list[str] = []
    tally = Tally("p", clock=lambda: now[0])
    with PlainView(Progress("p", "ms", began=100.0), lines.append, clock=lambda: now[0]) as view:
        both = Observers(tally, view)
        both.started({"p": 6})
        for report in commits(30, every=0.1):
            now[0] = report.committed
            both.epoch_committed(report)
        both.ended(tally.end({"p": "its sources ended"}))
    assert "p started: resuming after epoch 6" in lines[0]
    assert [line for line in lines if " epoch 7," in line]
    assert 4 <= len(lines) <= 7
    assert "epoch 36," in lines[-2]  # the last epoch is always told
    end = "p ended: 30 epochs, 30,000 rows in, 150 rows out in 3.10 s; last committed epoch 36; its sources ended"
    assert lines[-1].endswith(end)


def test_late_and_bad_rows_are_told_when_there_are_some() -> None:
    lines: list[str] = []
    with PlainView(Progress("p", "ms", 100.0), lines.append, clock=lambda: 101.0) as view:
        view.epoch_committed(replace(REPORT, late_rows=3))
    assert "late rows 3" in lines[0]
    assert "bad rows" not in lines[0]


def test_the_live_view_shows_all_figures() -> None:
    text = StringIO()
    console = Console(file=text, width=120, force_terminal=False)
    view = LiveView(Progress("clicks", "ms", 100.0), console, clock=lambda: 101.0)
    view.started({"clicks": 0})
    view.epoch_committed(REPORT)
    console.print(view.panel())
    shown = text.getvalue()
    for word in ("clicks", "rate", "rows/s", "epoch p50", "200 ms", "watermark", "2 s", "lag", "12 rows", "4.1 kB"):
        assert word in shown


def test_the_live_view_shows_the_graph_and_the_guarantee() -> None:
    pipeline = hf.Pipeline("clicks", guarantee=hf.Guarantee(recovery="5s"))
    rows = hf.source.memory(pl.DataFrame({"at": [1], "page": ["/"]}))
    read = pipeline.source("visits", rows, event_time="at", time_unit="ms")
    counts = read.key_by("page").window(hf.window.tumbling("1s"), name="by_page").agg(n=hf.count())
    counts.sink("pages", hf.sink.collect())
    text = StringIO()
    console = Console(file=text, width=120, force_terminal=False)
    view = LiveView(Progress("clicks", "ms", 100.0), console, clock=lambda: 101.0, graph=TerminalGraph.of(pipeline))
    view.epoch_committed(replace(REPORT, read_by={"visits": 1_000}, work={"by_page": (PartitionWork(0.1, 5),) * 2}))
    console.print(view.panel())
    shown = text.getvalue()
    line = next(line for line in shown.splitlines() if "visits" in line)
    assert line.index("visits") < line.index("─▶") < line.index("by_page") < line.index("pages")
    assert "2 partitions, 50% busy" in shown
    assert "5.0 k rows/s" in shown
    assert "exactly once · recovery within 5.00 s · 400 ms if it failed now · nothing has failed" in shown
    view.recovered(RecoveryReport("clicks", 7, {"data": 6.0, "replay": 0.5}, 1, 1_000, 1, {}))
    text.truncate(0)
    console.print(view.panel())
    assert "longest recovery 6.50 s" in text.getvalue()
    narrow = Console(file=StringIO(), width=30)
    assert TerminalGraph.of(pipeline).table([], narrow.width) is None


@pytest.mark.parametrize(
    ("fragment", "replayed", "expected"),
    [
        ("campaigns", 1, "campaigns recovered after epoch 7 in"),
        ("campaigns.totals", 2, "campaigns recovered totals after epoch 7 in"),
    ],
)
def test_a_recovery_is_told_in_good_english(fragment: str, replayed: int, expected: str) -> None:
    lines: list[str] = []
    view = PlainView(Progress("campaigns", "ms", began=90.0), lines.append)
    view.recovered(RecoveryReport(fragment, 7, {"replay": 0.5}, 1, 1_000, replayed, {}))
    assert expected in lines[-1]
    assert " 1 p-unit of" in lines[-1]
    assert (" 1 epoch run again" if replayed == 1 else " 2 epochs run again") in lines[-1]
