"""Addresses of objects: `s3://bucket/path`, `gs://bucket/path`, `az://container/path`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal, get_args

from holdfast.errors import DeclarationError

__all__ = ["BucketAddress", "Scheme", "bucket_address"]

Scheme = Literal["s3", "gs", "az"]

_ADDRESS = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]+):/{1,2}([^/]*)/*(.*)", re.DOTALL
)  # one slash: a Path has lost the second
_ALSO = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "azure": "az"}
"""Names that other programs have for them."""
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}")


@dataclass(frozen=True, slots=True)
class BucketAddress:
    """A place in a bucket; `key` has no slash at its ends."""

    scheme: Scheme
    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}".rstrip("/")


def bucket_address(value: str | os.PathLike[str], what: str) -> BucketAddress | None:
    """The address that was given as `what`, e.g. "files()"; None for what is a path, or a `file://` address."""
    found = _ADDRESS.fullmatch(os.fspath(value))
    if found is None or found[1].lower() == "file":
        return None
    named = found[1].lower()
    for scheme in get_args(Scheme):
        if scheme == _ALSO.get(named, named):
            return BucketAddress(scheme, _bucket(found[2], scheme, what), _key(found[3], what))
    raise DeclarationError(
        f"{what}: '{os.fspath(value)}' is a URL of an unknown kind, '{found[1]}://'",
        cure="give a path, or the address of an object store: s3://bucket/path, gs://bucket/path or"
        f" az://container/path. Another file system: mount it and give the path; for a directory that is really called"
        f" '{found[1]}:', write './{os.fspath(value)}'",
    )


def _bucket(name: str, scheme: str, what: str) -> str:
    if not _BUCKET.fullmatch(name):
        kind = "container" if scheme == "az" else "bucket"
        raise DeclarationError(
            f"{what}: '{name}' cannot be the name of a {kind}",
            cure=f"write {scheme}://{kind}/path; a name has letters, digits, dots and dashes, and no user or port:"
            " another server is given by storage_options={'endpoint': 'http://host:port'}",
        )
    return name


def _key(text: str, what: str) -> str:
    parts = [part for part in text.split("/") if part]
    if ".." in parts or "." in parts or "\0" in text:
        raise DeclarationError(f"{what}: '{text}' has '.' or '..' in it", cure="write the path as it is in the bucket")
    return "/".join(parts)
