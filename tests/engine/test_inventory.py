"""What tasks have written is looked for before an epoch is committed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import harness
import holdfast as hf
from harness import Cut, run_fragments
from holdfast.engine import inventory
from holdfast.engine.inventory import check_written
from holdfast.epoch.messages import commits_of
from holdfast.errors import UnseenFileError
from holdfast.sink import Owner


def test_every_file_that_tasks_name_must_be_there_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """State, p-streams and the files of sinks: each is hidden once, and once cut short."""
    monkeypatch.setattr(inventory, "_PATIENCE_SECONDS", 0.0)
    pipeline = hf.Pipeline("p")
    events = pl.DataFrame({"ts": range(60), "k": [n % 3 for n in range(60)]})
    rows = pipeline.source("in", hf.source.memory(events), event_time="ts", time_unit="s").persist(
        "kept", push_up=False
    )
    sink = hf.sink.parquet(tmp_path / "out")
    sink.attach(Owner("store", "p", "out"))
    rows.key_by("k").window(hf.window.tumbling("10s"), name="counts").agg(n=hf.count()).sink("out", sink)
    commit = harness._Run._commit
    missed: list[tuple[str | None, str]] = []

    def checked(run: Any, epoch: int, plan: Any, messages: Any) -> None:
        def check() -> None:
            check_written(run._program, epoch, messages, run._tiers.at("stable"), run._begin.files())

        check()
        files = {path for head in commits_of(messages) for _, _, [path, *_] in inventory._written(
            run._program, head, run._tiers.at("stable"), run._begin.files())}  # fmt: skip
        for file in files:
            hidden = file.with_name("hidden")
            os.rename(file, hidden)
            with pytest.raises(UnseenFileError, match=f"has written {file}, which is not there") as caught:
                check()
            file.write_bytes(hidden.read_bytes()[:-1])
            with pytest.raises(UnseenFileError, match="bytes there"):
                check()
            os.replace(hidden, file)
            missed.append((caught.value.operator, file.suffix))
            assert caught.value.epoch == epoch
        commit(run, epoch, plan, messages)

    monkeypatch.setattr(harness._Run, "_commit", checked)
    run_fragments(pipeline, Cut(rows=25))
    assert set(missed) == {("kept", ".arrow"), ("counts", ".arrow"), ("out", ".parquet")}
