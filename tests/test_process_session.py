"""A program is killed with all that it started, and with nothing else."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from holdfast.demo.demo_run import DemoRun
from holdfast.errors import EpochFailedError
from holdfast.process_session import ProcessSession


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited for too long"
        time.sleep(0.01)


def lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_children_whose_parent_is_gone_die_too_and_strangers_live(tmp_path: Path) -> None:
    log = tmp_path / "log"
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        # The inner shell ends at once, so its `sleep` has another parent by then.
        session = ProcessSession(["sh", "-c", "sh -c 'sleep 60 & echo $!'; sleep 60"], log, os.environ)
        until(lambda: log.exists() and log.read_text().strip().isdigit() and len(list(session.members())) == 3)
        orphan = int(log.read_text())
        assert session.exit_code() is None
        session.kill()
        assert list(session.members()) == []
        assert not lives(orphan)
        assert session.exit_code() == -9
        assert stranger.poll() is None
        session.kill()  # again does nothing
    finally:
        stranger.kill()
        stranger.wait()


def test_what_is_printed_is_appended_to_the_log(tmp_path: Path) -> None:
    command = ["sh", "-c", "pwd; echo $NAME >&2"]
    sessions = []
    for count in (1, 2):
        sessions.append(ProcessSession(command, tmp_path / "log", {"NAME": "me"}, tmp_path))
        until(lambda: [session.exit_code() for session in sessions] == [0] * len(sessions))
        assert len((tmp_path / "log").read_text().split()) == 2 * count
    assert (tmp_path / "log").read_text().split() == [str(tmp_path), "me"] * 2


def test_a_run_of_the_demo_that_ends_badly_shows_the_end_of_its_log(tmp_path: Path) -> None:
    run = DemoRun(tmp_path)
    run._session = ProcessSession(["sh", "-c", "echo there is no Java; exit 3"], tmp_path / "log", {"PATH": os.defpath})
    with pytest.raises(EpochFailedError, match=r"(?s)code 3.*there is no Java"):
        until(run.ended)
    assert run.recovery() is None
    run.end()
