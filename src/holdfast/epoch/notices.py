"""What the sources of a fragment have to tell people: told once when it changes, and kept for `status`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.connect.base import Source
from holdfast.connect.spark import notices_of_spark
from holdfast.meta import Lease, MetaStore, Repairs
from holdfast.plan.program import Program

__all__ = ["Notices"]

_SECONDS = 5.0


@dataclass(slots=True)
class Notices:
    """Looks at the sources every few seconds; `tell` gets each new notice as a line."""

    program: Program
    meta: MetaStore
    tell: Callable[[str], None]
    clock: Callable[[], float]
    _looked_at: float | None = None
    _known: list[str] | None = field(default=None)

    def look(self, lease: Lease, positions: Mapping[str, Any]) -> None:
        now = self.clock()
        if self._looked_at is not None and 0 <= now - self._looked_at < _SECONDS:
            return
        self._looked_at = now
        found = [
            f"source '{node.name}': {text}"
            for node in self.program.sources
            for text in (
                node.source.notices(positions[node.name])
                if isinstance(node.source, Source)
                else notices_of_spark(node.source.frame)
            )
        ]
        if found == self._known:
            return
        for text in found:
            if text not in (self._known or ()):
                self.tell(text)
        repairs = Repairs(self.meta)
        if found or repairs.noticed(self.program.name):
            repairs.notice(lease, found, now)
        self._known = found
