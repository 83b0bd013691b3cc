"""Which files a source has, which of them are new, and whether a file is still the one that was planned.

Files are taken in the order of their names. For a fixed set the name of the last file taken is all there is
to remember. A growing directory may also get a file whose name sorts before that, and it must not be lost;
yet the memory must stay small however long the source runs. So the memory is

- `last`: the largest name taken; every larger name is new;
- `recent`: the names of the files taken lately, by change time (ctime: when the file got its name
  or content);
- `count`: how many were taken, and `skipped`: the names of those that are not to be read, because a person said so;
- `floor`: a change time. A file whose name is not larger than `last` is new if it changed after `floor`
  and is not among `recent`; a file that changed at or before `floor` was taken.

A file that arrives gets the present as its change time, so it lies above the floor: the floor stays ten
seconds behind the newest file taken, and never passes a file that still waits.
"""

from __future__ import annotations

import glob as globbing
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from stat import S_ISREG
from typing import ClassVar

from holdfast.connect.base import Position
from holdfast.connect.formats.input_file import FileStat, InputFile
from holdfast.errors import CorruptFileError, DeclarationError
from holdfast.store.location import local_path

__all__ = ["SETTLE_NS", "FileId", "FileSet", "Memory", "is_complete_name"]

_KEEP = 1_000
SETTLE_NS = 10_000_000_000
_MAGIC = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class FileId:
    """A file as it was when it was planned. `name` is relative to the root of its set."""

    name: str
    size: int
    mtime_ns: int
    ctime_ns: int

    def check(self, path: InputFile, now: FileStat | None = None) -> None:
        """Refuse a file that is no longer the one that was planned: its slices would not replay."""
        try:
            now = path.stat() if now is None else now
        except FileNotFoundError as error:
            raise CorruptFileError(
                f"the input file {path} vanished after it was planned",
                cure="put the file back as it was; remove input files only after the epochs that"
                " read them are committed",
            ) from error
        if (now.st_size, now.st_mtime_ns) != (self.size, self.mtime_ns):
            raise CorruptFileError(
                f"the input file {path} changed after it was planned: it had {self.size} bytes and now has"
                f" {now.st_size}, modified {(now.st_mtime_ns - self.mtime_ns) / 1e9:+.3f} s from then",
                cure="put the file back as it was; write a file under a name that starts with '.' or"
                " '_' or ends with '.tmp' and rename it when it is complete, and never change it afterwards",
            )


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered of the files taken so far."""

    last: str = ""
    floor: int = -1
    recent: Mapping[str, int] | None = None
    count: int = 0
    skipped: tuple[str, ...] = ()

    @staticmethod
    def of(position: Position) -> Memory:
        more = (position.get("count", 0), tuple(position.get("skipped", ())))
        return Memory(position["last"], position["floor"], position["recent"], *more)

    def as_position(self) -> Position:
        return {
            "last": self.last,
            "floor": self.floor,
            "recent": None if self.recent is None else dict(self.recent),
            "count": self.count,
            "skipped": list(self.skipped),
        }

    def is_past(self, name: str) -> bool:
        """Whether a file of a fixed list was taken, or is not to be."""
        return name <= self.last or name in self.skipped

    def is_new(self, file: FileId) -> bool:
        if file.name in self.skipped:
            return False
        if file.name > self.last:
            return True
        return self.recent is not None and file.name not in self.recent and file.ctime_ns > self.floor

    def after(
        self, taken: Sequence[FileId], waiting: Sequence[FileId], *, grows: bool, behind_ns: int = SETTLE_NS
    ) -> Memory:
        """The memory once `taken` are taken, while `waiting` are new and still wait. The floor stays by `behind_ns`
        behind the newest."""
        if not taken:
            return self
        last = max(self.last, *(file.name for file in taken))
        count = self.count + len(taken)
        if not grows:
            return replace(self, last=last, count=count)
        recent = dict(self.recent or {})
        recent.update((file.name, file.ctime_ns) for file in taken)
        times = sorted(recent.values(), reverse=True)
        floor = self.floor
        if len(times) > _KEEP:
            bounds = [times[0] - behind_ns, times[_KEEP], *(file.ctime_ns - 1 for file in waiting)]
            floor = max(floor, min(bounds))
        recent = {name: time for name, time in recent.items() if time > floor}
        return replace(self, last=last, floor=floor, recent=recent, count=count)

    def without(self, name: str) -> Memory:
        """The memory with a file that is never to be read."""
        return replace(self, skipped=(*self.skipped, name))

    def with_changed(self, file: FileId) -> Memory:
        """The memory after a file that was begun has been changed, and is gone on with as it is now."""
        return self if self.recent is None else replace(self, recent={**self.recent, file.name: file.ctime_ns})

    def changed(self, present: Sequence[FileId]) -> list[str]:
        """The files that were written to after they were taken."""
        recent = self.recent or {}
        return [
            file.name
            for file in present
            if file.name in recent and min(file.mtime_ns, file.ctime_ns) > recent[file.name]
        ]


@dataclass(frozen=True, slots=True)
class FileSet:
    """A directory, a glob pattern or a list of files; names are relative to `root`, so the root may move."""

    root: str
    pattern: str | None
    names: tuple[str, ...] | None = None
    behind_ns: ClassVar[int] = SETTLE_NS
    """By how much a file may get its name later than its change time says."""

    @staticmethod
    def of(where: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> FileSet:
        if not isinstance(where, (str, os.PathLike)):
            if not where:
                raise DeclarationError("files() was given an empty list", cure="name at least one file")
            return FileSet("/", None, tuple(sorted(str(local_path(p, "files()").absolute())[1:] for p in where)))
        path = local_path(where, "files()").absolute()
        if path.is_file():
            return FileSet(str(path.parent), None, (path.name,))
        parts = path.parts
        magic = next((i for i, part in enumerate(parts) if _MAGIC & set(part)), None)
        if path.is_dir() or magic is None:
            return FileSet(str(path), "*")
        return FileSet(str(Path(*parts[:magic])), str(Path(*parts[magic:])))

    def describe(self) -> str:
        if self.names is not None:
            more = f" and {len(self.names) - 1} more" if len(self.names) > 1 else ""
            return f"{self.path(self.names[0])}{more}"
        return str(self.path(self.pattern or "")) if self.pattern != "*" else self.root

    def path(self, name: str) -> Path:
        return Path(self.root) / name

    def opened(self, name: str) -> Path:
        """The file, for one reading of it."""
        return self.path(name)

    def check(self, file: FileId) -> None:
        """Refuse a file that is not the one that was found."""
        file.check(self.path(file.name))

    def is_missing(self) -> bool:
        """Whether there is no directory to look for files in."""
        return not Path(self.root).is_dir()

    def sample(self, most: int) -> list[Path]:
        """What tasks must see as the driver does: some files, or the directory where there are none."""
        return [self.path(file.name) for file in self.present()[:most]] or [Path(self.root)]

    def named(self, file: str) -> str | None:
        """The name of a file in this set, given by that name or by its full path; None if it does not belong here."""
        name = file
        if os.path.isabs(file):
            roots = {Path(self.root): Path(file), Path(self.root).resolve(): Path(file).resolve()}
            found = [path.relative_to(root) for root, path in roots.items() if path.is_relative_to(root)]
            if not found:
                return None
            name = str(found[0])
        if self.names is not None:
            return name if name in self.names else None
        return name if fnmatch(name, self.pattern or "*") and ("/" not in name or self.pattern != "*") else None

    def present(self, memory: Memory | None = None) -> list[FileId]:
        """The complete files that are there now, in the order of their names. Of those that were named one by one, all
        must be there, but for those of which a memory says that they are done with."""
        if self.names is not None:
            names = [name for name in self.names if memory is None or not memory.is_past(name)]
        else:
            names = globbing.glob(self.pattern or "*", root_dir=self.root, recursive=True)
        found = []
        for name in sorted(set(names)):
            if self.names is not None and not self.path(name).exists():
                path = str(self.path(name))
                raise CorruptFileError(
                    f"the input file {path} does not exist", cure="correct the path given to files()"
                ).of(path)
            if self.names is not None or is_complete_name(name):
                found.append(self.identify(name))
        return [file for file in found if file is not None]

    def must_exist(self, memory: Memory) -> None:
        """Refuse a place that is not there, or a pattern of which nothing is, where nobody waits for it."""
        if self.names is not None:
            return
        if self.is_missing():
            raise CorruptFileError(
                f"the input directory {self.root} does not exist", cure="correct the path given to files()"
            )
        begun = memory.count or memory.skipped
        if self.pattern != "*" and not begun and not self.present():
            raise CorruptFileError(
                f"no input file matches {self.describe()}",
                cure="correct the pattern given to files(), or give grow=True to wait for files",
            )

    def lies_in(self, place: Path) -> bool:
        """Whether files are looked for in this directory or below it."""
        return self.names is None and Path(self.root).resolve().is_relative_to(place.resolve())

    def reaches(self, place: Path) -> bool:
        """Whether files are looked for above this directory, and in it, too, as the pattern is."""
        root, place = Path(self.root).resolve(), place.resolve()
        if self.names is not None or not place.is_relative_to(root):
            return False
        below = place.relative_to(root).parts
        if not is_complete_name("/".join(below)):
            return False
        folders = Path(self.pattern or "*").parts[:-1]
        for folder, name in zip(folders, below, strict=False):
            if folder == "**":
                return True
            if not fnmatch(name, folder):
                return False
        return len(folders) >= len(below)

    def identify(self, name: str) -> FileId | None:
        """The file as it is now; None if it is not there, or no file."""
        try:
            now = self.path(name).stat()
        except FileNotFoundError:
            return None
        return FileId(name, now.st_size, now.st_mtime_ns, now.st_ctime_ns) if S_ISREG(now.st_mode) else None


def is_complete_name(name: str) -> bool:
    """Writers hide what is not complete yet, as Spark and Holdfast's own sinks do."""
    return not name.endswith(".tmp") and not any(part.startswith((".", "_")) for part in name.split("/"))
