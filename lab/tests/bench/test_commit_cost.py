"""What the benchmark of commits measures."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast_lab.bench import commit_cost
from holdfast_lab.bench.commit_cost import measure_commits, to_json


@pytest.mark.long
def test_a_change_is_small_however_many_partitions_there_are(tmp_path: Path) -> None:
    found = {(cost.partitions, cost.whole): cost for cost in measure_commits(tmp_path)}
    assert all(cost.cpu_ms > 0 for cost in found.values())
    most = max(commit_cost._PARTITIONS)
    assert found[most, False].record_bytes < found[most, True].record_bytes / 20
    assert found[most, False].line().startswith(f"{most} partitions, changes:")
    assert len(to_json(list(found.values()))["commits"]) == 4
