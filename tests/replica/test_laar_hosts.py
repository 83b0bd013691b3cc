"""LAAR on hosts that are processes: the rates move the replicas, and kill -9 of the host that commands loses nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil

from holdfast.experiment.laar_hosts import FRAGMENTS, events_of, example_descriptor, ran_on_hosts
from holdfast.experiment.laar_pipeline import Example

LOW, HIGH = 8.0, 24.0


def test_the_host_that_commands_is_killed_at_its_peak(tmp_path: Path) -> None:
    """The plan is that of the paper; the PEs have little to do, so that it is about commands and seats alone."""
    example = Example(str(tmp_path / "run" / "out"), ((12.0, LOW), (14.0, HIGH), (30.0, LOW)), 0.001, 0.5, 0.6)
    killed: list[str] = []

    def strike(place: Path) -> None:
        told = [each for each in events_of(place) if each["event"] == "configuration" and each["to"] == "High"]
        if told and not killed:
            killed.append(told[0]["host"])
            root = psutil.Process(told[0]["pid"])
            for each in (root, *root.children(recursive=True)):
                os.kill(each.pid, signal.SIGKILL)

    run = ran_on_hosts(
        tmp_path / "run", example, example_descriptor(LOW, HIGH, 0.03, 0.6, 0.6), lambda text: None, strike
    )
    assert (run.tuples, run.total) == (672, 672), "nothing is lost, and nothing doubled"
    moves = [(each["to"], each["host"]) for each in run.decisions()]
    assert killed
    assert ("High", killed[0]) in moves
    after = moves[moves.index(("High", killed[0])) + 1 :]
    assert [to for to, _ in after][-1:] == ["Low"], f"who commands next goes on from there: {moves}"
    assert after[0][1] != killed[0]
    low, peak = (
        {tuple(sorted(each["active"].split(", "))) for each in run.told("command", name)} for name in FRAGMENTS
    )
    assert {len(each) for each in low | peak} == {1, 2}, "both were alone at times, and both were not"
