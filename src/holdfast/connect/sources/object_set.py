"""Which objects a file source has: those under an address, those that fit a pattern, or a list of them.

It is asked for the same things as a `FileSet`. Objects appear whole, so none is waited for. Their change time is when
they were put, by the clock of the store. An object that was sent in many parts over some minutes has the time when
that began: the memory of a growing source allows for ten minutes (`behind_ns`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import ClassVar, get_args

from holdfast.connect.formats.format_names import has_extension
from holdfast.connect.object_store.bucket import Bucket, StoredObject, bucket_at
from holdfast.connect.object_store.object_file import ObjectFile, ObjectStat
from holdfast.connect.object_store.storage_options import AnyOptions
from holdfast.connect.sinks.part_content import EPOCH_KEY, SinkFormat
from holdfast.connect.sources.file_set import FileId, Memory, is_complete_name
from holdfast.errors import CorruptFileError, DeclarationError

__all__ = ["ObjectSet"]

AnyPath = str | os.PathLike[str]
_MAGIC = frozenset("*?[")
_WHO = "files()"


@dataclass(frozen=True, slots=True)
class ObjectSet:
    """Names are relative to `root`, a directory in the bucket."""

    bucket: Bucket
    root: str
    pattern: str | None
    names: tuple[str, ...] | None = None
    behind_ns: ClassVar[int] = 600_000_000_000

    @staticmethod
    def of(where: AnyPath | Sequence[AnyPath], options: AnyOptions | None) -> ObjectSet | None:
        """The objects at an address; None for paths."""
        if not isinstance(where, (str, os.PathLike)):
            return _listed(where, options)
        found = bucket_at(where, options, _WHO)
        if found is None:
            return None
        bucket, key = found
        parts = key.split("/")
        magic = next((i for i, part in enumerate(parts) if _MAGIC & set(part)), None)
        if magic is not None:
            return ObjectSet(bucket, "/".join(parts[:magic]), "/".join(parts[magic:]))
        # What looks like a file may be a directory: some programs call theirs "events.parquet".
        if has_extension(key) and not os.fspath(where).endswith("/") and bucket.head(key) is not None:
            return ObjectSet(bucket, "/".join(parts[:-1]), None, (parts[-1],))
        return ObjectSet(bucket, key, "*")

    def describe(self) -> str:
        if self.names is not None:
            more = f" and {len(self.names) - 1} more" if len(self.names) > 1 else ""
            return f"{self.path(self.names[0])}{more}"
        return str(self.path(self.pattern or "")) if self.pattern != "*" else self.bucket.address(self.root)

    def path(self, name: str) -> ObjectFile:
        return ObjectFile(self.bucket, f"{self.root}/{name}" if self.root else name)

    def opened(self, name: str) -> ObjectFile:
        return self.path(name).pinned()

    def check(self, file: FileId) -> None:
        """Planning believes what it was told with the list of objects; who reads an object looks at it."""

    def is_missing(self) -> bool:
        return False

    def sample(self, most: int) -> list[Path]:
        return []

    def named(self, file: str) -> str | None:
        address = self.bucket.address(self.root)
        name = file.removeprefix(f"{address}/")
        if name == file and ("://" in file or file.startswith("/")):
            return None
        if self.names is not None:
            return name if name in self.names else None
        return name if _fits(name, self.pattern or "*") else None

    def present(self, memory: Memory | None = None) -> list[FileId]:
        if self.names is not None:
            return [self._named(name) for name in self.names if memory is None or not memory.is_past(name)]
        # Of a fixed set all that follows has a larger name.
        last = memory.last if memory is not None and memory.recent is None else ""
        after = self.path(last).key if last else None
        pattern = self.pattern or "*"
        found = []
        for stored in self.bucket.list(self.root, deep="/" in pattern or pattern == "**", after=after):
            name = stored.key.removeprefix(f"{self.root}/") if self.root else stored.key
            if _fits(name, pattern) and is_complete_name(name):
                found.append(_identity(name, stored))
        return sorted(found, key=lambda file: file.name)

    def must_exist(self, memory: Memory) -> None:
        if self.names is not None or memory.count or memory.skipped or self.present():
            return
        raise CorruptFileError(
            f"there is no input at {self.describe()}",
            cure="correct the address given to files(), or give grow=True to wait for objects",
        )

    def lies_in(self, place: Path) -> bool:
        """Whether what a sink writes at an address is read; a `Path` has taken a slash from it."""
        address = str(place).replace(":/", "://", 1)
        forms = get_args(SinkFormat)
        return any(self.named(f"{address}/{EPOCH_KEY}={0:012d}/part-00000.{form}") is not None for form in forms)

    def reaches(self, place: Path) -> bool:
        return False

    def identify(self, name: str) -> FileId | None:
        stored = self.bucket.head(self.path(name).key)
        return None if stored is None else _identity(name, stored)

    def _named(self, name: str) -> FileId:
        found = self.identify(name)
        if found is None:
            raise CorruptFileError(
                f"the input object {self.path(name)} does not exist", cure="correct the address given to files()"
            ).of(str(self.path(name)))
        return found


def _listed(where: Sequence[AnyPath], options: AnyOptions | None) -> ObjectSet | None:
    found = [bucket_at(place, None, _WHO) for place in where]
    if not any(found):
        bucket_at("", options, _WHO)  # paths have no options
        return None
    places = [bucket_at(place, options, _WHO) for place in where]
    buckets = {place[0] for place in places if place is not None}
    if None in places or len(buckets) > 1:
        raise DeclarationError(
            "files(): the list names several buckets, or objects and files",
            cure="read each of them with its own source, and use .union()",
        )
    [bucket] = buckets
    return ObjectSet(bucket, "", None, tuple(sorted(place[1] for place in places if place is not None)))


def _identity(name: str, stored: StoredObject) -> FileId:
    now = ObjectStat.of(stored)
    return FileId(name, now.st_size, now.st_mtime_ns, now.st_ctime_ns)


def _fits(name: str, pattern: str) -> bool:
    """As `glob` has it: "*" stays within a directory, "**" stands for any number of them."""
    return _parts_fit(name.split("/"), pattern.split("/"))


def _parts_fit(parts: list[str], patterns: list[str]) -> bool:
    if not patterns or not parts:
        return not patterns and not parts
    if patterns[0] == "**":
        rest = patterns[1:]
        return not rest or any(_parts_fit(parts[skipped:], rest) for skipped in range(len(parts)))
    return fnmatchcase(parts[0], patterns[0]) and _parts_fit(parts[1:], patterns[1:])
