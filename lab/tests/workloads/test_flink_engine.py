"""Flink itself, where it is installed: its output is the oracle's, and a run is measured and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from holdfast_lab.workloads import first_difference, oracle, query
from holdfast_lab.workloads.flink_cluster import flink_session
from holdfast_lab.workloads.flink_install import find_flink
from holdfast_lab.workloads.flink_run import flink_results

pytestmark = [
    pytest.mark.skipif(find_flink() is None, reason="Flink is not installed: `holdfast experiment queries` does it"),
    pytest.mark.slow,
]


def test_queries_give_the_oracles_result_and_the_process_ends(tmp_path: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    with flink_session(tmp_path / "flink") as session:
        for name, rows in (("CM1", 600), ("NQ", 500)):
            events = query(name).dataset.load(rows)
            expected = oracle(name, events)
            actual = flink_results(session.fresh(), tmp_path / name, name, events, expected.schema)
            assert expected.height
            assert first_difference(actual, expected) is None
    assert set(psutil.Process().children(recursive=True)) <= before
