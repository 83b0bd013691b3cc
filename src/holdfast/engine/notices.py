"""Notices about a running fragment: what its sources report, whether a lookup table cannot be read, and whether many
rows are late.

Each is reported once when it changes, and stored for `status`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.connect.base import Position, Source
from holdfast.connect.spark_types import notices_of_spark
from holdfast.engine.epoch_input import ask
from holdfast.engine.observer import Observer
from holdfast.epoch.deadline import Deadlines
from holdfast.epoch.facts import EpochFacts
from holdfast.meta import Lease, MetaStore, Repairs
from holdfast.plan.program import Program

__all__ = ["Notices"]

_SECONDS = 5.0
_NOTICES = "the source, which was asked for its notices (notices),"
_MANY_LATE = 0.1
"""The share of an epoch's rows."""
_LATE_SECONDS = 900.0


@dataclass(slots=True)
class Notices:
    """Looks at the sources every few seconds; the observer gets each new notice as a line."""

    program: Program
    meta: MetaStore
    observer: Observer
    clock: Callable[[], float]
    deadlines: Deadlines
    of_tables: Callable[[], Sequence[str]] = tuple
    """What to report about lookup tables."""
    _looked_at: float | None = None
    _of_sources: list[str] = field(default_factory=list)
    _late: tuple[float, str] | None = None
    """When it was reported that many rows are late, and how."""
    _known: list[str] | None = field(default=None)

    def look(self, lease: Lease, positions: Mapping[str, Position]) -> None:
        now = self.clock()
        if self._looked_at is not None and 0 <= now - self._looked_at < _SECONDS:
            return
        self._looked_at = now
        self._of_sources = [
            f"source '{node.name}': {text}"
            for node in self.program.sources
            for text in (
                ask(self.deadlines, node, None, _NOTICES, node.source.notices, positions[node.name])
                if isinstance(node.source, Source)
                else notices_of_spark(node.source.frame)
            )
        ]
        self._of_sources += self.of_tables()
        if not self._told_lately(now):
            self._late = None
        self._tell(lease, now)

    def committed(self, lease: Lease, epoch: int, facts: EpochFacts) -> None:
        """Report an epoch in which many rows were late, if nothing reads those, and then no other for a while."""
        dropped = {name: rows for name, rows in facts.late_by.items() if f"{name}.late" not in self.program.nodes}
        operator = max(dropped, key=dropped.__getitem__, default="")
        now = self.clock()
        if not operator or dropped[operator] <= _MANY_LATE * facts.read or self._told_lately(now):
            return
        text = (
            f"operator '{operator}': {dropped[operator]:,} rows came too late for its windows in epoch {epoch}, which"
            f" read {facts.read:,}, and were dropped: declare the source with more lateness, read files of several"
            " writers with order='arrival', or take such rows from .late"
        )
        self._late = (now, text)
        self._tell(lease, now)

    def _told_lately(self, now: float) -> bool:
        return self._late is not None and 0 <= now - self._late[0] < _LATE_SECONDS

    def _tell(self, lease: Lease, now: float) -> None:
        found = [*self._of_sources, *([] if self._late is None else [self._late[1]])]
        if found == self._known:
            return
        for text in found:
            if text not in (self._known or ()):
                self.observer.notice(self.program.name, text)
        repairs = Repairs(self.meta)
        if found or repairs.noticed(self.program.name):
            repairs.notice(lease, found, now)
        self._known = found
