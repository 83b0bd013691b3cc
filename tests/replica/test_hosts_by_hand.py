"""The commands of docs/two-hosts.md, as two machines would give them: `holdfast init`, `up --hosts 0`, and two hosts,
each started by itself, as the role that may only read and write."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest
import sqlalchemy as sa

import holdfast as hf
from holdfast_lab.chaos.database_server import DatabaseServer

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.long,  # three processes, two of them with Spark
]
PROGRAM = """\
import holdfast as hf
import polars as pl

pipeline = hf.Pipeline("clicks")
rows = hf.source.files("{home}/in", format="ndjson", schema={{"ts": pl.Int64, "k": pl.Int64}}, grow=True, settle=0)
clicks = pipeline.source("clicks", rows, event_time="ts", time_unit="s")
clicks.key_by("k").window(hf.window.tumbling("10s")).agg(n=hf.count()).sink("out", hf.sink.parquet("{home}/out"))
"""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        process.wait(90)


def until(what: str, is_so: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.3)


@pytest.mark.parametrize("way", ["signal", "notice"])
def test_two_hosts_take_over_from_one_another_as_the_role_of_init(
    postgresql: DatabaseServer, tmp_path: Path, started: list[subprocess.Popen[bytes]], way: str
) -> None:
    store, role = tmp_path / "store", f"by_{way}"
    environment = {**os.environ, "HOLDFAST_META": postgresql.url_of(role)}
    (tmp_path / "in").mkdir()
    (tmp_path / "clicks.py").write_text(PROGRAM.format(home=tmp_path))

    def command(*words: str) -> list[str]:
        return [sys.executable, "-m", "holdfast", *words]

    def start(*words: str) -> subprocess.Popen[bytes]:
        with (tmp_path / f"{words[0]}-{len(started)}.log").open("wb") as log:
            started.append(
                subprocess.Popen(command(*words, "--store", str(store)), env=environment, stdout=log, stderr=log)
            )
        return started[-1]

    def status() -> dict[str, Any]:
        done = subprocess.run(command("status", "clicks", "--store", str(store), "--json"), env=environment,
                              capture_output=True, text=True, check=False)  # fmt: skip
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def put(number: int) -> None:
        times = range(number * 10, number * 10 + 10)
        text = "".join(f'{{"ts": {ts}, "k": {ts % 3}}}\n' for ts in times)
        (tmp_path / "in" / f".{number:03}.ndjson").write_text(text)
        (tmp_path / "in" / f".{number:03}.ndjson").rename(tmp_path / "in" / f"{number:03}.ndjson")

    def seats() -> tuple[str | None, str | None, bool]:
        replicas = status().get("replicas") or {}
        return replicas.get("primary"), replicas.get("secondary"), bool(replicas.get("ready"))

    subprocess.run(command("init", postgresql.url, "--role", role), check=True)
    start("up", str(tmp_path / "clicks.py"), "--hosts", "0")
    hosts = {name: start("host", name, "--eviction-notice", f"file:{tmp_path}/evict-{name}") for name in ("a", "b")}
    put(0)
    until("a primary and a secondary that is ready", lambda: seats()[0] in hosts and seats()[1] in hosts and seats()[2])
    first, second, _ = seats()
    assert first is not None
    for process in hosts.values():
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        print("memory of a host:", sum(one.memory_info().rss for one in family) // 1_000_000, "MB")
    engine = sa.create_engine(postgresql.url.replace("postgresql:", "postgresql+psycopg:"), poolclass=sa.NullPool)
    with engine.connect() as connection:
        open_now = connection.execute(sa.text("SELECT count(*) FROM pg_stat_activity WHERE usename = :role"),
                                      {"role": role}).scalar_one()  # fmt: skip
    print("connections of two hosts and `up`:", open_now)
    assert open_now < 30, "a host needs few"
    with_rights = subprocess.run(command("status", "--store", str(store)), env=environment, check=True,
                                 capture_output=True, text=True)  # fmt: skip
    assert "clicks" in with_rights.stdout
    before = status()["epoch"]
    if way == "signal":
        hosts[first].send_signal(signal.SIGTERM)
    else:
        (tmp_path / f"evict-{first}").touch()
    put(1)
    until("the other has taken over", lambda: seats()[0] == second)
    assert hosts[first].wait(90) == 0
    until("and goes on", lambda: status()["epoch"] > before)
    put(2)
    put(30)
    until("all windows but the last", lambda: _counted(tmp_path) == 30)


def _counted(home: Path) -> int:
    found: pl.DataFrame = hf.read_output(home / "out", "parquet")
    return int(found["n"].sum()) if found.height else 0
