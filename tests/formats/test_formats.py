"""Stores of every version there was can still be read: a format change that breaks them is seen here."""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import holdfast as hf

HERE = Path(__file__).parent
EVENTS = pl.DataFrame(
    {
        "ts": range(0, 20_000, 50),
        "who": [f"user-{i % 7}" if i % 11 else None for i in range(400)],
        "v": [float(i % 13) for i in range(400)],
    }
)
SEEN = EVENTS[:200]


@pytest.fixture(params=sorted(path.name for path in HERE.glob("store-*")))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(HERE / request.param, tmp_path / "store"))


def test_keyed_state_of_an_old_store_is_read(store: Path) -> None:
    expected = SEEN.group_by("who").agg(total=pl.col("v").sum())
    assert_frame_equal(hf.read_state(store, "kept", "totals"), expected, check_row_order=False)


def test_window_state_of_an_old_store_is_read(store: Path) -> None:
    state = hf.read_state(store, "kept", "windows")
    counts = state.group_by("who", "pane").agg(n=pl.col("n.n").sum())
    expected = SEEN.group_by("who", (pl.col("ts") // 10_000).alias("pane")).agg(n=pl.len().cast(pl.Int64))
    assert_frame_equal(counts, expected, check_row_order=False)
