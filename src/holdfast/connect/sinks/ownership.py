"""Whose an output directory is: a small file beside it names the one sink that may write there.

    out/                         the output
    .out.staging/owner.json      whose it is

It is beside the directory and not in it, because Polars reads every file of a directory that it is given. A directory
that is gone belongs to nobody: who removes the output of a pipeline need not know of the file.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast.connect.base import Owner
from holdfast.errors import OutputConflictError, OutputUnwritableError, UnknownVersionError
from holdfast.formats import OWNER_VERSION
from holdfast.store import durable_write, make_directories, sync_directory

__all__ = ["OutputDirectory", "unwritable_named"]

# What another try does not change.
_FOR_GOOD = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG}
)
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})


@contextlib.contextmanager
def unwritable_named(path: Path) -> Iterator[None]:
    """Say which output cannot be written, and what to do about it."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FOR_GOOD:
            raise
        where = f" ({error.filename})" if error.filename else ""
        raise OutputUnwritableError(
            f"cannot write to {path}: {os.strerror(error.errno or 0)}{where}",
            cure=f"check that this user may write to {path} and its parent directory, or choose another path",
        ) from error


@dataclass(frozen=True, slots=True)
class OutputDirectory:
    """A directory that one sink writes to, and the one beside it where the sink keeps what nobody is to see."""

    path: Path

    @property
    def staging(self) -> Path:
        """On the same file system, so that a rename suffices, and out of the way of readers."""
        return self.path.with_name(f".{self.path.name}.staging")

    @property
    def marker(self) -> Path:
        return self.staging / "owner.json"

    def owner(self) -> Owner | None:
        """Whose it is, if anybody has said so."""
        try:
            said = json.loads(self.marker.read_bytes())
            version = said.pop("version")
            if version != OWNER_VERSION:
                raise UnknownVersionError(
                    f"{self.marker} has version {version}; this program knows version {OWNER_VERSION}",
                    cure="run the version of Holdfast that wrote it, or write elsewhere",
                )
            return Owner(**said)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise OutputConflictError(
                f"{self.marker}, which names the owner of {self.path}, cannot be read: {error}",
                cure=f"write elsewhere, or remove {self.marker} if nothing else writes to {self.path}",
            ) from error

    def confirm(self, owner: Owner) -> None:
        """Raise unless it still is this owner's. Readers may have moved all of it elsewhere: it is made again."""
        found = self.owner()
        if found is None:
            raise OutputConflictError(
                f"{self.marker}, which names the owner of {self.path}, is missing",
                cure="start the pipeline again: it checks whether the output there is its own",
            )
        if found != owner:
            raise self._taken(found, owner)
        make_directories(self.path)

    def claim(self, owner: Owner, adopt: Callable[[], None]) -> None:
        """Make it this owner's, or raise if it is another's. `adopt` is called where nobody has said whose it is, and
        raises if what is there is not this owner's."""
        found = self.owner()
        left = found is not None and not self.path.exists()
        if found is None:
            adopt()
        elif found != owner and not left:
            raise self._taken(found, owner)
        make_directories(self.path)
        if found == owner:
            return
        make_directories(self.staging)
        self._check_file_system()
        self._mark(owner, over=left)
        said = self.owner()
        if said is not None and said != owner:
            raise self._taken(said, owner)

    def _mark(self, owner: Owner, *, over: bool) -> None:
        """Write the marker whole, or leave the one that somebody else has written meanwhile."""
        content = json.dumps({"version": OWNER_VERSION, **asdict(owner)}).encode()
        draft = self.marker.with_name(f".{self.marker.name}.{uuid.uuid4().hex}")
        durable_write(draft, content)
        try:
            if over:
                os.replace(draft, self.marker)
            else:
                os.link(draft, self.marker)
        except FileExistsError:
            pass
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with contextlib.suppress(FileExistsError):
                durable_write(self.marker, content)
        finally:
            draft.unlink(missing_ok=True)
        sync_directory(self.staging)

    def _check_file_system(self) -> None:
        """What is staged is shown by a rename, which does not leave a file system."""
        if os.stat(self.path).st_dev != os.stat(self.staging).st_dev:
            raise OutputUnwritableError(
                f"{self.path} is on another file system than its parent directory",
                cure=f"write to a directory below it, e.g. {self.path / 'output'}: rows are prepared next to the output"
                " and published by a rename, which cannot leave a file system",
            )

    def _taken(self, found: Owner, owner: Owner) -> OutputConflictError:
        return OutputConflictError(
            f"{self.path} is the output of {found}; this is {owner}",
            cure=f"write elsewhere; or, if that pipeline is no longer needed, remove {self.path} and {self.staging}",
        )
