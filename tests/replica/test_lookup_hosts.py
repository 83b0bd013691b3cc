"""Hosts that share a pipeline with a lookup table: all of them join with the version that the plan names."""

from __future__ import annotations

from pathlib import Path

import pytest
from replica_harness import pair

import holdfast as hf
from holdfast.graph.policies import DELTA, NONE, CheckpointPolicy
from holdfast.replica.schemes import Scheme
from holdfast.replica.schemes.active_replication import ACTIVE_REPLICATION
from holdfast.replica.schemes.active_standby import ACTIVE_STANDBY
from holdfast.replica.schemes.hot_standby import HOT_STANDBY
from planned_joins import expected, joining, write_table


@pytest.mark.parametrize(
    ("scheme", "policy"),
    [
        pytest.param(ACTIVE_REPLICATION, NONE, id="active replication, state in memory"),
        pytest.param(ACTIVE_STANDBY, DELTA, id="active standby"),
        pytest.param(HOT_STANDBY, DELTA, id="hot standby"),
    ],
)
def test_a_host_that_takes_over_joins_as_was_planned(scheme: Scheme, policy: CheckpointPolicy, tmp_path: Path) -> None:
    table, version = tmp_path / "names.parquet", 0
    write_table(table, version)

    def build(sink: hf.sink.Sink) -> hf.Pipeline:
        return joining(table, sink, epochs=40)

    with pair(build, None, tmp_path, scheme, checkpoint=policy, retain=1000, trigger=0.03) as hosts:
        hosts.until(hosts.ready, "a secondary")
        for epoch in (3, 6, 9):
            hosts.until(lambda epoch=epoch: hosts.epoch() >= epoch)  # type: ignore[misc]
            version += 1
            write_table(table, version)
        lost = hosts.primary()
        lost.lose()
        version += 1
        write_table(table, version)
        hosts.until_end()
        assert max(lost.committed) < hosts.epoch(), "the other host went on"
    rows, versions = expected(tmp_path / "store")
    assert sorted(hf.read_output(tmp_path / "out", "parquet").rows()) == sorted(rows)
    assert versions > 1
