"""Which files of a growing directory are complete, so that they may be taken.

A file is complete

- if its format says so: Parquet and Arrow files end with a footer;
- if its change time is later than its modification time: after the last byte was written it was renamed into place, or
  given other times, as `cp -p` does at the end;
- if its size and modification time have stood still for a while.

How long it has stood still is what was seen here, since the clock of a file server may differ from ours; only a file
that has not been written for a minute is taken without a second look.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.connect.formats.base import FileFormat
from holdfast.connect.sources.listing import FileId

__all__ = ["SettlingFiles"]

_OLD_SECONDS = 60.0


@dataclass(slots=True)
class SettlingFiles:
    """`seconds` is how long a file must have stood still; 0 takes every file as it is found."""

    seconds: float
    clock: Callable[[], float] = time.time
    _seen: dict[str, tuple[int, int, float]] = field(default_factory=dict)

    def is_complete(self, file: FileId, path: Path, format: FileFormat) -> bool:
        now = self.clock()
        if not self.seconds or now - file.mtime_ns / 1e9 >= max(_OLD_SECONDS, self.seconds):
            return True
        whole = format.is_whole(path)
        renamed = whole is None and file.size > 0 and file.ctime_ns > file.mtime_ns
        return bool(whole) or renamed or self._stands_still(file, now)

    def _stands_still(self, file: FileId, now: float) -> bool:
        size, mtime_ns, since = self._seen.get(file.name, (-1, -1, now))
        if (size, mtime_ns) != (file.size, file.mtime_ns):
            since = now
            self._seen[file.name] = (file.size, file.mtime_ns, now)
        return now - since >= self.seconds

    def only(self, waiting: Collection[str]) -> None:
        """Forget the files that do not wait any more."""
        for name in self._seen.keys() - set(waiting):
            del self._seen[name]
