"""Merging large pieces of state in the background, on the driver's side.

A worker does the work: a separate process (`engine/merge_worker.py`) or, if epochs run in this process, this process
(`task/in_process_merges.py`). All that epochs notice is that, between two of them, pieces were replaced by others with
the same rows.

Nothing here has to succeed. If the pieces of a merge are gone when it finishes, its result is discarded. If the process
dies, its merge is lost with it. P-units that no commit refers to are removed at the next start.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from holdfast.epoch.record import EpochRecord
from holdfast.graph.nodes import Stateful
from holdfast.operators.registry import operator_of
from holdfast.operators.step import clock_ticks
from holdfast.plan.program import Program
from holdfast.plan.watermarks import operator_watermark
from holdfast.state.levels import Merge, Target, next_merge
from holdfast.state.manifest import Manifest, Piece
from holdfast.state.piece_lineage import merged_stem
from holdfast.store import DirectoryStore, Private
from holdfast.task.merge_process import MergeAnswer, Order

__all__ = ["BackgroundMerges", "FindMerge", "MergeWorker"]

_UNNAMED = Private("it was merged by this run, and no commit was tried that names it")

FindMerge = Callable[[Mapping[str, Sequence[Manifest]]], tuple[Target, Merge] | None]
"""What to merge next of all state, if anything."""


class MergeWorker(Protocol):
    """Carries out one order at a time. Not promised: that an order is ever answered."""

    @property
    def ready(self) -> bool:
        """Whether it takes another order at all."""

    def give(self, order: Order) -> None:
        """Begin a merge."""

    def answer(self) -> MergeAnswer | None:
        """What came of the order that was given, once; None while it is not known. Asked between epochs."""

    def close(self) -> None:
        """End at once: nothing is written after this."""


class BackgroundMerges:
    """The merges of one run. `find` says what to merge; by default, what is large and has many levels."""

    def __init__(
        self, program: Program, store: DirectoryStore, worker: MergeWorker, find: FindMerge | None = None
    ) -> None:
        self._program = program
        self._store = store
        self._find = find or next_merge
        self._order: Order | None = None
        self._unnamed: list[str] = []
        """P-units that the next commit will be the first to name."""
        self.worker = worker
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
        if self._order is None and self.worker.ready:
            found = self._find(record.state)
            if found is not None:
                target, merge = found
                mark = self._mark(target.operator, record)
                self._order = Order(target, merge, mark, merged_stem(uuid.uuid4().hex, merge.pieces))
                self.worker.give(self._order)
        return record

    def _mark(self, operator: str, record: EpochRecord) -> int | None:
        """How far the time that governs an operator's state has advanced."""
        node = self._program.nodes[operator]
        assert isinstance(node, Stateful)
        if operator_of(node).by_clock:
            return clock_ticks(record.clock)
        return operator_watermark(self._program, operator, record.greatest, record.done)

    def committing(self) -> None:
        """A commit is about to name what was merged. Whether it counts is not always told: from here on nothing of it
        is removed, and what it leaves unnamed is swept at the next start."""
        self._unnamed = []

    def close(self) -> None:
        """End the worker, and remove what it may have written for nothing."""
        order, self._order = self._order, None
        self.worker.close()
        self._store.remove([*(order.names() if order is not None else ()), *self._unnamed], _UNNAMED)

    def _finished(self, record: EpochRecord) -> EpochRecord:
        answer = self.worker.answer()
        if answer is None:
            return record
        order, self._order = self._order, None
        after, pieces = None, tuple[Piece, ...]()
        if order is not None and answer.failed is None:
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
