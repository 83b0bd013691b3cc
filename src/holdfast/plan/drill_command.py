"""The command for a drill: what somebody asks a running pipeline to have killed on purpose, and what it answers. The
meta store has both as text."""

from __future__ import annotations

from typing import Literal

from holdfast.errors import CorruptRecordError, UnknownVersionError
from holdfast.formats import MESSAGE_VERSION
from holdfast.stored_json import JsonForm
from holdfast.versioned_message import VersionedMessage

__all__ = ["DrillAnswer", "DrillCommand", "Victim"]

Victim = Literal["worker", "host"]


class DrillCommand(VersionedMessage, frozen=True, omit_defaults=True, tag="drill", tag_field="do"):
    """Kill a worker of the crew, or the process of `host`, while an epoch is in flight."""

    kill: Victim
    host: str = ""

    def encode(self) -> str:
        return _COMMAND.encode(self)

    @staticmethod
    def found_in(text: str) -> DrillCommand | None:
        """The command of a text; None if the text is another one, or of a version
        that is not known: the run that obeys commands refuses it."""
        try:
            return _COMMAND.decode(text)
        except (CorruptRecordError, UnknownVersionError):
            return None


class DrillAnswer(VersionedMessage, frozen=True, omit_defaults=True):
    """The `epoch` that was in flight, when by the clock of that process it was struck, and what was killed; or the
    problem for which nothing was done."""

    epoch: int | None = None
    at: float = 0.0
    what: str = ""
    problem: str | None = None
    cure: str = ""

    def encode(self) -> str:
        return _ANSWER.encode(self)

    @staticmethod
    def decode(text: str) -> DrillAnswer:
        return _ANSWER.decode(text)


_COMMAND = JsonForm(DrillCommand, "a command", MESSAGE_VERSION)
_ANSWER = JsonForm(DrillAnswer, "the answer to a command", MESSAGE_VERSION)
