"""The process that merges state in the background, as seen from the driver: orders in, answers out.

One process on the driver's machine (`task/merge_process.py`) does the work. It starts with the first merge. A Spark
task would take a slot that epochs need, and could not run at a low priority. The store is mounted where the driver
runs, so doing the work elsewhere would gain nothing.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading

from holdfast.spark.session import import_roots
from holdfast.spark.worker_daemon import ONE_THREAD
from holdfast.store import DirectoryStore
from holdfast.task.merge_process import MergeAnswer, Order
from holdfast.task.work_directory import WorkDirectory

__all__ = ["MergeProcess"]

_MOST_DEATHS = 3
"""A process that dies so often will not be started again: epochs then merge for themselves."""
_SECONDS_TO_END = 10.0


class MergeProcess:
    """The merging process of one run."""

    def __init__(self, work: WorkDirectory, store: DirectoryStore) -> None:
        self._work = work
        self._store = store
        self._answers: queue.Queue[MergeAnswer | None] = queue.Queue()
        self._process: subprocess.Popen[str] | None = None
        self._deaths = 0

    @property
    def pid(self) -> int | None:
        """Of the process, if there is one."""
        return None if self._process is None else self._process.pid

    @property
    def ready(self) -> bool:
        return self._deaths < _MOST_DEATHS

    @property
    def answered(self) -> bool:
        """Whether an answer waits to be taken."""
        return not self._answers.empty()

    def give(self, order: Order) -> None:
        if self._process is None:
            self._process = self._launch()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it died: its end of output says so, too
            self._process.stdin.write(order.encode() + "\n")
            self._process.stdin.flush()

    def answer(self) -> MergeAnswer | None:
        try:
            answer = self._answers.get_nowait()
        except queue.Empty:
            return None
        if answer is None:
            self._process = None
            self._deaths += 1
            return MergeAnswer(failed="the process died")
        return answer

    def close(self) -> None:
        process, self._process = self._process, None
        self._deaths = _MOST_DEATHS
        if process is not None:
            process.kill()
            process.wait(_SECONDS_TO_END)

    def _launch(self) -> subprocess.Popen[str]:
        sync = "sync" if self._store.sync else "no sync"
        places = [str(place) for place in self._store.places]
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.task.merge_process", str(self._work.root), self._work.run, sync, *places],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(import_roots())},
            text=True,
        )
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.write(self._work.key.hex() + "\n")  # not an argument: everybody can read those
        threading.Thread(target=self._listen, args=(process,), name="merges", daemon=True).start()
        return process

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._answers.put(MergeAnswer.decode(line))
        process.wait()
        self._answers.put(None)
