"""The events of a store: files of JSON lines below `STORE/_events`, which many processes write and anybody reads.

Every process that writes has files of its own, so that no lock is needed and hosts on several machines can share the
directory. A file is called after the moment it was begun, its writer and the version of the format, and another one is
begun after an hour or 8 MB. A thread appends what has come, about once a second, in one write. Nothing is synced:
events decide nothing. So `kill -9` loses at most the last second of them, and a loss of power what the system had not
written; a line that was cut off is skipped.

Whoever begins a file removes old ones: those of more than a week, and the oldest where there are too many events, or
too many bytes of them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.formats import EVENT_VERSION
from holdfast.watch.event_kinds import AnyEvent, LoggedEvent

__all__ = ["EventLog", "EventRetention", "event_directory", "event_files"]

_DIRECTORY = "_events"  # no pipeline has such a name: those begin with a letter or a digit
_FILE_SECONDS = 3600.0
_FILE_BYTES = 8_000_000
_FLUSH_SECONDS = 0.8
_NEW_SECONDS = 2 * _FILE_SECONDS
_log = logging.getLogger(__name__)
_UNSAFE = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True, slots=True)
class EventRetention:
    """How long events are kept, how many of them, and how many bytes: what is beyond any of them goes."""

    seconds: float = 7 * 86_400.0
    events: int = 500_000
    bytes: int = 500_000_000


def event_directory(store: Path) -> Path:
    return store / _DIRECTORY


def event_files(store: Path) -> list[Path]:
    """All files of this version, the oldest first."""
    return sorted(event_directory(store).glob(f"*.v{EVENT_VERSION}.ndjson"))


class EventLog:
    """Appends events, from a thread of its own. `put` may be called by any thread, and never waits for the disk."""

    def __init__(
        self, store: Path, writer: str = "run", *, retention: EventRetention | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._store = store
        self._writer = _UNSAFE.sub("-", writer)
        self._retention = retention or EventRetention()
        self._clock = clock
        self._encoder = msgspec.json.Encoder()
        self._events: list[LoggedEvent] = []
        self._summing: list[Callable[[], Iterable[LoggedEvent]]] = []
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._file: int | None = None
        self._bytes, self._begun = 0, 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="events", daemon=True)
        self._thread.start()

    def put(self, event: LoggedEvent) -> None:
        with self._lock:
            self._events.append(event)

    def ask(self, summed: Callable[[], Iterable[LoggedEvent]]) -> None:
        """Before each write, ask for events that are sums of what has happened since the last one."""
        with self._lock:
            self._summing.append(summed)

    def flush(self) -> None:
        """Append all that has come. A full disk stops nothing: events are then lost."""
        with self._writing:
            with self._lock:
                found, self._events = self._events, []
                summing = list(self._summing)
            for summed in summing:
                try:
                    found += summed()
                except Exception:  # noqa: BLE001 - no error of events ends the run
                    _log.exception("events could not be summarised")
            found.sort(key=lambda event: event.at)
            lines = b"".join(map(self._line, found))
            if lines:
                with contextlib.suppress(OSError):
                    self._append(lines)

    def _line(self, event: LoggedEvent) -> bytes:
        try:
            return self._encoder.encode(event) + b"\n"
        except UnicodeEncodeError:  # a file may have any name: what is no text is shown as a question mark
            texts = {name: _text(value) for name, value in msgspec.structs.asdict(event).items()}
            return self._encoder.encode(msgspec.structs.replace(event, **texts)) + b"\n"

    def close(self) -> None:
        """Append the rest, and end."""
        self._over.set()
        self._thread.join()
        self.flush()
        self._end_file()

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        while not self._over.wait(_FLUSH_SECONDS):
            self.flush()

    def _append(self, lines: bytes) -> None:
        now = self._clock()
        if self._file is None or self._bytes >= _FILE_BYTES or now - self._begun >= _FILE_SECONDS:
            self._end_file()
            self._begin_file(now)
        assert self._file is not None
        written = os.write(self._file, lines)
        self._bytes += written
        if written < len(lines):  # the disk is full: the next event begins a line of its own
            self._end_file()

    def _begin_file(self, now: float) -> None:
        place = event_directory(self._store)
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"{int(now * 1000):014d}-{self._writer}-{os.getpid()}.v{EVENT_VERSION}.ndjson"
        self._file = os.open(place / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._bytes, self._begun = os.fstat(self._file).st_size, now
        for path in _outdated(self._store, self._retention, now):
            path.unlink(missing_ok=True)

    def _end_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _outdated(store: Path, retention: EventRetention, now: float) -> Iterator[Path]:
    """The files to remove. What was written to of late stays, since its writer may still have it open."""
    events = size = 0
    for path in reversed(event_files(store)):
        with contextlib.suppress(OSError):
            status = path.stat()
            age, full = now - status.st_mtime, events >= retention.events or size >= retention.bytes
            if age > retention.seconds or (full and age > _NEW_SECONDS):
                yield path
            else:
                events += path.read_bytes().count(b"\n")
                size += status.st_size


def _text(value: object) -> object:
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


EVENTS = msgspec.json.Decoder(AnyEvent)
"""Reads one line."""
