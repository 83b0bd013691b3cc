"""Where files are: a path of this machine, and never the address of something else.

`Path("s3://bucket/out")` is a directory called `s3:` to Python. Every path that a user gives goes through `local_path`,
which takes paths and `file://` addresses and refuses all others.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.errors import DeclarationError

__all__ = ["local_path"]

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")  # one slash: a Path has lost the second


def local_path(value: str | os.PathLike[str], what: str) -> Path:
    """The path that was given as `what`, e.g. "parquet()" or "--store"."""
    text = os.fspath(value)
    found = _ADDRESS.match(text)
    if found is None:
        return Path(value)
    if found[1].lower() == "file":
        parts = urlsplit(text)
        if parts.netloc in ("", "localhost"):
            return Path(unquote(parts.path))
    raise DeclarationError(
        f"{what}: '{text}' is an address, and Holdfast reads and writes files of this machine and of file systems that"
        " are mounted on it",
        cure=f"mount it and give the path; for a directory that is really called '{found[1]}:', write './{text}'",
    )
