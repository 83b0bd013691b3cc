"""Which files of a growing directory are complete, so that they may be taken.

A file is complete

- if its format says so: Parquet and Arrow files end with a footer;
- if its change time is later than its modification time: after the last byte was written it was renamed into place, or
  given other times, as `cp -p` does at the end;
- if its size and modification time have stood still for a while.

How long it has stood still is what was seen here, since the clock of a file server may differ from ours. A file that by
our clock was last written ten seconds longer ago than it must stand still only has to be the same at two looks; one
that has not been written for a minute is taken without a second look.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from holdfast.connect.formats.file_format import FileFormat
from holdfast.connect.formats.input_file import InputFile
from holdfast.connect.sources.file_set import FileId

__all__ = ["SettlingFiles"]

_OLD_SECONDS = 60.0
_SKEW_SECONDS = 10.0
"""How far the clock of a file server may differ from ours, where two looks tell the rest."""
_LOOKS_APART = 0.5
_SLOW_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """A file that waits: when it was seen for the first time, and as what since when."""

    first: float
    size: int
    mtime_ns: int
    since: float


@dataclass(slots=True)
class SettlingFiles:
    """`seconds` is how long a file must have stood still; 0 takes every file as it is found."""

    seconds: float
    clock: Callable[[], float] = time.time
    _seen: dict[str, _Seen] = field(default_factory=dict)

    def see(self, waiting: Sequence[FileId]) -> None:
        """These files wait now: how long they stand still is counted for all of them, and others are forgotten."""
        for name in self._seen.keys() - {file.name for file in waiting}:
            del self._seen[name]
        now = self.clock()
        for file in waiting if self.seconds else ():
            self._look(file, now)

    def is_complete(self, file: FileId, path: InputFile, format: FileFormat) -> bool:
        now = self.clock()
        if not self.seconds or now - file.mtime_ns / 1e9 >= max(_OLD_SECONDS, self.seconds):
            return True
        whole = format.is_whole(path)
        renamed = whole is None and file.size > 0 and file.ctime_ns > file.mtime_ns
        return bool(whole) or renamed or self._stands_still(file, now)

    def is_slow(self, name: str) -> bool:
        """Whether a file has been waited for so long that people should know."""
        return name in self._seen and self.clock() - self._seen[name].first >= max(_SLOW_SECONDS, 2 * self.seconds)

    def _stands_still(self, file: FileId, now: float) -> bool:
        still = now - self._look(file, now).since
        old = now - file.mtime_ns / 1e9 >= self.seconds + _SKEW_SECONDS
        return still >= self.seconds or (old and still >= _LOOKS_APART)

    def _look(self, file: FileId, now: float) -> _Seen:
        seen = self._seen.get(file.name)
        if seen is None or (seen.size, seen.mtime_ns) != (file.size, file.mtime_ns):
            seen = _Seen(now if seen is None else seen.first, file.size, file.mtime_ns, now)
            self._seen[file.name] = seen
        return seen
