"""A short soak in one process: all rows come out once, and what is held does not grow with the epochs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.engine.fragment_runs import FragmentsRun
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.engine.options import RunOptions
from holdfast_lab.soak import soak_run
from holdfast_lab.soak.soak_pipeline import EPOCH_ROWS, SoakReader, soak_pipeline
from holdfast_lab.soak.soak_run import Soak
from holdfast_lab.soak.soak_trend import trends

EPOCHS = 2_000 if os.environ.get("HOLDFAST_FUZZ") else 60
SAMPLES = 20


def test_many_epochs_lose_no_row_and_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak_run, "SAMPLES", SAMPLES)
    store = tmp_path / "store"
    soak = Soak(tmp_path, store, EPOCHS, SoakReader(tmp_path), lambda line: None)
    options = RunOptions(
        store=store, durable=False, least_rows=EPOCH_ROWS, most_rows=EPOCH_ROWS, poll=0.002, max_epochs=EPOCHS, retain=4
    )
    FragmentsRun(soak_pipeline(tmp_path), InProcessPlatform(), options, observer=soak).run()
    soak.reader.take()
    assert soak.reader.wrong(EPOCHS * EPOCH_ROWS) == 0
    assert EPOCHS in soak.fragments.values()
    assert len(soak.samples) == SAMPLES
    # Other processes that may be there, such as a session's, are not of this run.
    for kind, most in {"files": 100, "rows": 100, "open files driver": 20}.items():
        found = [trend for trend in trends(soak.samples) if trend.name.startswith(kind)]
        early, late = sum(trend.early for trend in found), sum(trend.late for trend in found)
        assert late <= early + most, f"{kind}: {early:.0f}, then {late:.0f}, of {EPOCHS} epochs"
