"""The version of the data about an epoch: a program refuses data that a newer one has written."""

from __future__ import annotations

from holdfast.errors import UnknownVersionError
from holdfast.formats import EPOCH_VERSION

__all__ = ["check_version"]


def check_version(what: str, version: int) -> None:
    if version != EPOCH_VERSION:
        raise UnknownVersionError(
            f"{what} has version {version}; this program knows version {EPOCH_VERSION}",
            cure="run the version of Holdfast that wrote it, or a newer one, on the driver and on all executors",
        )
