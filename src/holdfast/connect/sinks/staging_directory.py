"""Where a file sink keeps what tasks have prepared, until readers see it.

    .out.staging/<owner>/12/0-a1.parquet        what a task prepared for epoch 12, by part and attempt
    .out.staging/<owner>/until-12/closed/rows/  the epochs up to 12, as they will be seen
    out/epoch=000000000012/                     what readers see

Tasks write and sync in a directory beside that of the output: not all readers leave out hidden directories inside of
it (Polars reads them). To publish, a host gathers the files in a draft of its own. The first one to rename its draft to
`closed` decides what is published. So there is one `rows` directory for a publication, ever, and one rename moves it to
the output. A `closed` without `rows` tells that this has happened, whatever readers have done with the output since. It
stays until the meta store knows of it. Every step can be interrupted and done again, by several hosts at once.
"""

from __future__ import annotations

import errno
import hashlib
import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from holdfast.connect.base import Owner
from holdfast.connect.sinks.part_files import write_parts
from holdfast.errors import OutputConflictError
from holdfast.store import (
    Private,
    Right,
    durable_write,
    make_directories,
    remove_directory,
    remove_files,
    remove_tree,
    sync_directory,
)

__all__ = ["Staging", "safe_name"]

_TAKEN = frozenset({errno.ENOTEMPTY, errno.EEXIST})
_UNTIL = "until-"
_GONE = "gone-"
_DRAFT = Private("a draft of this process, under a name of its own")


def safe_name(name: str) -> str:
    """A name that stays one component of a path, whatever is in it; different names stay different."""
    return quote(name, safe="")


@dataclass(frozen=True, slots=True)
class Staging:
    """The staged files of one owner, under `root`."""

    root: Path

    @staticmethod
    def of(owner: Owner, directory: Path) -> Staging:
        """In a directory of the owner's own: leftovers of another, with the same epochs, are no concern of its."""
        names = "\0".join((owner.store, owner.pipeline, owner.sink))
        return Staging(directory / hashlib.sha256(names.encode()).hexdigest()[:16])

    def prepare(self, epoch: int, name: str, content: memoryview) -> str:
        """Keep what a task has made; returns the name to find it by."""
        found = f"{epoch}/{name}"
        make_directories(self.path(found).parent)
        durable_write(self.path(found), content)
        return found

    def path(self, name: str) -> Path:
        return self.root / name

    def publish(self, epoch: int, files: Sequence[tuple[Path, int]], target: Path, *, merge: bool) -> None:
        """Show the files, given with their sizes, as one directory. Raises FileNotFoundError if one of them is gone."""
        rows = self.close(epoch, lambda into: write_parts(files, into, merge=merge))
        self._show(rows.parent, target)

    def close(self, epoch: int, write: Callable[[Path], None]) -> Path:
        """Decide what is published: what the first host writes into the directory that it is given. Returns where it
        is; it is gone when it was shown."""
        closed = self._closed(epoch)
        if not closed.exists():
            self._close(closed, write)
        return closed / "rows"

    def _close(self, closed: Path, write: Callable[[Path], None]) -> None:
        draft = closed.with_name(f"draft-{uuid.uuid4().hex}")
        make_directories(draft)
        try:
            # So that the directory is not empty when its rows have gone: an empty one could be renamed over.
            durable_write(draft / "seal", b"")
            write(draft / "rows")
            sync_directory(draft)
            os.rename(draft, closed)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
        finally:
            remove_tree(draft, _DRAFT)
        sync_directory(closed.parent)
        sync_directory(self.root)  # another host may have made the directory of the group, and not have come to that

    def _show(self, closed: Path, target: Path) -> None:
        try:
            os.rename(closed / "rows", target)
        except FileNotFoundError:
            if not closed.exists():
                raise
            if (closed / "rows").exists():  # a reader has moved all of the output elsewhere
                make_directories(target.parent)
                self._show(closed, target)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            raise OutputConflictError(
                f"{target} already exists, and this pipeline did not write it",
                cure="move it elsewhere and start again: the epoch is committed and will then be published",
            ) from error
        # Also where somebody else has shown it, who may have died before these lines.
        sync_directory(target.parent)
        sync_directory(closed)

    def forget(self, epoch: int, names: Iterable[str], right: Right) -> None:
        """Remove what a publication has left. What it was made of goes first, then at one stroke what tells that it was
        made: a host that is late finds either all it needs to see that it was, or nothing to make it of again."""
        self.discard(names, right)
        self._remove(self._closed(epoch).parent, right)

    def discard(self, names: Iterable[str], right: Right) -> None:
        """Remove prepared files, and directories that are empty then."""
        paths = [self.path(name) for name in names]
        remove_files(paths, right)
        for place in dict.fromkeys(path.parent for path in paths):
            remove_directory(place, right)

    def sweep(self, before_epoch: int, right: Right) -> None:
        """Remove all that was made for epochs before this one, in the order of `forget`."""
        for place in sorted(self.root.iterdir()) if self.root.is_dir() else ():
            number = place.name.removeprefix(_UNTIL)
            if place.name.startswith(_GONE) or (number.isdecimal() and int(number) < before_epoch):
                self._remove(place, right)

    def _remove(self, place: Path, right: Right) -> None:
        right.check()
        gone = self.root / f"{_GONE}{uuid.uuid4().hex}"
        try:
            os.rename(place, gone)
        except FileNotFoundError:
            return
        remove_tree(gone, right)

    def _closed(self, epoch: int) -> Path:
        return self.root / f"{_UNTIL}{epoch}" / "closed"
