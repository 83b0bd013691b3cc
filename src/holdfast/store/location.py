"""Where files are: a path of this machine, and never the address of something else.

`Path("s3://bucket/out")` is a directory called `s3:` to Python, and `Path("~/out")` one called `~`. Every path that a
user gives goes through `local_path`, which takes paths and `file://` addresses, puts the home directory for `~`, and
refuses other addresses and what no file can be called. Those of object stores are `bucket_address`'s.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.errors import DeclarationError

__all__ = ["local_path"]

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")  # one slash: a Path has lost the second
_LONGEST_NAME, _LONGEST_PATH = 255, 4_000
"""Of a name, as file systems have it; of a path, with room for what is put below it."""


def local_path(value: str | os.PathLike[str], what: str) -> Path:
    """The path that was given as `what`, e.g. "parquet()" or "--store"."""
    text = os.fspath(value)
    found = _ADDRESS.match(text)
    if found is None:
        return _possible(Path(os.path.expanduser(text)), what)
    if found[1].lower() == "file":
        parts = urlsplit(text)
        if parts.netloc in ("", "localhost"):
            return _possible(Path(unquote(parts.path)), what)
    raise DeclarationError(
        f"{what}: '{text}' is a URL, but this must be a path, on a disk or a mounted file system",
        cure=f"mount it and give the path; for a directory that is really called '{found[1]}:', write './{text}'",
    )


def _possible(path: Path, what: str) -> Path:
    """The path, if there can be such a one."""
    if "\0" in str(path):
        raise DeclarationError(f"{what}: {str(path)!r} has a NUL byte in it", cure="give a path without it")
    name = max(path.parts, key=_length, default="")
    if _length(name) > _LONGEST_NAME or _length(str(path)) > _LONGEST_PATH:
        raise DeclarationError(
            f"{what}: a path that begins with {str(path)[:60]!r} is too long: it has {_length(str(path)):,} bytes, and"
            f" its longest part has {_length(name):,}",
            cure=f"give a path of at most {_LONGEST_PATH:,} bytes, with names of at most {_LONGEST_NAME}",
        )
    return path


def _length(text: str) -> int:
    return len(os.fsencode(text))
