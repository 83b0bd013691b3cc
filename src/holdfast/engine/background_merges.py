"""Merging large pieces beside the epochs, as the driver sees it.

The work is done by one process on the driver's machine (`task/merge_process.py`), started when there is a first
merge to do. A Spark task would take a slot that epochs need and could not be given a low priority; the store is
mounted where the driver runs, so nothing is gained by doing it elsewhere. All that epochs notice is that, between
two of them, pieces were replaced by others with the same rows.

Nothing here must go right. A merge whose pieces are gone when it is done is thrown away; a process that dies takes its
merge with it; p-units that no commit came to name are swept at the next start.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
import uuid

from holdfast.epoch.record import EpochRecord
from holdfast.plan.program import Program
from holdfast.plan.watermarks import operator_watermark
from holdfast.spark.session import import_roots
from holdfast.spark.worker_daemon import ONE_THREAD
from holdfast.state.levels import next_merge
from holdfast.state.manifest import Piece
from holdfast.store import DirectoryStore, Private
from holdfast.task.merge_process import MergeAnswer, Order
from holdfast.task.work_directory import WorkDirectory

__all__ = ["Compacting"]

_MOST_DEATHS = 3
"""A process that dies so often will not be started again: epochs then merge for themselves."""
_SECONDS_TO_END = 10.0
_UNNAMED = Private("it was merged by this run, and no commit was tried that names it")


class Compacting:
    """The merges of one run."""

    def __init__(self, program: Program, work: WorkDirectory, store: DirectoryStore) -> None:
        self._program = program
        self._work = work
        self._store = store
        self._order: Order | None = None
        self._answers: queue.Queue[MergeAnswer | None] = queue.Queue()
        self._process: subprocess.Popen[str] | None = None
        self._deaths = 0
        self._unnamed: list[str] = []
        """P-units that the next commit will be the first to name."""
        self.merged = 0
        """How many merges have found their place."""

    @property
    def busy(self) -> bool:
        return self._order is not None

    def between_epochs(self, record: EpochRecord) -> EpochRecord:
        """The record from which the next epoch begins: the committed one, with the merge that has been done.

        To be called after a commit and before the next hand-over is written: an epoch that has begun goes on with
        what it was handed.
        """
        self._unnamed = []
        record = self._finished(record)
        if self._order is None and self._deaths < _MOST_DEATHS:
            found = next_merge(record.state)
            if found is not None:
                target, merge = found
                mark = operator_watermark(self._program, target.operator, record.greatest, record.done)
                self._start(Order(target, merge, mark, f"merged-{uuid.uuid4().hex}"))
        return record

    def committing(self) -> None:
        """A commit is about to name what was merged. Whether it counts is not always told: from here on nothing of it
        is removed, and what it leaves unnamed is swept at the next start."""
        self._unnamed = []

    def close(self) -> None:
        """End the process, and remove what it may have written for nothing."""
        process, order = self._process, self._order
        self._process = self._order = None
        self._deaths = _MOST_DEATHS
        if process is not None:
            process.kill()
            process.wait(_SECONDS_TO_END)
        self._store.remove([*(order.names() if order is not None else ()), *self._unnamed], _UNNAMED)

    def _finished(self, record: EpochRecord) -> EpochRecord:
        try:
            answer = self._answers.get_nowait()
        except queue.Empty:
            return record
        order, self._order = self._order, None
        if answer is None:
            self._process = None
            self._deaths += 1
        after, pieces = None, tuple[Piece, ...]()
        if answer is not None and order is not None and answer.failed is None:
            pieces = answer.pieces
            # A merge that took more than a day looks like a leftover to other hosts, until it is touched.
            if all(self._store.touch(piece.punit.name) for piece in pieces):
                after = record.spliced(order.target, order.merge.pieces, pieces)
        if after is None:
            self._store.remove(order.names() if order is not None else (), _UNNAMED)
            return record
        self.merged += 1
        self._unnamed = [piece.punit.name for piece in pieces]
        return after

    def _start(self, order: Order) -> None:
        if self._process is None:
            self._process = self._launch()
        self._order = order
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it died: its end of output says so, too
            self._process.stdin.write(order.encode() + "\n")
            self._process.stdin.flush()

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
        threading.Thread(target=self._listen, args=(process,), name="compacting", daemon=True).start()
        return process

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._answers.put(MergeAnswer.decode(line))
        process.wait()
        self._answers.put(None)
