"""Errors of tasks reach the user as one line with operator, epoch and cure; Java's trace is in the log of the run."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import holdfast as hf
from harness import run
from holdfast.errors import OperatorError
from holdfast.store import Right

PROGRAM = """
import errno
import polars as pl
import holdfast as hf

class Broken(hf.sink.TaskSink):
    guarantee = "none"
    def prepare(self, rows, *, epoch, part, attempt):
        raise OSError(errno.EIO, "the disk is old")
    def publish(self, epoch, receipts): ...
    def sweep(self, before_epoch, right): ...

pipeline = hf.Pipeline("broken")
pipeline.source("rows", hf.source.memory(pl.DataFrame({"v": [1, 2]}))).sink("results", Broken())
"""


class Refusing(hf.sink.TaskSink):
    guarantee = "none"

    def __init__(self, error: Exception) -> None:
        self.error = error

    def prepare(self, rows: pl.DataFrame, *, epoch: int, part: str, attempt: str) -> dict[str, object]:
        raise self.error

    def publish(self, epoch: int, receipts: object) -> None: ...

    def sweep(self, before_epoch: int, right: Right) -> None: ...


@pytest.mark.parametrize(
    "error", [PermissionError(errno.EACCES, "Permission denied"), OSError(errno.EROFS, "Read-only"), KeyError("x")]
)
def test_what_another_try_does_not_mend_names_sink_epoch_and_cure_at_once(error: Exception) -> None:
    pipeline = hf.Pipeline("p")
    pipeline.source("rows", hf.source.memory(pl.DataFrame({"v": [1, 2]}))).sink("results", Refusing(error))
    with pytest.raises(OperatorError, match=r"(?s)operator 'results', epoch 1: the sink cannot write: .*cure: check"):
        run(pipeline)


@pytest.mark.spark
@pytest.mark.slow
def test_what_fails_again_and_again_is_one_line_and_the_trace_is_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text(PROGRAM)
    ended = subprocess.run(
        [str(Path(sys.executable).with_name("holdfast")), "run", "pipeline.py", "--executor", "jobs"],
        cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL, env={**os.environ, "COLUMNS": "500"},
    )  # fmt: skip
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 2, ended.stderr
    problem, cure = ended.stderr.splitlines()
    assert problem.startswith("error: epoch 1: the Spark job failed: ")
    assert "sink 'results', epoch 1: the disk is old" in problem
    [log] = (tmp_path / ".holdfast" / "logs").iterdir()
    assert str(log) in cure
    assert "at org.apache.spark" in log.read_text()
