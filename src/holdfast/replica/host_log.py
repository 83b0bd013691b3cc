"""The log of a host: the output of its process, in a file that does not grow forever.

The process keeps the file open for its whole life and appends to it, so it cannot be given another one. To rotate the
log, the content is copied to a second file, and the first one is emptied. A line that is written in between is lost,
which is acceptable for a log.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

__all__ = ["MOST_BYTES", "log_file", "rotate"]

MOST_BYTES = 8 << 20
_KEPT = 3
"""Older files than the one that is written, NAME.log.1 being the newest of them."""


def log_file(store: Path, host: str) -> Path:
    return store / "hosts" / f"{host}.log"


def rotate(log: Path, most: int = MOST_BYTES) -> bool:
    """Begin a new file if the log has more bytes than these; whether it was so. The oldest of the files kept goes."""
    try:
        if log.stat().st_size <= most:
            return False
    except FileNotFoundError:
        return False
    for number in range(_KEPT, 1, -1):
        older = log.with_name(f"{log.name}.{number - 1}")
        if older.exists():
            older.replace(log.with_name(f"{log.name}.{number}"))
    draft = log.with_name(f".{log.name}")
    shutil.copyfile(log, draft)
    os.truncate(log, 0)
    draft.replace(log.with_name(f"{log.name}.1"))
    return True
