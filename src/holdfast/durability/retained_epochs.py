"""Which epochs are retained for readers: all of the last few, and some of the earlier ones.

Epochs may take milliseconds or minutes. So retention is given as a time, and the number of retained epochs is bounded
whatever their length: the older they are, the farther apart. Only epochs whose record is whole are kept for their age;
the store also keeps all records between such an epoch and those that refer back to it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["RetainedEpochs", "RetentionRule"]

LAST_EPOCHS = 16
_SHORT_SECONDS = 10.0
_SHORT_SPACING = 0.25
_LONG_PARTS = 128


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """The last `epochs` are retained. Where `seconds` are given, so are epochs of that time: some of each second for
    a while, so that a reader has time to read what it found, then one in each of 128 parts."""

    epochs: int = LAST_EPOCHS
    seconds: float = 0.0

    @property
    def spacing(self) -> float:
        """Of epochs that are older than a reader needs."""
        return max(_SHORT_SPACING, self.seconds / _LONG_PARTS)


@dataclass(frozen=True, slots=True)
class _KnownEpoch:
    at: float
    whole: bool


class RetainedEpochs:
    """Follows the epochs of a fragment that the store knows."""

    def __init__(self, rule: RetentionRule) -> None:
        self._rule = rule
        self._known: dict[int, _KnownEpoch] = {}
        self._kept: dict[int, float] = {}
        """Epochs before the last ones that are retained for their time, and when they were committed."""
        self._judged = 0
        """The last epoch of which it is decided whether it is kept for its time."""

    def add(self, epoch: int, at: float, *, whole: bool) -> None:
        """An epoch is known to the store."""
        self._known[epoch] = _KnownEpoch(at, whole)
        last = epoch - self._rule.epochs
        before = len(self._kept)
        for number in [number for number in self._known if self._judged < number <= last]:
            self._judge(number)
        self._judged = max(self._judged, last)
        if len(self._kept) != before:
            self._thin_out(at)

    def _judge(self, epoch: int) -> None:
        """Whether an epoch that is not among the last ones any more is kept for its time."""
        one = self._known[epoch]
        newest = next(reversed(self._kept.values()), None)  # it may be later than this one: clocks are set
        if self._rule.seconds and one.whole and (newest is None or abs(one.at - newest) >= _SHORT_SPACING):
            self._kept[epoch] = one.at

    def _thin_out(self, now: float) -> None:
        spacing, short = self._rule.spacing, min(_SHORT_SECONDS, self._rule.seconds)
        taken = set()
        for epoch, at in sorted(self._kept.items()):
            part = int(at // spacing)
            if now - at > self._rule.seconds or (now - at > short and part in taken):
                del self._kept[epoch]
            taken.add(part)

    @property
    def kept(self) -> Collection[int]:
        """The epochs before the last ones whose state must stay."""
        return self._kept.keys()

    def to_forget(self, epoch: int, needed: int) -> list[int]:
        """The epochs that the store need not know any more once `epoch` is committed, where all from `needed` on may
        have to be replayed: what is neither retained nor gone back to by a record that is."""
        first = min(needed, epoch - self._rule.epochs + 1, self._judged + 1)
        whole = max((number for number, one in self._known.items() if one.whole and number <= first), default=0)
        return [number for number in self._known if number < whole and number not in self._kept]

    def before(self, epoch: int) -> list[int]:
        """All epochs before one."""
        return [number for number in self._known if number < epoch]

    def forget(self, epochs: Collection[int]) -> None:
        """The store does not know them any more."""
        for epoch in epochs:
            self._known.pop(epoch, None)
            self._kept.pop(epoch, None)
