"""What a run says that it has done."""

from __future__ import annotations

from dataclasses import replace

import pytest

import holdfast as hf
from holdfast.engine.fragment_runs import end_reason
from holdfast.engine.options import RunOptions
from holdfast.engine.summary import EndReason, Tally

REPORT = hf.EpochReport(
    fragment="p", epoch=7, rows=1_000, entered=1_000, started=100.0, committed=100.2, seconds=0.2,
    output_rows=5, late_rows=0, bad_rows=0, state_rows=40, state_bytes=4_096, written_bytes=900, streamed_rows=0,
    streamed_bytes=0, greatest={"events": 2_000}, watermark=2_000, lag=12,
)  # fmt: skip
RECOVERY = hf.RecoveryReport("p", 6, {"replay": 0.5}, 1, 1_000, 1, {})


def test_a_run_is_added_up_while_it_runs_and_at_its_end() -> None:
    now = [10.0]
    tally = Tally("p", clock=lambda: now[0])
    tally.started({"p": 6})
    tally.recovered(RECOVERY)
    tally.epoch_committed(REPORT)
    tally.epoch_committed(replace(REPORT, epoch=8, entered=1, rows=1, late_rows=2, bad_rows=1, committed=101.0))
    now[0] = 12.5
    running = tally.summary()
    assert (running.state, running.seconds, running.epochs, running.rows) == ("running", 2.5, 2, 1_001)
    tally.stopping()
    assert tally.summary().state == "stopping"
    now[0] = 13.0
    ended = tally.end({"p": "it was stopped"})
    now[0] = 99.0
    tally.stopping()
    assert tally.summary() == ended
    fragment = ended.fragments["p"]
    assert (fragment.last_epoch, fragment.epochs, fragment.recovery, fragment.committed) == (8, 2, RECOVERY, 101.0)
    assert (ended.output_rows, ended.late_rows, ended.bad_rows, ended.committed) == (10, 2, 1, 101.0)
    assert str(ended) == (
        "p ended: 2 epochs, 1,001 rows in, 10 rows out, 2 late rows, 1 bad row in 3.00 s; last committed epoch 8;"
        " it was stopped"
    )


def test_one_of_a_thing_is_told_in_the_singular() -> None:
    tally = Tally("p")
    tally.epoch_committed(replace(REPORT, rows=1, entered=1, output_rows=1))
    assert "p running: 1 epoch, 1 row in, 1 row out in" in str(tally.summary())


def test_rows_that_several_fragments_read_are_counted_once() -> None:
    """Those from outside, by whoever reads them; pushed ones, which each reader counts; else all that was read."""
    tally = Tally("p")
    tally.started({"p.one": 0, "p.two": 4})
    tally.epoch_committed(replace(REPORT, fragment="p.one", rows=30, entered=0, received=30))
    tally.epoch_committed(replace(REPORT, fragment="p.two", rows=20, entered=0, received=20))
    assert tally.summary().rows == 30
    tally.epoch_committed(replace(REPORT, fragment="p.two", rows=9, entered=7))
    assert tally.summary().rows == 37
    ended = tally.end({"p.one": "max_epochs was reached", "p.two": "nothing was left to read"})
    assert str(ended).endswith(
        "last committed epochs one 7, two 7; one: max_epochs was reached; two: nothing was left to read"
    )
    inner = Tally("p")
    inner.epoch_committed(replace(REPORT, fragment="p.two", rows=20, entered=0))
    assert inner.summary().rows == 20


def test_a_run_that_never_began_and_one_that_failed_say_so() -> None:
    assert str(hf.RunSummary("p", "ended")) == "p ended before its first epoch"
    tally = Tally("p")
    tally.started({"p": 6})
    failed = tally.fail("the disk is full")
    assert (failed.state, failed.problem) == ("failed", "the disk is full")
    assert str(failed).startswith("p failed: 0 epochs, 0 rows in, 0 rows out in")
    assert str(failed).endswith("last committed epoch 6; the disk is full")


@pytest.mark.parametrize(
    ("options", "done", "seconds", "stopped", "expected"),
    [
        (RunOptions(), True, 1.0, False, "its sources ended"),
        (RunOptions(max_epochs=5), True, 1.0, True, "its sources ended"),
        (RunOptions(max_epochs=5), False, 1.0, True, "it was stopped"),
        (RunOptions(max_epochs=5, until_idle=True), False, 1.0, False, "max_epochs was reached"),
        (RunOptions(max_epochs=6, until_idle=True), False, 1.0, False, "nothing was left to read"),
        (RunOptions(max_seconds=3), False, 2.99, False, "the time was up"),
        (RunOptions(max_seconds=3, until_idle=True), False, 2.0, False, "nothing was left to read"),
        (RunOptions(max_seconds=3, until_idle=True), False, 3.1, False, "the time was up"),
    ],
)
def test_why_a_fragment_has_ended(
    options: RunOptions, done: bool, seconds: float, stopped: bool, expected: EndReason
) -> None:
    assert end_reason(options, {"in": done}, 5, seconds, stopped=stopped) == expected
