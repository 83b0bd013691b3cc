"""How many cases an experiment begins within the time it has."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["TimeLimit"]


@dataclass(slots=True)
class TimeLimit:
    """What may be begun: a case that would take as long as the longest before it must end within `seconds`."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    skipped: list[str] = field(default_factory=list)
    _began: float = field(init=False)
    _last: float = field(init=False)
    _longest: float = 0.0

    def __post_init__(self) -> None:
        self._began = self._last = self.clock()

    def allows(self, case: str, needed: bool = False) -> bool:
        """Ask before each case. What is `needed` to judge anything is allowed; what is not allowed is noted."""
        now = self.clock()
        self._longest, self._last = max(self._longest, now - self._last), now
        if needed or now + self._longest - self._began <= self.seconds:
            return True
        self.skipped.append(case)
        return False

    def notes(self) -> list[str]:
        return [f"Left out, because the time was up: {', '.join(self.skipped)}."] if self.skipped else []
