"""A cluster of one's own, for real: processes start, a pipeline survives what happens to them, and none is left."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from on_cluster import pipeline

import holdfast as hf
from harness import run
from holdfast.cli import main
from holdfast.errors import ClusterError
from holdfast.scale.cluster import Cluster

SCRIPT = Path(__file__).with_name("on_cluster.py")


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *arguments], text=True, stdout=subprocess.PIPE, start_new_session=True
    )


def members(session: int) -> list[psutil.Process]:
    """The living processes of a session: whatever the script started is one of them."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            if os.getsid(pid) == session and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(psutil.Process(pid))
    return found


def soon(true: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not true() and time.monotonic() < until:
        time.sleep(0.1)
    return true()


def end(process: subprocess.Popen[str]) -> None:
    for member in members(process.pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.slow
def test_a_pipeline_gives_the_same_while_executors_come_die_and_go(tmp_path: Path) -> None:
    script = start("run", str(tmp_path))
    try:
        printed, _ = script.communicate(timeout=280)
        assert script.returncode == 0
        assert soon(lambda: not members(script.pid), 5.0), "nothing is left running"
    finally:
        end(script)
    seen = json.loads(printed.splitlines()[-1])
    assert seen["slots"] == [2, 4, 2]
    assert len(seen["acquired"]) == len(seen["released"]) == 1
    assert seen["used"] == 1
    assert seen["rows left"], "all of it happened while there was something to do"
    expected = run(pipeline(hf.sink.collect())).sinks["out"]
    keys = ["window_start", "key"]
    shown = hf.read_output(tmp_path / "out", "parquet").select(expected.columns)
    assert shown.sort(keys).equals(expected.sort(keys))


@pytest.mark.long
@pytest.mark.spark
def test_a_cluster_ends_with_its_driver_even_when_that_is_killed() -> None:
    script = start("linger")
    assert script.stdout is not None
    told = json.loads(script.stdout.readline())
    try:
        assert len(members(script.pid)) >= 4, "driver, guardian, master, worker"
        os.kill(script.pid, signal.SIGKILL)
        assert soon(lambda: not members(script.pid), 15.0)
        assert not Path(told["directory"]).exists()
    finally:
        end(script)
        shutil.rmtree(told["directory"], ignore_errors=True)


@pytest.mark.spark
def test_a_cluster_ends_with_an_exception_in_its_block() -> None:
    pids = []

    def fail() -> None:
        with cluster:
            cluster.add_worker(wait=False)
            pids.append(cluster.workers()[0].pid)
            raise KeyError

    cluster = Cluster()
    with pytest.raises(KeyError):
        fail()
    assert not psutil.pid_exists(pids[0])
    assert not cluster.directory.exists()
    with pytest.raises(ClusterError, match="does not run"):
        cluster.add_worker()


@pytest.mark.parametrize(("cores", "memory"), [(0, "1g"), (2, "1 GB"), (2, "0g"), (2, "")])
def test_workers_that_spark_would_not_start_are_refused(cores: int, memory: str) -> None:
    with pytest.raises(ClusterError):
        Cluster(cores, memory)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--cluster", "2", "--master", "local"], "either --cluster or --master"),
        (["--pool", "1"], "--pool needs --cluster"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: list[str], why: str, tmp_path: Path) -> None:
    answer = CliRunner().invoke(main, ["run", "app.py", "--store", str(tmp_path), *options])
    assert answer.exit_code == 2
    assert why in answer.output
