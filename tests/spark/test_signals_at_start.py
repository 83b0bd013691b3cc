"""Ctrl-C and SIGTERM at any moment of the start: everything ends, nothing is left running, no traceback.

The processes are real. In CI the signals come at moments that can be waited for; the long test sends them at many.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = """
import polars as pl
import holdfast as hf

def numbers(start: int, stop: int) -> pl.DataFrame:
    i = pl.int_range(start, stop, dtype=pl.Int64, eager=True)
    return pl.DataFrame({"time": i // 100, "value": i})

schema = {"time": pl.Int64, "value": pl.Int64}
pipeline = hf.Pipeline("numbers")
source = pipeline.source("numbers", hf.source.generator(numbers, schema, rate=500), event_time="time", time_unit="s")
source.key_by().window(hf.window.tumbling("1s")).agg(total=hf.sum("value")).sink("out", hf.sink.parquet("out"))
if __name__ == "__main__":
    open("imported", "w").close()
    summary = hf.run(pipeline, latency=0.3)
    print("returned", sorted(summary.fragments))
"""
MARK = "HOLDFAST_TEST_MARK"


class Started:
    """A process that runs the pipeline, and all that comes of it: they are known by their environment."""

    def __init__(self, directory: Path, command: list[str]) -> None:
        self.directory = directory
        directory.mkdir(parents=True)
        (directory / "pipeline.py").write_text(PROGRAM)
        self._mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            command, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True, env={**os.environ, MARK: self._mark},
        )  # fmt: skip

    def family(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == self._mark:
                    found.append(process)
        return found

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def java_is_launched(self) -> bool:
        return any(process.pid != self.process.pid for process in self.family())

    def has_committed(self) -> bool:
        return any(self.directory.glob("out/epoch=*"))

    def ended(self) -> str:
        """What it has said, when it and all that it had started are gone."""
        try:
            said, _ = self.process.communicate(timeout=90)
            deadline = time.monotonic() + 15
            while self.family() and time.monotonic() < deadline:
                time.sleep(0.05)
            assert [process.name() for process in self.family()] == []
            return said
        finally:
            for process in self.family():
                with contextlib.suppress(psutil.Error):
                    process.kill()


def script() -> list[str]:
    return [sys.executable, "pipeline.py"]


def command() -> list[str]:
    return [str(Path(sys.executable).with_name("holdfast")), "run", "pipeline.py"]


@pytest.fixture
def start(tmp_path: Path) -> Callable[[list[str]], Started]:
    count = 0

    def begin(words: list[str]) -> Started:
        nonlocal count
        count += 1
        return Started(tmp_path / str(count), words)

    return begin


def test_a_command_that_is_terminated_while_java_starts_leaves_nothing(start: Callable[..., Started]) -> None:
    run = start(command())
    run.until(run.java_is_launched)
    os.kill(run.process.pid, signal.SIGTERM)
    said = run.ended()
    assert run.process.returncode == 130
    assert said == "aborted\n"  # and no traceback


def test_a_script_stops_cleanly_on_ctrl_c(start: Callable[..., Started]) -> None:
    run = start(script())
    run.until(run.has_committed)
    os.kill(run.process.pid, signal.SIGINT)
    assert run.ended() == "returned ['numbers']\n"
    assert run.process.returncode == 0


@pytest.mark.long
def test_a_script_returns_with_nothing_when_it_is_stopped_before_it_began(start: Callable[..., Started]) -> None:
    run = start(script())
    run.until(run.java_is_launched)
    os.kill(run.process.pid, signal.SIGINT)
    assert run.ended() == "returned []\n"
    assert run.process.returncode == 0


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("words", [script, command])
@pytest.mark.timeout(900)
def test_at_every_moment_of_the_first_seconds(
    start: Callable[..., Started], words: Callable[[], list[str]], number: signal.Signals
) -> None:
    for step in range(16):
        run = start(words())
        if words is script:
            run.until((run.directory / "imported").exists)  # before that, Ctrl-C is Python's
        time.sleep(0.4 * step)
        os.kill(run.process.pid, number)
        said = run.ended()
        if words is script or step > 4:
            assert "Traceback" not in said
