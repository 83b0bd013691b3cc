"""Directories that are private to this user: created so, and refused where they are not.

A directory with a name that can be guessed, below one where everybody may write (`/dev/shm`, `/tmp`), may have been
made by somebody else, to read what is written there or to have his own files read.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from holdfast.errors import UnsafeDirectoryError
from holdfast.store.durable import make_directories, sync_directory

__all__ = ["make_private", "private_directory"]

_PRIVATE = 0o700


def private_directory(path: Path) -> Path:
    """The directory, made if it is not there, and closed to others. An error if it is another's, or if others may have
    written into it."""
    make_private(path)
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode) or not stat.S_ISDIR(found.st_mode):
        raise _unsafe(path, "is not a directory")
    if found.st_uid != os.getuid():
        raise _unsafe(path, f"belongs to another user (uid {found.st_uid})")
    if found.st_mode & 0o022:
        raise _unsafe(path, f"can be written to by other users (mode {stat.S_IMODE(found.st_mode):04o})")
    if found.st_mode & 0o055:
        path.chmod(_PRIVATE)
    return path


def make_private(path: Path) -> None:
    """Make a directory that only its owner may use. One that is there stays as it is: who made it has decided. Its name
    lasts, as what is synced below it must."""
    try:
        make_directories(path.parent)
        path.mkdir(mode=_PRIVATE)
        sync_directory(path.parent)
    except (FileExistsError, NotADirectoryError):
        if path.is_dir():
            return
        what = "is a file, not a directory" if path.exists() else "cannot be a directory: its parent is a file"
        raise UnsafeDirectoryError(
            f"{path} {what}", cure="name a directory, or a path that does not exist yet"
        ) from None
    except OSError as error:
        raise UnsafeDirectoryError(
            f"the directory {path} cannot be created: {error.strerror}",
            cure="check the permissions of its parent directory, or name another path",
        ) from error
    path.chmod(_PRIVATE)  # the process's umask may have taken away even the owner's rights


def _unsafe(path: Path, why: str) -> UnsafeDirectoryError:
    return UnsafeDirectoryError(
        f"{path} {why}; state and input are not put where others can reach them",
        cure=f"remove it, or `chmod 700 {path}` if it is yours; or name another place with --volatile (volatile=)",
    )
