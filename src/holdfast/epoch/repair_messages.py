"""Manual repairs: the user's request and its outcome. The meta store holds both as text."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.formats import MESSAGE_VERSION
from holdfast.stored_json import JsonForm
from holdfast.versioned_message import VersionedMessage

__all__ = ["FileSpan", "RepairOutcome", "Replan", "Skip", "asked_repair"]


class Replan(VersionedMessage, frozen=True, tag="replan", tag_field="do"):
    """Plan epochs again that were planned and never committed."""

    epochs: tuple[int, ...]

    def encode(self) -> str:
        return _REQUEST.encode(self)


class Skip(VersionedMessage, frozen=True, tag="skip", tag_field="do", omit_defaults=True):
    """Pass over the input of an epoch, or what is left of a file."""

    epoch: int | None = None
    file: str | None = None

    def encode(self) -> str:
        return _REQUEST.encode(self)


def asked_repair(text: str) -> Replan | Skip:
    """What was asked for."""
    return _REQUEST.decode(text)


class FileSpan(msgspec.Struct, frozen=True, rename={"low": "from", "high": "to"}):
    """What an epoch would have read of a file."""

    source: str
    file: str
    low: int
    high: int


class RepairOutcome(VersionedMessage, frozen=True, omit_defaults=True, rename={"since": "from"}):
    """What was done, or the `problem` for which it was not, or not all of it.

    `epochs` are planned again, and sources that have `resumed` read on behind a file that has changed. Of an `epoch`
    that is passed over, the rows and the first of the files. Of a `file` that is skipped, `since` where.
    """

    problem: str | None = None
    epochs: tuple[int, ...] | None = None
    resumed: tuple[str, ...] | None = None
    epoch: int | None = None
    rows: Mapping[str, int] | None = None
    files: tuple[FileSpan, ...] | None = None
    more_files: int | None = None
    source: str | None = None
    file: str | None = None
    since: int | None = None

    def encode(self) -> str:
        return _OUTCOME.encode(self)

    @staticmethod
    def decode(text: str) -> RepairOutcome:
        return _OUTCOME.decode(text)


_REQUEST = JsonForm[Replan | Skip](Replan | Skip, "a repair", MESSAGE_VERSION)  # type: ignore[arg-type]
_OUTCOME = JsonForm(RepairOutcome, "what came of a repair", MESSAGE_VERSION)
