"""What the sources of a fragment have to tell people: told once when it changes, and kept for `status`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from holdfast.connect.base import Position, Source
from holdfast.connect.spark_types import notices_of_spark
from holdfast.engine.observer import Observer
from holdfast.epoch.deadline import Deadlines
from holdfast.meta import Lease, MetaStore, Repairs
from holdfast.plan.program import Program

__all__ = ["Notices"]

_SECONDS = 5.0
_NOTICES = "the source, which was asked what people should know (notices),"


@dataclass(slots=True)
class Notices:
    """Looks at the sources every few seconds; the observer gets each new notice as a line."""

    program: Program
    meta: MetaStore
    observer: Observer
    clock: Callable[[], float]
    deadlines: Deadlines
    _looked_at: float | None = None
    _known: list[str] | None = field(default=None)

    def look(self, lease: Lease, positions: Mapping[str, Position]) -> None:
        now = self.clock()
        if self._looked_at is not None and 0 <= now - self._looked_at < _SECONDS:
            return
        self._looked_at = now
        found = [
            f"source '{node.name}': {text}"
            for node in self.program.sources
            for text in (
                self.deadlines.call(node.name, None, _NOTICES, node.source.notices, positions[node.name])
                if isinstance(node.source, Source)
                else notices_of_spark(node.source.frame)
            )
        ]
        if found == self._known:
            return
        for text in found:
            if text not in (self._known or ()):
                self.observer.notice(self.program.name, text)
        repairs = Repairs(self.meta)
        if found or repairs.noticed(self.program.name):
            repairs.notice(lease, found, now)
        self._known = found
