"""The object store benchmark: both libraries do the same tasks, and the table has a line for each place."""

from __future__ import annotations

import pytest

from holdfast_lab.bench.bucket_speed import BucketSpeed, measure_clients
from holdfast_lab.bench.file_speed import FileRun
from holdfast_lab.chaos.s3_server import serve


@pytest.mark.long
def test_clients_do_the_same_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "lab")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "lab")
    with serve() as server:
        found = measure_clients(server, lambda text: None, count=3)
        put = {path for method, path in server.requests if method == "PUT" and "/s/" in path}
    assert put == {f"/clients/s/{number}" for number in range(3)}
    assert {task.task for task in found if task.library == "obstore"} == {
        task.task for task in found if task.library == "pyarrow.fs"
    }
    assert all(task.ms > 0 for task in found)


def test_the_table_has_medians_by_place() -> None:
    runs = [FileRun("parquet", "object store", 10, speed, None, None) for speed in (1e6, 5e6, 3e6)]
    runs.append(FileRun("parquet", "spark", 5, 1e5, None, None))
    table = BucketSpeed((), tuple(runs)).table()
    assert [(row["engine"], row["mrows_per_s"]) for row in table] == [
        ("Holdfast, object store", 3.0),
        ("Structured Streaming, local files", 0.1),
    ]
