"""Versions of what processes tell one another: a program refuses a message of another version, and says so.

Every message carries its version, and so does everything that is stored about an epoch. A message of another version
may have fields, or be of a kind, that this program does not know: so the version of an unreadable message is looked at
before it is called damaged. The types of the fields let no other version through.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec

from holdfast.errors import UnknownVersionError
from holdfast.formats import EPOCH_VERSION, MESSAGE_VERSION

__all__ = ["EpochVersion", "VersionedMessage", "check_version_in"]

EpochVersion = Annotated[int, msgspec.Meta(ge=EPOCH_VERSION, le=EPOCH_VERSION)]
MessageVersion = Annotated[int, msgspec.Meta(ge=MESSAGE_VERSION, le=MESSAGE_VERSION)]


class VersionedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message between processes, or a command and its answer. Those of before had no number, and are as version 1."""

    # Made by a factory, because a default may be left out of what is sent.
    version: MessageVersion = msgspec.field(default_factory=partial(int, MESSAGE_VERSION))


class _VersionAlone(msgspec.Struct):
    version: int


_VERSION = msgspec.json.Decoder(_VersionAlone)


def check_version_in(what: str, text: str | bytes, known: int) -> None:
    """Of something that could not be read: whether another version is the reason."""
    try:
        found = _VERSION.decode(text).version
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return
    if found != known:
        raise UnknownVersionError(
            f"{what} has version {found}; this program knows version {known}",
            cure="run the version of Holdfast that wrote it, or a newer one, on the driver and on all executors",
        )
