"""A simulated disk: real files in memory, of which a power loss takes what was not synced.

What is durable is known apart from the files: the bytes of a file as of its last fsync, the names in a directory as of
the directory's. A rename is all or nothing, and is durable with either of its directories. After a power loss each name
that was changed since is the old or the new one, and a file that was not synced has its bytes, some of them, or none.
Of a file that was appended to since its last fsync, this holds for what was appended.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast_lab.simulate.scheduler import Scheduler

__all__ = ["Disk"]

_SYNC_SECONDS = 0.004
_CHANGE_SECONDS = 0.00005


@dataclass(frozen=True, slots=True)
class _Rename:
    source: tuple[int, str]
    target: tuple[int, str]
    inode: int


@dataclass(slots=True)
class Disk:
    """All files below `root`."""

    scheduler: Scheduler
    root: Path
    full_until: float = 0.0
    slow_until: float = 0.0
    _names: dict[int, dict[str, int]] = field(default_factory=dict)
    """Of each directory, the durable names with their inodes."""
    _bytes: dict[int, bytes] = field(default_factory=dict)
    """Of each file, the durable content."""
    _directories: set[int] = field(default_factory=set)
    _renames: list[_Rename] = field(default_factory=list)

    def __post_init__(self) -> None:
        inode = os.stat(self.root).st_ino
        self._names[inode] = {}
        self._directories.add(inode)

    # what processes ask for

    def covers(self, path: Any) -> bool:
        return self.scheduler.is_simulated() and str(path).startswith(str(self.root))

    def short(self, path: Any) -> str:
        return str(path)[len(str(self.root)) + 1 :]

    def check_space(self, path: Any) -> None:
        if self.scheduler.time < self.full_until:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    @property
    def _is_slow(self) -> bool:
        return self.scheduler.time < self.slow_until

    def change(self, what: str) -> None:
        """A call that changes names takes its time."""
        self.scheduler.step(what, _CHANGE_SECONDS * (400.0 if self._is_slow else 1.0))

    def sync(self, handle: int) -> None:
        """What `os.fsync` and `os.fdatasync` do."""
        path = os.readlink(f"/proc/self/fd/{handle}")
        random = self.scheduler.random.random()
        self.scheduler.step(f"fsync {self.short(path)}", _SYNC_SECONDS * random * (40.0 if self._is_slow else 1.0))
        self.check_space(path)
        found = os.fstat(handle)
        if found.st_ino in self._directories or os.path.isdir(path):
            self._sync_directory(found.st_ino, path)
        else:
            with io.FileIO(os.open(path, os.O_RDONLY)) as file:
                self._bytes[found.st_ino] = file.readall()

    def _sync_directory(self, inode: int, path: str) -> None:
        self._directories.add(inode)
        names = {}
        with os.scandir(path) as entries:
            for entry in entries:
                number = entry.inode()
                names[entry.name] = number
                if entry.is_dir(follow_symlinks=False):
                    self._directories.add(number)
        for rename in [known for known in self._renames if inode in (known.source[0], known.target[0])]:
            # A rename is durable as a whole: also in the other directory.
            self._renames.remove(rename)
            (there, old), (where, new) = rename.source, rename.target
            if there != inode and self._names.get(there, {}).get(old) == rename.inode:
                del self._names[there][old]
            if where != inode:
                self._names.setdefault(where, {})[new] = rename.inode
        self._names[inode] = names

    def renamed(self, source: str, target: str) -> Callable[[], None]:
        """To be called when a rename is done: notes it."""
        inode = os.stat(source).st_ino
        there = (os.stat(os.path.dirname(source)).st_ino, os.path.basename(source))
        where = (os.stat(os.path.dirname(target)).st_ino, os.path.basename(target))
        if os.path.isdir(source):
            self._directories.add(inode)
        return lambda: self._renames.append(_Rename(there, where, inode))

    def is_durable(self, path: str, size: int = 0) -> bool:
        """Whether a file would be there after a power loss, with all its bytes as of its last fsync, at least `size` of
        them."""
        try:
            inode = os.stat(path).st_ino
        except FileNotFoundError:
            return False
        if inode not in self._bytes or len(self._bytes[inode]) < size:
            return False
        place, root = path, str(self.root)
        while place != root:
            place, name = os.path.split(place)
            above = os.stat(place).st_ino
            if self._names.get(above, {}).get(name) != inode:
                return False
            inode = above
        return True

    # what befalls it

    def lose_power(self) -> None:
        """Bring the files to what a machine finds that comes up again."""
        draw = self.scheduler.random
        contents: dict[int, bytes] = {}
        now: dict[int, dict[str, int]] = {}
        self._read(self.root, now, contents)
        kept = {
            rename: draw.random() < 0.5
            for rename in self._renames  # neither directory was synced since
        }
        root = os.stat(self.root).st_ino
        made: list[tuple[str, bytes | None]] = []
        self._survive(root, str(self.root), now, contents, kept, made)
        for entry in sorted(os.listdir(self.root)):
            path = self.root / entry
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._names, self._bytes, self._directories, self._renames = {}, {}, set(), []
        for survivor, data in made:
            if data is None:
                os.mkdir(survivor)
            else:
                with io.FileIO(survivor, "x") as file:
                    file.write(data)
                    self._bytes[os.fstat(file.fileno()).st_ino] = data
        for directory, _, _ in os.walk(self.root):
            self._sync_directory(os.stat(directory).st_ino, directory)

    def _read(self, place: Path | str, now: dict[int, dict[str, int]], contents: dict[int, bytes]) -> None:
        inode = os.stat(place).st_ino
        names = now[inode] = {}
        with os.scandir(place) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                names[entry.name] = entry.inode()
                if entry.is_dir(follow_symlinks=False):
                    self._directories.add(entry.inode())
                    self._read(entry.path, now, contents)
                else:
                    with io.FileIO(entry.path) as file:
                        contents[entry.inode()] = file.readall()

    def _survive(
        self,
        inode: int,
        path: str,
        now: dict[int, dict[str, int]],
        contents: dict[int, bytes],
        kept: dict[_Rename, bool],
        made: list[tuple[str, bytes | None]],
    ) -> None:
        draw = self.scheduler.random
        durable, current = self._names.get(inode, {}), now.get(inode, {})
        undone = [rename for rename, keeps in kept.items() if not keeps]
        for name in sorted(durable.keys() | current.keys()):
            old, new = durable.get(name), current.get(name)
            found = new if old == new or draw.random() < 0.5 else old
            for rename, keeps in kept.items():
                here = (inode, name)
                if (here, new) == (rename.target, rename.inode) or (here, old) == (rename.source, rename.inode):
                    found = new if keeps else old
            if found is None:
                continue
            if found in self._directories:
                made.append((f"{path}/{name}", None))
                self._survive(found, f"{path}/{name}", now, contents, kept, made)
            else:
                made.append((f"{path}/{name}", self._content(found, contents)))
        for rename in undone:  # what was made and renamed, and neither is durable, may still have its old name
            if rename.source[0] == inode and rename.source[1] not in durable and rename.source[1] not in current:
                name = rename.source[1]
                if draw.random() < 0.5 and f"{path}/{name}" not in {survivor for survivor, _ in made}:
                    if rename.inode in self._directories:
                        made.append((f"{path}/{name}", None))
                        self._survive(rename.inode, f"{path}/{name}", now, contents, kept, made)
                    else:
                        made.append((f"{path}/{name}", self._content(rename.inode, contents)))

    def _content(self, inode: int, contents: dict[int, bytes]) -> bytes:
        """What was appended since the last sync is there, in part, or nulls; so is a file that was never synced. Of one
        that was changed otherwise it is the old content or the new one."""
        durable = self._bytes.get(inode, b"")
        data = contents.get(inode, durable)  # what was removed was not changed
        if data == durable:
            return durable
        draw = self.scheduler.random.random()
        if not data.startswith(durable):
            return data if draw < 0.5 else durable
        added = data[len(durable) :]
        if draw < 0.3:
            return data
        return durable + (added[: int(len(added) * (draw - 0.3) / 0.5)] if draw < 0.8 else bytes(len(added)))
