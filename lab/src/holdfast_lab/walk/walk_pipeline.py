"""The pipeline of a walk: a source, a window, a sink; on Spark, in this checkout or in one of before.

It is run by path, without the rest of the lab. It writes down when which epoch was committed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import polars as pl

import holdfast as hf

_ROWS = 2_000
_EPOCHS = 8


def main(home: Path) -> None:
    frame = pl.DataFrame({"ts": range(_ROWS * _EPOCHS), "k": [number % 7 for number in range(_ROWS * _EPOCHS)]})
    pipeline = hf.Pipeline("walk")
    given: Any = hf  # names have moved since the checkout of before
    before = not hasattr(given, "source")
    source, window, sink = (given, given, given) if before else (given.source, given.window, given.sink)
    rows = pipeline.source("rows", source.memory(frame), event_time="ts", time_unit="s")
    counts = rows.filter(pl.col("k") > 0).key_by("k").window(window.tumbling("100s")).agg(n=hf.count())
    counts.sink("out", sink.parquet(home / "out"))
    commits: list[tuple[int, float]] = []
    options: dict[str, Any] = {"store": home / "store", "least_rows": _ROWS, "most_rows": _ROWS, "tasks": 1}
    if before:
        options["on_epoch"] = lambda report: commits.append((report.epoch, report.committed))
    else:

        class Commits(given.Observer):  # type: ignore[misc]
            def epoch_committed(self, report: Any) -> None:
                commits.append((report.epoch, report.committed))

        options["observer"] = Commits()
    hf.run(pipeline, **options)
    (home / "commits.json").write_text(json.dumps(commits))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
