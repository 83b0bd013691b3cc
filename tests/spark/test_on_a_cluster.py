"""A real Spark cluster on this machine: what is waited for is said, what is not shared is named, what is silent is
given up."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import psutil
import pytest

from holdfast.connect.sinks.file_sink import read_output
from holdfast.meta import RunNotes, opened_meta
from holdfast.scale import cluster as clusters
from strategies import FUZZ

ROWS = 20_000 if FUZZ else 12_000
pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = """
import polars as pl
import holdfast as hf

def numbers(start: int, stop: int) -> pl.DataFrame:
    i = pl.int_range(start, stop, dtype=pl.Int64, eager=True)
    return pl.DataFrame({"time": i // 100, "key": i % 7, "value": i})

schema = {"time": pl.Int64, "key": pl.Int64, "value": pl.Int64}
pipeline = hf.Pipeline("numbers")
source = pipeline.source("numbers", hf.source.generator(numbers, schema, rows=ROWS, rate=2_000), event_time="time",
                         time_unit="s")
totals = source.key_by("key").window(hf.window.tumbling("10s"), name="totals").agg(total=hf.sum("value"))
totals.sink("out", hf.sink.parquet("out"))
"""


class Run:
    """A `holdfast run` whose output is read as it comes."""

    def __init__(self, directory: Path, *options: str, rows: int = 40_000) -> None:
        (directory / "pipeline.py").write_text(PROGRAM.replace("ROWS", str(rows)))
        self.said = ""
        self.process = subprocess.Popen(
            [str(Path(sys.executable).with_name("holdfast")), "run", "pipeline.py", *options],
            cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line

    def until(self, condition: Callable[[], bool], seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.05)

    def code(self, seconds: float = 120) -> int:
        found = self.process.wait(seconds)
        self._reader.join(10)
        return found

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(self.process.pid).children(recursive=True):
                    child.kill()
            self.process.kill()
            self.process.wait()


def settings_of(cluster: clusters.Cluster) -> list[str]:
    """What a run on the cluster is to be given: its address, and the secret that lets it in."""
    secrets = [f"{key}={value}" for key, value in cluster.secrets().items()]
    return ["--master", cluster.master, *(word for secret in secrets for word in ("--conf", secret))]


@pytest.fixture
def cluster() -> Iterator[clusters.Cluster]:
    with clusters.Cluster(2, "1g") as running:
        yield running


@pytest.mark.long
def test_a_cluster_without_workers_is_named_and_the_run_can_be_stopped(
    cluster: clusters.Cluster, tmp_path: Path
) -> None:
    with Run(tmp_path, *settings_of(cluster)) as run:
        run.until(lambda: f"for a first executor from {cluster.master}" in run.said)
        os.kill(run.process.pid, signal.SIGTERM)
        assert run.code(15) == 130
        assert run.said.endswith("aborted\n")


@pytest.mark.long
def test_a_master_that_is_not_there_is_named(tmp_path: Path) -> None:
    with Run(tmp_path, "--master", "spark://127.0.0.1:9") as run:
        run.until(lambda: "for Spark to start on spark://127.0.0.1:9" in run.said, 60)
        os.kill(run.process.pid, signal.SIGTERM)
        assert run.code(15) == 130


@pytest.mark.long
@pytest.mark.skipif(os.getuid() != 0 or shutil.which("unshare") is None, reason="a private mount needs root")
def test_a_worker_that_does_not_see_the_sink_is_named_before_the_first_epoch(
    cluster: clusters.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add_worker()
    hidden = tmp_path / ".out.staging"
    hidden.mkdir()
    _privately(monkeypatch, hidden)
    cluster.add_worker()
    with Run(tmp_path, *settings_of(cluster)) as run:
        assert run.code() == 1
        assert f"does not share {hidden}" in run.said
        assert "operator 'out'" in run.said
        assert os.uname().nodename in run.said
    assert not (tmp_path / "out").exists()


@pytest.mark.long
@pytest.mark.skipif(os.getuid() != 0 or shutil.which("unshare") is None, reason="a private mount needs root")
def test_a_worker_with_memory_of_its_own_makes_the_run_keep_state_in_the_store(
    cluster: clusters.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add_worker()
    _privately(monkeypatch, Path("/dev/shm"))
    cluster.add_worker()
    with Run(tmp_path, *settings_of(cluster)) as run:
        assert run.code(200) == 0, run.said
    _is_complete(tmp_path)


@pytest.mark.long
def test_an_executor_that_falls_silent_is_given_up_within_the_detection(
    cluster: clusters.Cluster, tmp_path: Path
) -> None:
    cluster.add_worker()
    cluster.add_worker()
    with Run(tmp_path, *settings_of(cluster), "--detection", "5", "--checkpoint", "delta") as run:
        run.until(lambda: len(_epochs(tmp_path)) >= 2)
        worker = psutil.Process(cluster.workers()[0].pid)
        frozen = [worker, *worker.children(recursive=True)]
        for process in frozen:
            process.suspend()
        try:
            began, before = time.monotonic(), len(_epochs(tmp_path))
            run.until(lambda: len(_epochs(tmp_path)) >= before + 3)
            assert time.monotonic() - began < 40  # and not Spark's two minutes
            assert run.code(200) == 0, run.said
        finally:
            for process in frozen:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.resume()
    _is_complete(tmp_path)


@pytest.mark.long
def test_workers_that_are_gone_are_named_and_the_run_can_be_stopped(cluster: clusters.Cluster, tmp_path: Path) -> None:
    name = cluster.add_worker()
    with Run(tmp_path, *settings_of(cluster), "--detection", "5") as run:
        run.until(lambda: len(_epochs(tmp_path)) >= 1)
        cluster.remove_worker(name)
        run.until(lambda: "for an executor from" in run.said)
        os.kill(run.process.pid, signal.SIGTERM)
        assert run.code(15) == 1
        assert "is run again at the next start" in run.said


def test_a_crew_survives_the_kill_of_an_executor(tmp_path: Path) -> None:
    with clusters.Cluster(3, "1g") as cluster:
        for _ in range(2):
            cluster.add_worker()
        with Run(tmp_path, *settings_of(cluster), "--latency", "0.05", rows=ROWS) as run:
            for _ in range(2 if FUZZ else 1):
                before = len(_epochs(tmp_path))
                run.until(lambda before=before: len(_epochs(tmp_path)) >= before + 2, 250)  # type: ignore[misc]
                worker = psutil.Process(cluster.workers()[0].pid)
                executors = [child for child in worker.children() if child.name() == "java"]
                assert executors
                executors[0].kill()
            assert run.code(200) == 0, run.said
        with opened_meta(tmp_path / ".holdfast", None) as meta:
            [said] = RunNotes(meta).executors("numbers").values()
        assert said == "a crew of 2 workers and 1 spare: it needs 4 slots, and there are 6"
    _is_complete(tmp_path, ROWS)
    assert not list(tmp_path.glob("**/.probe-*"))


@pytest.mark.long
def test_a_run_on_a_cluster_with_settings_of_its_own(cluster: clusters.Cluster, tmp_path: Path) -> None:
    cluster.add_worker()
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, polars as pl, holdfast as hf\n"
        "p = hf.Pipeline('short')\n"
        "p.source('rows', hf.source.memory(pl.DataFrame({'v': [1, 2, 3]}))).sink('out', hf.sink.parquet('out'))\n"
        "if __name__ == '__main__':\n"
        "    conf = dict(setting.split('=') for setting in sys.argv[2:])\n"
        "    hf.run(p, master=sys.argv[1], conf=conf | {'spark.executor.memory': '600m'})\n"
    )
    ended = subprocess.run(
        [sys.executable, str(program), cluster.master, *(f"{key}={value}" for key, value in cluster.secrets().items())],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    assert read_output(tmp_path / "out", "parquet")["v"].sort().to_list() == [1, 2, 3]
    assert not list(tmp_path.glob("**/.probe-*"))


def _privately(monkeypatch: pytest.MonkeyPatch, hidden: Path) -> None:
    """The next worker of the cluster has a directory of its own in place of this one."""
    real = subprocess.Popen

    def popen(command: list[str], **given: object) -> object:
        if clusters._WORKER in command:
            hide = f'mount -t tmpfs none "{hidden}" && exec "$@"'
            command = ["unshare", "--mount", "sh", "-c", hide, "private", *command]
        return real(command, **given)  # type: ignore[call-overload]

    monkeypatch.setattr(clusters.subprocess, "Popen", popen)


def _epochs(directory: Path) -> list[Path]:
    return list((directory / "out").glob("epoch=*"))


def _is_complete(directory: Path, rows: int = 40_000) -> None:
    value = pl.int_range(0, rows, dtype=pl.Int64, eager=True)
    expected = pl.DataFrame({"key": value % 7, "window_start": value // 1_000 * 10, "total": value})
    expected = expected.group_by("key", "window_start").agg(pl.col("total").sum()).sort("key", "window_start")
    found = read_output(directory / "out", "parquet").select(expected.columns).sort("key", "window_start")
    assert found.equals(expected)
