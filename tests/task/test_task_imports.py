"""A process that runs tasks holds nothing of the driver: what a task imports takes time and memory in every worker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import polars as pl

import holdfast as hf
from holdfast.plan.program import compile_program
from holdfast.pstream.link import StreamSource
from holdfast.task.work_directory import WorkDirectory

DRIVER = ("sqlalchemy", "holdfast.meta", "holdfast.engine", "holdfast.durability", "holdfast.spark", "alembic")

LOADS = """
import importlib, json, pkgutil, sys
from pathlib import Path
import holdfast.task

for module in pkgutil.iter_modules(holdfast.task.__path__):
    importlib.import_module("holdfast.task." + module.name)
path, key = sys.argv[1:]
if path:
    from holdfast.task.work_directory import unsealed_program
    unsealed_program(Path(path).read_bytes(), bytes.fromhex(key), path)
print(json.dumps(sorted(sys.modules)))
"""


def loaded(path: str = "", key: str = "") -> list[str]:
    """The modules of a fresh process that has imported what runs in tasks, and has read a program."""
    ended = subprocess.run([sys.executable, "-c", LOADS, path, key], capture_output=True, text=True, check=True)
    modules = json.loads(ended.stdout)
    return [name for name in modules if name.startswith(tuple(f"{driver}." for driver in DRIVER)) or name in DRIVER]


def test_a_process_of_tasks_loads_neither_the_driver_nor_the_meta_store(tmp_path: Path) -> None:
    """Also with a program that has a window and reads a p-stream."""
    assert loaded() == []
    pipeline = hf.Pipeline("p")
    rows = pl.Schema({"k": pl.Int64(), "ts": pl.Int64()})
    source = pipeline.source("rows", StreamSource("other.cut", rows), event_time="ts", time_unit="ms")
    window = source.key_by("k").window(hf.window.tumbling("10 s")).agg(n=hf.count())
    window.sink("out", hf.sink.parquet(tmp_path / "out"))
    work = WorkDirectory(tmp_path, "run")
    work.write_program(compile_program(pipeline))
    assert loaded(str(work.program_path), work.key.hex()) == []
