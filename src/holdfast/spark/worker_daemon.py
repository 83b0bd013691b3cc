"""The process that Spark forks its Python workers from (`spark.python.daemon.module`).

It imports once what every task needs, so that a fresh worker is ready in milliseconds, and then freezes
those objects out of the garbage collector: PySpark runs a full collection after every task, which costs 50 to
100 ms over the objects of these imports and next to nothing without them.

Nothing may start a thread before the fork: libraries are imported here, and used in the children only. A
worker is one of several on its machine, so the libraries inside it get one thread each.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
from typing import Any

__all__ = ["ONE_THREAD", "main"]

ONE_THREAD = {
    "POLARS_MAX_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "ARROW_IO_THREADS": "1",
}
_NEEDED = (
    "numpy",
    "pyarrow",
    "pyarrow.compute",
    "pyarrow.ipc",
    "pandas",
    "polars",
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
)
_TASKS = ("holdfast.task.spark_task", "holdfast.task.standing_task")


def main() -> None:
    """Import, freeze, and serve forks until Spark closes standard input."""
    os.environ.update(ONE_THREAD)
    for module in _NEEDED:
        importlib.import_module(module)
    # A broken import must fail the task that needs it, with its traceback, and not the daemon without one.
    with contextlib.suppress(ImportError):
        for module in _TASKS:
            importlib.import_module(module)
    gc.collect()
    gc.freeze()
    from pyspark import daemon  # noqa: PLC0415 - after the libraries have their settings

    _leave_quietly(daemon)
    daemon.manager()


def _leave_quietly(daemon: Any) -> None:
    """A worker whose Java process is gone has nothing to report to: it ends, without a traceback on the terminal."""
    serve = daemon.worker

    def worker(sock: Any, authenticated: bool) -> int:
        try:
            return int(serve(sock, authenticated))
        except (BrokenPipeError, ConnectionResetError):
            return 1

    daemon.worker = worker


if __name__ == "__main__":
    main()
