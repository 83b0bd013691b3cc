"""How long commits pause after a kill."""

from __future__ import annotations

import pytest

from holdfast_lab.bench.worker_recovery import EXECUTOR, WORKER, WorkerRecovery, measure_pauses


def test_a_pause_is_the_longest_gap_after_the_kill_less_the_usual_one() -> None:
    commits = [at / 100 for at in range(100)] + [1.2 + at / 100 for at in range(100)]
    [pause, none], usual = measure_pauses([0.995, 1.6], commits, 0.4)
    assert usual == pytest.approx(0.01)
    assert pause == pytest.approx(1.2 - 0.995 - 0.01)
    assert none == pytest.approx(0.0, abs=1e-9)


def test_a_commit_right_after_the_kill_does_not_hide_the_pause() -> None:
    commits = [at / 100 for at in range(100)] + [1.5, 1.51, 1.52]
    [pause], _ = measure_pauses([0.985], commits, 0.5)
    assert pause == pytest.approx(1.5 - 0.99 - 0.01)


def test_the_bar_is_missed_where_no_crew_has_run_to_the_end() -> None:
    assert WorkerRecovery(WORKER, (0.1,), 0.01, crew=True).to_json()["bars"][0]["ok"]
    assert not WorkerRecovery(WORKER, (0.4,), 0.01, crew=True).to_json()["bars"][0]["ok"]
    assert not WorkerRecovery(WORKER, (0.1,), 0.01, crew=False).to_json()["bars"][0]["ok"]
    assert WorkerRecovery(EXECUTOR, (2.9,), 0.01, crew=True).to_json()["bars"][0]["ok"]
