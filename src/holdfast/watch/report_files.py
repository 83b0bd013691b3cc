"""Reports for people: files of JSON in `STORE/_events`, which stay when the events of that time are gone."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TypeVar

import msgspec

from holdfast.watch.event_log import event_directory

__all__ = ["keep_file", "kept_files"]

Report = TypeVar("Report")


def keep_file(store: Path, directory: str, name: str, report: msgspec.Struct, *, most: int) -> Path:
    """Write a report, whole or not at all; the oldest by their names go when there are more than `most`."""
    place = event_directory(store) / directory
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = place / f"{name}.json"
    made = path.with_suffix(".new")
    made.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    made.replace(path)
    for old in _files(store, directory)[most:]:
        old.unlink(missing_ok=True)
    return path


def kept_files(store: Path, directory: str, kind: type[Report]) -> list[Report]:
    """The newest first; what cannot be read is left out."""
    found = []
    for path in _files(store, directory):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            found.append(msgspec.json.decode(path.read_bytes(), type=kind))
    return found


def _files(store: Path, directory: str) -> list[Path]:
    return sorted((event_directory(store) / directory).glob("*.json"), reverse=True)
