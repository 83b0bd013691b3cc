"""Which p-units stay: those that a retained epoch names, and no others."""

from __future__ import annotations

from collections import deque

from holdfast.store import DirectoryStore

__all__ = ["Retention"]


class Retention:
    """Follows the files of the last `retain` epochs.

    A p-unit is named by consecutive epochs and, once dropped, never again. So when an epoch leaves the retention, what
    it names and the next one does not can go.
    """

    def __init__(self, store: DirectoryStore, retain: int) -> None:
        self._store = store
        self._retain = max(1, retain)
        self._epochs: deque[tuple[int, frozenset[str]]] = deque()

    def keep_from(self, epoch: int) -> int:
        """The oldest epoch to keep when `epoch` is the newest."""
        return epoch - self._retain + 1

    def add(self, epoch: int, files: frozenset[str]) -> None:
        """An epoch was committed: remove what only older epochs needed."""
        self._epochs.append((epoch, files))
        while self._epochs[0][0] < self.keep_from(epoch):
            _, names = self._epochs.popleft()
            self._store.remove(names - self._epochs[0][1])

    def sweep(self) -> None:
        """Remove every file that no retained epoch names: leftovers of lost attempts."""
        known = frozenset[str]().union(*(names for _, names in self._epochs))
        self._store.remove([name for name in self._store.names() if name not in known])
