"""This process as the worker that merges state in the background, for tests and simulation.

A merge is carried out when it is ordered, and answered some epochs later: meanwhile the epochs continue without it, as
they would with a process of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from holdfast.errors import HoldfastError
from holdfast.store import DirectoryStore
from holdfast.task.merge_process import MergeAnswer, Order, carry_out
from holdfast.task.work_directory import WorkDirectory, load_program

__all__ = ["MergesInProcess"]


class MergesInProcess:
    """`epochs` says how many epochs the merges last, over and over; without any, nothing is merged."""

    def __init__(self, work: WorkDirectory, store: DirectoryStore, epochs: Sequence[int]) -> None:
        self._work = work
        self._store = store
        self._epochs = itertools.cycle(epochs)
        self._left = 0
        self._answer: str | None = None
        self.ready = bool(epochs)

    def give(self, order: Order) -> None:
        order = Order.decode(order.encode())
        try:
            answer = MergeAnswer(tuple(carry_out(load_program(self._work), order, self._store)))
        except (HoldfastError, OSError) as error:
            answer = MergeAnswer(failed=str(error))
        self._answer, self._left = answer.encode(), next(self._epochs)

    def answer(self) -> MergeAnswer | None:
        if self._answer is None:
            return None
        self._left -= 1
        if self._left > 0:
            return None
        answer, self._answer = MergeAnswer.decode(self._answer), None
        return answer

    def close(self) -> None:
        self._answer, self.ready = None, False
