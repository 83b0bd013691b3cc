"""`holdfast run` as a user has it: a process at a terminal, stopped by Ctrl-C, started again.

One pipeline goes through it all, on one store: stopped by Ctrl-C at a terminal, then run to its end without one.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import psutil
import pytest
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.connect.sinks.file_sink import read_output

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = """
import polars as pl
import holdfast as hf

def numbers(start: int, stop: int) -> pl.DataFrame:
    i = pl.int_range(start, stop, dtype=pl.Int64, eager=True)
    return pl.DataFrame({"time": i // 100, "key": i % 7, "value": i})

def keep(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(pl.col("value") % 2 == 0)

schema = {"time": pl.Int64, "key": pl.Int64, "value": pl.Int64}
pipeline = hf.Pipeline("numbers")
source = pipeline.source(
    "numbers", hf.source.generator(numbers, schema, rows=60_000, rate=10_000), event_time="time", time_unit="s"
)
windows = source.map_batches(keep).key_by("key").window(hf.window.tumbling("10s"), name="totals")
totals = windows.agg(total=hf.sum("value"))
totals.sink("out", hf.sink.parquet("out"))
"""
ROWS = 60_000


class Run:
    """A `holdfast run` whose output is read as it comes, at a terminal of its own or not."""

    def __init__(self, directory: Path, *options: str, terminal: bool = False) -> None:
        command = [str(Path(sys.executable).with_name("holdfast")), "run", "pipeline.py", *options]
        self.text = ""
        if terminal:
            pid, self._from = pty.fork()
            if pid == 0:
                os.chdir(directory)
                os.environ.update(TERM="xterm", COLUMNS="120", LINES="40")
                os.execv(command[0], command)
            self.pid = pid
        else:
            self._from, write = os.pipe()
            self._process = subprocess.Popen(
                command, cwd=directory, stdin=subprocess.DEVNULL, stdout=write, stderr=write, start_new_session=True
            )
            os.close(write)
            self.pid = self._process.pid
        self._terminal = terminal
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # how a terminal says that nobody writes any more
            while data := os.read(self._from, 65_536):
                self.text += data.decode(errors="replace")

    def until(self, condition: Callable[[str], bool], what: str) -> None:
        deadline = time.monotonic() + 90
        while not condition(self.text):
            assert time.monotonic() < deadline, f"no {what} in: {self.text}"
            time.sleep(0.05)

    def type(self, keys: bytes) -> None:
        os.write(self._from, keys)

    def code(self) -> int:
        """The exit code, and a check that nothing of the session is left."""
        by_terminal = self._terminal
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]) if by_terminal else self._process.wait(60)
        assert _living(self.pid) == []
        time.sleep(0.2)
        return code


def _living(session: int) -> list[list[str]]:
    """The command lines of the processes of a session that live."""
    living = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                living.append(process.cmdline())
    return living


def status(directory: Path) -> dict[str, object]:
    result = CliRunner().invoke(main, ["status", "numbers", "--json", "--store", str(directory / ".holdfast")])
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.output)
    return found


def test_a_pipeline_is_stopped_and_started_until_its_input_ends(tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text(textwrap.dedent(PROGRAM))

    # At a terminal: the live view; Ctrl-C goes to the whole process group, and what is in flight is committed.
    at_terminal = Run(tmp_path, "--latency", "0.3", terminal=True)
    at_terminal.until(lambda _: _committed(tmp_path) >= 2, "second commit")
    seen = status(tmp_path)
    assert seen["running"]
    store = str(tmp_path / ".holdfast")
    refused = CliRunner().invoke(main, ["run", str(tmp_path / "pipeline.py"), "--store", store])
    assert refused.exit_code == 1
    assert "is being run by" in refused.output
    assert "running" in CliRunner().invoke(main, ["status", "--store", store]).output
    at_terminal.type(b"\x03")
    assert at_terminal.code() == 0, at_terminal.text
    assert "stopping" in at_terminal.text
    assert "rows/s" in at_terminal.text
    assert "Traceback" not in at_terminal.text
    first = status(tmp_path)
    assert not first["running"]
    assert first["planned"] == []
    assert not first["finished"]

    # Without a terminal: log lines. The run goes on where the last one stopped. With `delta` the state of earlier
    # epochs can be read afterwards, too.
    in_background = Run(tmp_path, "--checkpoint", "delta", "--most-rows", str(ROWS // 10))
    assert in_background.code() == 0, in_background.text
    assert f"resuming after epoch {first['epoch']}" in in_background.text
    assert "ended:" in in_background.text
    assert "its sources ended" in in_background.text
    assert "\x1b[" not in in_background.text
    last = status(tmp_path)
    assert last["finished"]
    assert last["totals"]["read"] == ROWS  # type: ignore[index]
    left = ROWS - first["totals"]["read"]  # type: ignore[index]
    assert last["epoch"] - first["epoch"] >= left / (ROWS // 10)  # type: ignore[operator]

    output = read_output(tmp_path / "out", "parquet")
    value = pl.int_range(0, ROWS, 2, dtype=pl.Int64, eager=True)
    expected = pl.DataFrame({"key": value % 7, "window_start": value // 1_000 * 10, "value": value})
    expected = expected.group_by("key", "window_start").agg(total=pl.col("value").sum())
    assert output.select(expected.columns).sort("key", "window_start").equals(expected.sort("key", "window_start"))

    _state_is_a_table(tmp_path)


def _committed(directory: Path) -> int:
    if not (directory / ".holdfast" / "meta.db").exists():
        return 0
    result = CliRunner().invoke(main, ["status", "--json", "--store", str(directory / ".holdfast")])
    if result.exit_code != 0:
        return 0
    return max((event["epoch"] for event in json.loads(result.output)), default=0)


def _state_is_a_table(directory: Path) -> None:
    store = ["--store", str(directory / ".holdfast")]
    kept = status(directory)["retained"]
    assert isinstance(kept, list)
    before_end = str(kept[1] - 1)
    shown = CliRunner().invoke(main, ["state", "numbers", "totals", "--epoch", before_end, "--limit", "3", *store])
    assert shown.exit_code == 0, shown.output
    assert "key" in shown.output
    target = directory / "state.parquet"
    written = CliRunner().invoke(
        main,
        ["state", "numbers", "totals", "--epoch", before_end, "--format", "parquet", "--output", str(target), *store],
    )
    assert written.exit_code == 0, written.output
    assert pl.read_parquet(target).height >= 1
    for form in ("csv", "json"):
        assert CliRunner().invoke(main, ["state", "numbers", "totals", "--format", form, *store]).exit_code == 0
    unknown = CliRunner().invoke(main, ["state", "numbers", "totals", "--epoch", "99999", *store])
    assert unknown.exit_code == 1
    assert "not retained" in unknown.output
    assert CliRunner().invoke(main, ["state", "numbers", "nothing", *store]).exit_code == 1
