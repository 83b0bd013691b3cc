"""Which p-units stay: those that a retained epoch names, and no others.

A segment stays as long as a retained epoch names any p-unit in it, and as long as a task may append to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from holdfast.store import DirectoryStore, Right, last_epoch, made_before, with_segments

__all__ = ["Retention"]


class Retention:
    """Follows the files of the last `retain` epochs.

    When an epoch leaves the retention, what it names and no epoch that stays does can go.
    """

    def __init__(
        self, store: DirectoryStore, retain: int, right: Right, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._clock = clock
        self._right = right
        self._retain = max(1, retain)
        self._epochs: dict[int, frozenset[str]] = {}
        self._growing: frozenset[str] = frozenset()
        """Segments that no retained epoch names, and that may be written to for epochs to come."""

    def keep_from(self, epoch: int) -> int:
        """The oldest epoch to keep when `epoch` is the newest."""
        return epoch - self._retain + 1

    def add(self, epoch: int, files: frozenset[str], pinned: Collection[int] = ()) -> None:
        """An epoch was committed: remove what only older epochs needed, unless they are pinned."""
        self._epochs[epoch] = with_segments(files)
        old = [number for number in self._epochs if number < self.keep_from(epoch) and number not in pinned]
        if old:
            gone = self._growing.union(*(self._epochs.pop(number) for number in old))
            for known in reversed(self._epochs.values()):  # the newest name most of it: little is left to look for
                gone -= known
            self._growing = frozenset(name for name in gone if (last_epoch(name) or 0) > epoch)
            self._store.remove(gone - self._growing, self._right)

    def forget(self, epoch: int) -> None:
        """Forget the epochs behind this one, because their files were lost; nothing is removed."""
        self._epochs = {number: files for number, files in self._epochs.items() if number <= epoch}

    def keep_only(self, epoch: int) -> None:
        """Forget all other epochs, which are not retained any more."""
        self._epochs = {number: files for number, files in self._epochs.items() if number == epoch}

    def names(self) -> frozenset[str]:
        """The p-units that must stay, and the segments that hold them."""
        return frozenset[str]().union(*self._epochs.values())

    def sweep(self, before: int | None = None, right: Right | None = None) -> None:
        """Remove every file that no retained epoch names: leftovers of lost attempts. What other hosts make now is for
        epochs that are not committed yet: with `before`, only what was made for epochs before that one goes.

        The right is that of the retention, unless another one is given. It is checked after the names are listed: what
        the next owner makes is not among them, however late this one gets to removing."""
        self._store.remove(self.leftovers(before), right or self._right)

    def leftovers(self, before: int | None = None) -> list[str]:
        """The files that `sweep` would remove. Where other hosts may be at work, a name that does not say its epoch, as
        that of a merge, is left over when it has not been touched for a day."""
        known, now = self.names(), self._clock()
        return [
            name
            for name in self._store.names()
            if name not in known and (made_before(name, before) or self._store.is_old(name, now))
        ]

    def remove(self, names: Collection[str]) -> None:
        self._store.remove(names, self._right)
