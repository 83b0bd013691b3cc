"""Queries measured with their store on several disks, in a process of its own.

    python -m holdfast_lab.experiment.scabbard.storage_runs < ASKED

Standard input has JSON: `queries`, `places` (a directory by the name of its disk, None for no disk), `latencies`,
`seconds` and `seed`. Each run is told as a line of JSON when it is over. The process is started under a `SlowDisk`.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast_lab.bench.query_runs import BenchOptions, measure, session
from holdfast_lab.experiment.scabbard.query_engines import latency_columns, load_of

__all__ = ["storage_runs"]

_MEMORY = Path("/dev/shm")


def storage_runs(
    queries: list[str], places: dict[str, str | None], latencies: list[float], seconds: float, seed: int, until: float
) -> Iterator[dict[str, Any]]:
    """One run after the other: all disks of a query and latency in turn. None begins after `until`."""
    memory = _MEMORY if _MEMORY.is_dir() else None
    with session("holdfast") as spark, tempfile.TemporaryDirectory(prefix="holdfast-", dir=memory) as fleeting:
        for name in queries:
            load = load_of(name, seed)
            made = load.dense()
            for latency in latencies:
                for disk, where in places.items():
                    if time.time() > until:
                        yield {"query": name, "disk": disk, "epoch_s": latency, "left_out": True}
                        continue
                    place = Path(where or fleeting) / f"{name}-{latency:g}".lower()
                    options = BenchOptions(
                        seconds=seconds,
                        latency=latency,
                        durable=where is not None,
                        store=place / "store",
                        executor="crew",
                    )
                    try:
                        found = measure(spark, load.query, options, place, name=name.lower(), given=made)
                    finally:
                        shutil.rmtree(place, ignore_errors=True)
                    yield {
                        "query": name,
                        "disk": disk,
                        "epoch_s": latency,
                        "tuples_per_s": round(found.tuples_per_s),
                        **latency_columns(found.epoch_seconds),
                        "commit_ms": found.notes.get("commit_ms"),
                        "written_bytes_per_epoch": found.notes.get("written_bytes_per_epoch"),
                        "epochs": found.epochs,
                    }


if __name__ == "__main__":
    for row in storage_runs(**json.load(sys.stdin)):
        print(json.dumps(row), flush=True)
