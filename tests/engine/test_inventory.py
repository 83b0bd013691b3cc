"""What tasks have written is looked for before an epoch is committed."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import pytest

import holdfast as hf
from harness import Commits, Cut, Ran, run_fragments
from holdfast.engine import inventory
from holdfast.engine.inventory import check_written
from holdfast.engine.loop import Loop
from holdfast.epoch.messages import commits_of
from holdfast.errors import UnseenFileError


def test_every_file_that_tasks_name_must_be_there_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """State, p-streams and the files of sinks: each is hidden once, and once cut short."""
    monkeypatch.setattr(inventory, "_PATIENCE_SECONDS", 0.0)
    pipeline = hf.Pipeline("p")
    events = pl.DataFrame({"ts": range(60), "k": [n % 3 for n in range(60)]})
    rows = pipeline.source("in", hf.source.memory(events), event_time="ts", time_unit="s").persist(
        "kept", push_up=False
    )
    sink = hf.sink.parquet(tmp_path / "out")
    rows.key_by("k").window(hf.window.tumbling("10s"), name="counts").agg(n=hf.count()).sink("out", sink)
    missed: list[tuple[str | None, str]] = []

    def look(loop: Loop, ran: Ran) -> None:
        committer, epoch = loop.committer, ran.epoch
        state, known = committer.run.tiers.at("stable"), committer.run.progress.begin.files()

        def check() -> None:
            check_written(committer.run.program, epoch, ran.messages, state, known)

        check()
        files = {
            written.path
            for head in commits_of(ran.messages)
            for _, [written, *_] in inventory._written(committer.run.program, head, state, known)
        }
        for file in files:
            hidden = file.with_name("hidden")
            os.rename(file, hidden)
            with pytest.raises(UnseenFileError, match=f"wrote {file}, which is not there") as caught:
                check()
            file.write_bytes(hidden.read_bytes()[:-1])
            with pytest.raises(UnseenFileError, match="bytes there"):
                check()
            os.replace(hidden, file)
            missed.append((caught.value.operator, file.suffix))
            assert caught.value.epoch == epoch

    run_fragments(pipeline, Cut(rows=25), follow=Commits(before=look))
    assert set(missed) == {("kept", ".segment"), ("counts", ".segment"), ("out", ".parquet")}
