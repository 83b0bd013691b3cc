"""The command to scale: what somebody asks a running pipeline for, and what it answers. The meta store has both as
text."""

from __future__ import annotations

from holdfast.errors import CorruptRecordError, DeclarationError, HoldfastError
from holdfast.formats import MESSAGE_VERSION
from holdfast.stored_json import JsonForm
from holdfast.versioned_message import VersionedMessage

__all__ = ["MOST_PARTITIONS", "ScaleAnswer", "ScaleCommand"]

MOST_PARTITIONS = 1_024


class ScaleCommand(VersionedMessage, frozen=True, omit_defaults=True, tag="scale", tag_field="do"):
    """Give an operator so many partitions, or have so many tasks read a source.

    `bounds` say where the intervals of positions begin; without them the intervals have equal lengths. `reason` is for
    people.
    """

    operator: str
    partitions: int
    bounds: tuple[int, ...] | None = None
    reason: str = ""

    def encode(self) -> str:
        return _COMMAND.encode(self)

    @staticmethod
    def decode(text: str) -> ScaleCommand:
        try:
            return _COMMAND.decode(text)
        except CorruptRecordError as error:
            raise DeclarationError(
                f"cannot do {text[:200]}", cure=f"scale an operator to 1 to {MOST_PARTITIONS} partitions"
            ) from error


class ScaleAnswer(VersionedMessage, frozen=True, omit_defaults=True):
    """The first `epoch` that runs so, or the problem for which nothing was done."""

    epoch: int | None = None
    problem: str | None = None
    cure: str = ""
    operator: str | None = None

    @staticmethod
    def refused(error: HoldfastError) -> ScaleAnswer:
        return ScaleAnswer(None, error.problem, error.cure, error.operator)

    def encode(self) -> str:
        return _ANSWER.encode(self)

    @staticmethod
    def decode(text: str) -> ScaleAnswer:
        return _ANSWER.decode(text)


_COMMAND = JsonForm(ScaleCommand, "a command", MESSAGE_VERSION)
_ANSWER = JsonForm(ScaleAnswer, "the answer to a command", MESSAGE_VERSION)
