"""Putting a run of a fragment together: what was opened for one that cannot be is let go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import holdfast as hf
from harness import Cut, CutPace, Noted, options, platform
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.engine.options import RunOptions
from holdfast.epoch.report import EpochReport
from holdfast.errors import LeaseLostError
from holdfast.meta import MetaStore


class Unreachable(InProcessPlatform):
    def sees_volatile(self, *_: Any) -> bool:
        raise ConnectionError


@pytest.mark.parametrize("given", [False, True])
def test_the_meta_store_of_a_run_that_cannot_begin_is_closed(
    given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = hf.Pipeline("p")
    pipeline.source("rows", hf.source.memory(pl.DataFrame({"k": [1]}))).sink("out", hf.sink.collect())
    closed: list[MetaStore] = []
    real = MetaStore.close
    monkeypatch.setattr(MetaStore, "close", lambda self: (closed.append(self), real(self)))
    meta = MetaStore(tmp_path, sync=False) if given else None
    with pytest.raises(ConnectionError):
        FragmentRun(pipeline, Unreachable(), RunOptions(store=tmp_path, durable=False), meta=meta)
    assert len(closed) == 1
    assert meta in (None, closed[0])


@pytest.mark.parametrize("where", ["plan", "launch"])
def test_a_commit_is_reported_even_if_the_next_epoch_cannot_be_made(where: str, tmp_path: Path) -> None:
    pipeline = hf.Pipeline("p")
    pipeline.source("rows", hf.source.memory(pl.DataFrame({"k": [1, 2, 3]}))).sink("out", hf.sink.collect())
    cut, reports = Cut(rows=1), list[EpochReport]()
    run = FragmentRun(
        pipeline, platform(cut, lambda loop: None), options(tmp_path, cut), observer=Noted(reports), pace=CutPace(cut)
    )
    planner = run.loop.planner
    real = getattr(planner, where)

    def fail(*given: Any, **named: Any) -> Any:
        if run.machine.committed == 2:
            raise LeaseLostError("another host runs it", cure="none")
        return real(*given, **named)

    setattr(planner, where, fail)
    with pytest.raises(LeaseLostError):
        run.live()
    assert [report.epoch for report in reports] == [1, 2]
