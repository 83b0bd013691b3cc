"""`holdfast demo` as a user has it, and what its pipeline must put out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

from holdfast.cli.demo import _show_result
from holdfast.demo import ad_views

WITHOUT_THE_LAB = """
import sys
sys.modules["holdfast_lab"] = None
from holdfast.cli import main
main()
"""


@pytest.mark.spark
@pytest.mark.slow
def test_the_demo_survives_the_loss_of_all_its_processes_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_LAB, "demo"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill -9" in done.stdout
    assert "Recovery took" in done.stdout
    assert "The result equals the fault-free one: 800 rows" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_same_numbers_give_the_same_events() -> None:
    whole = ad_views.events(0, 1_000)
    assert whole.equals(pl.concat([ad_views.events(0, 400), ad_views.events(400, 1_000)]))


def test_every_view_is_expected_once() -> None:
    expected = ad_views.expected()
    assert expected.height == 8 * 100
    assert expected["views"].sum() == -(-ad_views.ROWS // 3)
    assert expected["last_view"].max() == (ad_views.ROWS - 1) // 3 * 3 // 100


@pytest.mark.parametrize("wrong", ["lost", "twice", "changed", "nothing"])
def test_a_result_that_differs_ends_with_code_1(wrong: str) -> None:
    expected = pl.DataFrame({"campaign": [1, 2], "window_end": [10, 10], "views": [3, 4], "last_view": [8, 9]})
    actual = {
        "lost": expected.head(1),
        "twice": pl.concat([expected, expected.head(1)]),
        "changed": expected.with_columns(pl.col("views") + 1),
        "nothing": pl.DataFrame(),
    }[wrong]
    console = Console(record=True, width=200)
    with pytest.raises(SystemExit) as ended:
        _show_result(console, actual, expected, 1.0)
    assert ended.value.code == 1
    assert "The result differs" in console.export_text()


def test_the_order_of_rows_does_not_matter() -> None:
    expected = pl.DataFrame({"campaign": [1, 2], "window_end": [10, 10], "views": [3, 4], "last_view": [8, 9]})
    _show_result(Console(record=True), expected.reverse().with_columns(extra=1), expected, 1.0)
