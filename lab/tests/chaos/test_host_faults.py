"""The plan of faults against hosts, the gate of their input, and hosts that cannot even say what happens."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

import holdfast as hf
from holdfast.connect.base import Slice
from holdfast.replica.schemes import Scheme, wheel
from holdfast_lab.chaos.gate import Gate, GatedSource
from holdfast_lab.chaos.host_faults import HOST_KINDS, default_kinds, plan_host_faults, step_of
from holdfast_lab.cli.chaos import chaos


def test_the_seed_fixes_the_plan() -> None:
    plan = plan_host_faults(48, HOST_KINDS, seed=4)
    assert plan == plan_host_faults(48, HOST_KINDS, seed=4)
    assert plan != plan_host_faults(48, HOST_KINDS, seed=5)
    assert {sum(fault.kind == kind for fault in plan) for kind in HOST_KINDS} == {48 // len(HOST_KINDS)}
    assert any(fault.in_haste for fault in plan)


def test_without_a_database_there_is_none_to_kill() -> None:
    assert not {"database", "partition"} & set(default_kinds(database=False, mixed=True))
    assert "turn" not in default_kinds(database=True, mixed=False)


@pytest.mark.parametrize("scheme", list(wheel.SCHEMES))
def test_the_wheel_is_turned_in_steps_that_exist(scheme: Scheme) -> None:
    reached = set()
    for number in range(100):
        before = scheme
        for step in step_of(scheme, number / 100):
            assert wheel.is_step(before, step)
            before = step
        reached.add(before)
    assert reached == set(wheel.SCHEMES) - {scheme}


def test_what_cannot_be_made_is_refused_at_once() -> None:
    told = CliRunner().invoke(chaos, ["cm1", "--hosts", "2", "--kinds", "database"])
    assert "--meta postgresql" in told.output
    told = CliRunner().invoke(chaos, ["cm1", "--hosts", "2", "--kinds", "driver"])
    assert "choose from primary" in told.output


def test_a_gate_decides_when_epochs_come_and_where_they_end(tmp_path: Path) -> None:
    gate = tmp_path / "gate.json"
    source = GatedSource(hf.source.replay(pl.DataFrame({"ts": [1, 2, 3]}), "ts", directory=tmp_path), gate, 10)
    Gate(1_000.0).write(gate)
    position = source.start()
    first = source.take(position, 500, 2)
    assert sum(piece.rows for piece in first.slices) == 10
    assert source.take(first.position, 500, 2).slices == (), "not yet"
    Gate(0.0, end=20).write(gate)
    second = source.take(first.position, 500, 2)
    assert sum(piece.rows for piece in second.slices) == 10
    assert not second.done
    assert source.take(second.position, 500, 2).done
    rows = sum(chunk.frame.height for chunk in source.read(Slice(0, 10, second.slices[0].where)))
    assert rows == second.slices[0].rows


EMITS = """
import resource, sys
from pathlib import Path
from holdfast.cli.host import _event_log
from holdfast.replica.host_events import HostReady, HostStarted, ReplicaTrouble

with _event_log("a", Path(sys.argv[1])) as emit:
    emit(HostStarted())
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, hard))
    for epoch in range(3):
        emit(ReplicaTrouble("f", "x" * 10_000))
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    emit(HostReady(1))
"""


def test_a_host_that_cannot_say_what_happens_goes_on(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        command = [sys.executable, "-c", EMITS, tmp_path / "events"]
        assert subprocess.run(command, stdout=log, stderr=subprocess.DEVNULL, check=False).returncode == 0
    assert "a ready" in (tmp_path / "log").read_text()
    assert json.loads((tmp_path / "events").read_text().splitlines()[0])["event"] == "started"
