"""When a sink shows what it has gathered: after so much time, or so many bytes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EVERY_EPOCH", "Rhythm"]


@dataclass(frozen=True, slots=True)
class Rhythm:
    """Publications are at least `every` seconds apart, unless `most_bytes` have been collected earlier."""

    every: float = 0.0
    most_bytes: int | None = None

    def due(self, since: float, gathered: int) -> bool:
        """Whether it is time, so many seconds after the last publication. After a quiet time it is so at once: nothing
        waits longer than it must."""
        return since >= self.every or (self.most_bytes is not None and gathered >= self.most_bytes)


EVERY_EPOCH = Rhythm()
"""Each epoch on its own, as soon as it is committed."""
