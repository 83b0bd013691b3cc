"""What one look at a store shows, kept for a moment: several screens and Prometheus may look at once.

The events of the last day are held in memory, and only what is new is read: at first those of the last hours, so that
the first page comes at once, and the rest beside. Everything else comes from the meta store.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast.errors import UnknownStateError
from holdfast.meta import MetaStore, ReplicaMeta, StreamMeta, opened_meta
from holdfast.replica.deployment import Deployment
from holdfast.replica.seat_store import Agreed, agreed_of
from holdfast.replica.shadow_report import ShadowReport, kept_shadows
from holdfast.ui.pipeline_status import PipelineStatus, known_pipelines, read_status, shadow_of
from holdfast.ui.stream_status import StreamStatus, read_stream
from holdfast.watch.event_kinds import EpochsDone, LoggedEvent
from holdfast.watch.event_reader import EventTail, event_pieces
from holdfast.watch.pipeline_description import DescribedPipeline, kept_descriptions

__all__ = ["Snapshot", "StoreWatch"]

_SPAN_SECONDS = 86_400.0
_MOST_EVENTS = 200_000
_FRESH_SECONDS = 0.4
_FIRST_SECONDS = 3_600.0
_TURN_SECONDS = 0.002
"""Between two pieces of the older events: pages are asked for meanwhile."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A store at one moment. `events` are those of the last day, oldest first; `counted` is how many of each pipeline
    and kind were seen since this process began to look, and never falls."""

    now: float
    statuses: Mapping[str, PipelineStatus]
    agreed: Mapping[str, Agreed]
    deployments: Mapping[str, Deployment]
    streams: Mapping[str, StreamStatus]
    descriptions: Mapping[str, DescribedPipeline]
    events: tuple[LoggedEvent, ...]
    rest: tuple[LoggedEvent, ...]
    """All events but those of epochs, which are by far the most."""
    counted: Mapping[tuple[str, str], int]
    shadows: Mapping[str, list[ShadowReport]] = field(default_factory=dict)
    """By pipeline, what came of new code that has followed it, newest first."""

    @property
    def pipelines(self) -> dict[str, tuple[str, ...]]:
        """The pipelines of the store, each with its fragments."""
        found = {
            name: tuple(part for part in described.fragments if part in self.statuses) or described.fragments
            for name, described in self.descriptions.items()
        }
        owned = {part for parts in found.values() for part in parts}
        return found | {name: (name,) for name in self.statuses if name not in owned and name not in found}

    def since(self, begin: float) -> tuple[LoggedEvent, ...]:
        """The events from a moment on."""
        return self.events[bisect.bisect_left(self.events, begin, key=lambda event: event.at) :]

    def epochs(self, pipeline: str, seconds: float) -> list[EpochsDone]:
        """What was committed in the last seconds."""
        found = self.since(self.now - seconds)
        return [event for event in found if isinstance(event, EpochsDone) and event.pipeline == pipeline]

    def of(self, pipeline: str, kinds: Collection[str] = ()) -> list[LoggedEvent]:
        """The events of a pipeline, newest first."""
        parts = {pipeline, *self.pipelines.get(pipeline, ())}
        return [
            event
            for event in reversed(self.events if not kinds or "epochs" in kinds else self.rest)
            if (event.pipeline in parts or event.fragment in parts) and (not kinds or event.kind in kinds)
        ]


class StoreWatch:
    """Looks at a store, at most every few tenths of a second. A store that is empty yet has no pipelines."""

    def __init__(self, store: Path, meta: str | None = None, clock: Callable[[], float] = time.time) -> None:
        self.store = store
        self.meta = meta
        self._clock = clock
        self._lock = threading.Lock()
        self._begun = clock()
        self._tail = EventTail(store, self._begun - _FIRST_SECONDS)
        self._older: threading.Thread | None = None
        self._events: list[LoggedEvent] = []
        self._rest: list[LoggedEvent] = []
        self._counted: dict[tuple[str, str], int] = {}
        self._last: Snapshot | None = None

    def look(self) -> Snapshot:
        with self._lock:
            now = self._clock()
            if self._last is None or not 0 <= now - self._last.now < _FRESH_SECONDS:
                self._add(self._tail.new(), now)
                if self._older is None:
                    self._older = threading.Thread(target=self._read_older, name="older events", daemon=True)
                    self._older.start()
                self._last = self._snapshot(now)
            return self._last

    def settle(self) -> None:
        """Wait until the events of the whole day are there."""
        self.look()
        if self._older is not None:
            self._older.join()

    def _read_older(self) -> None:
        until = self._begun - _FIRST_SECONDS
        found: list[LoggedEvent] = []
        for piece in event_pieces(self.store, since=self._begun - _SPAN_SECONDS, until=until):
            found += piece
            time.sleep(_TURN_SECONDS)
        found.sort(key=lambda event: event.at)
        with self._lock:
            self._add(found, self._clock())
            self._last = None

    def _add(self, new: list[LoggedEvent], now: float) -> None:
        if not new:
            return
        for event in (found for found in new if found.at >= self._begun):
            key = (event.pipeline, event.kind)
            self._counted[key] = self._counted.get(key, 0) + 1
        self._events = _merged(self._events, new, now)
        self._rest = _merged(self._rest, [event for event in new if not isinstance(event, EpochsDone)], now)

    def _snapshot(self, now: float) -> Snapshot:
        described, events = kept_descriptions(self.store), (tuple(self._events), tuple(self._rest))
        try:
            with opened_meta(self.store, self.meta) as opened:
                return self._read(opened, now, described, events)
        except UnknownStateError:
            return Snapshot(now, {}, {}, {}, {}, described, *events, dict(self._counted))

    def _read(
        self,
        opened: MetaStore,
        now: float,
        described: dict[str, DescribedPipeline],
        events: tuple[tuple[LoggedEvent, ...], tuple[LoggedEvent, ...]],
    ) -> Snapshot:
        names, streams, replicas = known_pipelines(opened), StreamMeta(opened), ReplicaMeta(opened)
        shadows = kept_shadows(self.store)
        return Snapshot(
            now,
            {name: replace(read_status(opened, name, now), shadow=shadow_of(shadows, name)) for name in names},
            {name: agreed_of(row) for name, row in replicas.rows(names).items()},
            {name: Deployment.decode(text) for name, text in replicas.deployed().items()},
            {name: read_stream(streams, name) for name in streams.streams()},
            described,
            *events,
            dict(self._counted),
            shadows,
        )


def _merged(events: list[LoggedEvent], new: list[LoggedEvent], now: float) -> list[LoggedEvent]:
    """In order, since hosts write at their own pace; without what is older than a day, or too much."""
    made = [*events, *new]
    if events and any(event.at < events[-1].at for event in new):
        made.sort(key=lambda event: event.at)
    begin = bisect.bisect_left(made, now - _SPAN_SECONDS, key=lambda event: event.at)
    return made[max(begin, len(made) - _MOST_EVENTS) :]
