"""The state of a moment: the last retained epoch by then, also where most epochs in between are not retained."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

import holdfast as hf
from harness import Cut
from holdfast.epoch.record_change import records_of
from holdfast.errors import DeclarationError, UnknownStateError, WrongTypeError
from holdfast.meta import opened_meta
from holdfast.state.past_moment import seconds_at
from holdfast.store import DirectoryStore
from stateful import lasting_process
from stored import run_stored

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("at", "ago"),
    [
        ("1 h ago", 3600.0),
        ("90s ago", 90.0),
        ("2 days AGO", 172_800.0),
        (timedelta(minutes=5), 300.0),
        (datetime.fromtimestamp(NOW - 7, UTC), 7.0),
        (datetime.fromtimestamp(NOW - 7), 7.0),
        (datetime.fromtimestamp(NOW - 7).isoformat(), 7.0),
        (datetime.fromtimestamp(NOW - 7, UTC).isoformat(" "), 7.0),
    ],
)
def test_a_moment_is_said_in_several_ways(at: object, ago: float) -> None:
    assert seconds_at(at, NOW) == NOW - ago  # type: ignore[arg-type]


@pytest.mark.parametrize("at", ["yesterday", "soon ago", "-1 h ago", 4711, None])
def test_what_is_no_moment_is_refused(at: object) -> None:
    with pytest.raises(WrongTypeError, match="at="):
        seconds_at(at, NOW)  # type: ignore[arg-type]


def run_epochs(store: Path) -> dict[int, datetime]:
    """Three epochs, and when they were committed: one every ten minutes, the last one now."""
    run_stored(lasting_process(), store, Cut(rows=100, partitions=3), epochs=3)
    times = {epoch: time.time() - 600 * (3 - epoch) for epoch in (1, 2, 3)}
    with closing(sqlite3.connect(store / "meta.db")) as database, database:
        for epoch, at in times.items():
            database.execute("UPDATE epochs SET committed_at = ? WHERE epoch = ?", (at, epoch))
    return {epoch: datetime.fromtimestamp(at + 1e-3, UTC) for epoch, at in times.items()}


def test_the_state_of_a_moment_is_that_of_the_last_epoch_by_then(tmp_path: Path) -> None:
    for epoch, at in run_epochs(tmp_path).items():
        expected = hf.state(tmp_path, "kinds", "op", epoch=epoch)
        assert_frame_equal(hf.state(tmp_path, "kinds", "op", at=at), expected)
    assert_frame_equal(hf.state(tmp_path, "kinds", "op", at="5 min ago"), hf.state(tmp_path, "kinds", "op", epoch=2))
    assert_frame_equal(hf.state(tmp_path, "kinds", "op", at="0s ago"), hf.state(tmp_path, "kinds", "op"))


def test_a_moment_before_all_that_is_retained_is_told_with_what_there_is(tmp_path: Path) -> None:
    run_epochs(tmp_path)
    with pytest.raises(UnknownStateError, match=r"nothing of .* UTC is retained") as error:
        hf.state(tmp_path, "kinds", "op", at="1 h ago")
    assert "choose one of 1 to 3, which were committed from" in error.value.cure
    with pytest.raises(UnknownStateError, match="epoch 4711 is not retained") as error:
        hf.state(tmp_path, "kinds", "op", epoch=4711)
    assert "choose one of 1 to 3" in error.value.cure
    with pytest.raises(DeclarationError, match="both an epoch and a time are given"):
        hf.state(tmp_path, "kinds", "op", epoch=1, at="1 s ago")


def test_what_the_store_knows_and_does_not_retain_is_not_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that others go back to are known, and their files are gone."""
    times = run_epochs(tmp_path)
    with opened_meta(tmp_path) as meta:
        records = records_of(meta.commits("kinds"))
    gone, found = records[3].files() - records[2].files(), DirectoryStore.found
    assert gone
    monkeypatch.setattr(DirectoryStore, "found", lambda self, name: None if name in gone else found(self, name))
    with pytest.raises(UnknownStateError) as error:
        hf.state(tmp_path, "kinds", "op", epoch=9)
    assert "choose one of 1 to 2," in error.value.cure
    assert_frame_equal(hf.state(tmp_path, "kinds", "op", at=times[3]), hf.state(tmp_path, "kinds", "op", epoch=2))
