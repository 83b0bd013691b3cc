"""Reading the events of a store: those of some time, and those that come, while others write them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import msgspec

from holdfast.watch.event_kinds import LoggedEvent
from holdfast.watch.event_log import EVENTS, event_files

__all__ = ["EventTail", "event_pieces", "read_events"]

_SLACK_SECONDS = 5.0
"""An event is written a little later than it happened."""
_PIECE_BYTES = 1 << 16


def read_events(
    store: Path,
    *,
    since: float | None = None,
    until: float | None = None,
    kinds: Collection[str] = (),
    pipeline: str | None = None,
) -> list[LoggedEvent]:
    """The events from `since` on, before `until`, oldest first."""
    found: list[LoggedEvent] = []
    for path in event_files(store):
        with contextlib.suppress(OSError):  # it may have been removed meanwhile
            if since is None or path.stat().st_mtime >= since - _SLACK_SECONDS:
                found += _decoded(path.read_bytes(), since)
    chosen = [
        event
        for event in found
        if (until is None or event.at < until)
        and (not kinds or event.kind in kinds)
        and (pipeline is None or event.pipeline == pipeline or event.fragment == pipeline)
    ]
    return sorted(chosen, key=lambda event: event.at)


class EventTail:
    """Follows the events of a store: each call of `new` returns what has been written since the one before; the first
    one returns what is there from `since` on."""

    def __init__(self, store: Path, since: float) -> None:
        self._store = store
        self._since = since
        self._read: dict[str, int] = {}

    def new(self) -> list[LoggedEvent]:
        found: list[LoggedEvent] = []
        files = event_files(self._store)
        for path in files:
            with contextlib.suppress(OSError):
                found += self._rest(path)
        self._read = {path.name: self._read[path.name] for path in files if path.name in self._read}
        return sorted(found, key=lambda event: event.at)

    def _rest(self, path: Path) -> Iterator[LoggedEvent]:
        status, done = path.stat(), self._read.get(path.name, 0)
        if status.st_size <= done or (not done and status.st_mtime < self._since - _SLACK_SECONDS):
            return iter(())
        with path.open("rb") as file:
            file.seek(done)
            read = file.read()
        whole = read[: read.rfind(b"\n") + 1]  # the rest of a line comes later
        self._read[path.name] = done + len(whole)
        return _decoded(whole, self._since)


def event_pieces(store: Path, *, since: float, until: float) -> Iterator[list[LoggedEvent]]:
    """The events from `since` on, before `until`, a few at a time and in the order of the files: between two pieces,
    other threads have their turn."""
    for path in event_files(store):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime >= since - _SLACK_SECONDS:
                for piece in _pieces(path.read_bytes()):
                    yield [event for event in _events(piece) if since <= event.at < until]


def _decoded(content: bytes, since: float | None) -> Iterator[LoggedEvent]:
    for piece in _pieces(content):
        for event in _events(piece):
            if since is None or event.at >= since:
                yield event


def _pieces(content: bytes) -> Iterator[bytes]:
    """Whole lines of it, which are decoded in about a millisecond: no other thread runs meanwhile."""
    begin = 0
    while begin < len(content):
        end = content.find(b"\n", begin + _PIECE_BYTES) + 1 or len(content)
        yield content[begin:end]
        begin = end


def _events(content: bytes) -> Iterable[LoggedEvent]:
    """Without the lines that were cut off by a crash, or are of a kind that a newer version has."""
    try:
        return EVENTS.decode_lines(content)
    except msgspec.MsgspecError:
        return _one_by_one(content)


def _one_by_one(content: bytes) -> Iterator[LoggedEvent]:
    for line in content.splitlines():
        with contextlib.suppress(msgspec.MsgspecError):
            yield EVENTS.decode(line)
