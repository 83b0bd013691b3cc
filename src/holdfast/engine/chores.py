"""Chores: work after a commit that need not be finished before the next epoch starts.

Reports, retention and the other chores of a commit take about as long as its transaction. Meanwhile, the tasks of the
next epoch can run.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Chores"]


class Chores:
    """Those of one epoch at a time. Who waits for anything, commits or ends does them first."""

    def __init__(self) -> None:
        self._left: Callable[[], None] | None = None

    def put_off(self, work: Callable[[], None]) -> None:
        self._left = work

    def do(self) -> None:
        """What was put off, if it is not done yet."""
        left, self._left = self._left, None
        if left is not None:
            left()
