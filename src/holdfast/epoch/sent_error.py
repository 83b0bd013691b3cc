"""An error on its way to another process, as a message: nothing is pickled, so nothing is run to read it.

It says which error of Holdfast it is, with all its fields. What led to it may be of a class that does not exist there,
such as one of the user's: of that, the name of the class, the text and the traceback are kept.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast import errors
from holdfast.client_batches import Count, TakenBatch
from holdfast.errors import HoldfastError
from holdfast.versioned_message import VersionedMessage

__all__ = ["RemoteCauseError", "SentError"]

_MOST_TEXT = 20_000
_MOST_CAUSES = 8


class RemoteCauseError(Exception):
    """What led to an error in another process, such as a task: an exception whose class this one may not have, with
    the frames that it went through there. It is not raised, but the `__cause__` of errors."""

    def __init__(self, kind: str, text: str, traceback: str) -> None:
        self.kind = kind
        self.text = text
        self.traceback = traceback
        super().__init__(kind, text, traceback)

    def __str__(self) -> str:
        frames = f"\nwhere it was raised (most recent call last):\n{self.traceback.rstrip()}" if self.traceback else ""
        return f"{self.kind}: {self.text}{frames}"


class ErrorFields(msgspec.Struct, frozen=True, omit_defaults=True):
    """The fields that only some errors have."""

    file: str | None = None
    place: str | None = None
    batches: Mapping[str, TakenBatch] = {}
    counts: tuple[Count, ...] = ()


class ErrorCause(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an error was raised from: the name of its class, its text, and the frames that it went through."""

    kind: str
    text: str
    traceback: str
    cause: ErrorCause | None = None

    @staticmethod
    def of(error: BaseException, depth: int = _MOST_CAUSES) -> ErrorCause:
        inner = error.__cause__
        return ErrorCause(
            type(error).__qualname__,
            _text(error)[:_MOST_TEXT],
            _frames(error),
            None if inner is None or depth == 1 else ErrorCause.of(inner, depth - 1),
        )

    def rebuilt(self) -> RemoteCauseError:
        found = RemoteCauseError(self.kind, self.text, self.traceback)
        found.__cause__ = None if self.cause is None else self.cause.rebuilt()
        return found


class SentError(VersionedMessage, frozen=True, tag="error", tag_field="kind", omit_defaults=True):
    """A typed error. From a task, it ends the epoch without making Spark try the task again."""

    error: str
    """The class of `holdfast.errors`."""
    problem: str
    cure: str
    cause: ErrorCause
    """What it was raised from, or itself with its frames."""
    operator: str | None = None
    epoch: int | None = None
    fields: ErrorFields = ErrorFields()

    @staticmethod
    def of(error: HoldfastError) -> SentError:
        return SentError(
            type(error).__name__,
            error.problem[:_MOST_TEXT],
            error.cure[:_MOST_TEXT],
            ErrorCause.of(error.__cause__ or error),
            error.operator,
            error.epoch,
            msgspec.convert(error, ErrorFields, from_attributes=True),
        )

    def rebuilt(self) -> HoldfastError:
        """The error, to be raised here."""
        kind = _KINDS.get(self.error, HoldfastError)
        found = kind(self.problem, cure=self.cure, operator=self.operator, epoch=self.epoch)
        for name in ErrorFields.__struct_fields__:
            if hasattr(found, name):
                setattr(found, name, getattr(self.fields, name))
        found.__cause__ = self.cause.rebuilt()
        return found


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failed:  # noqa: BLE001 - the text of a user's exception is the user's code
        return f"its text cannot be obtained: {type(failed).__name__}"


def _frames(error: BaseException) -> str:
    """The newest frames, if they are very many."""
    return "".join(traceback.format_tb(error.__traceback__))[-_MOST_TEXT:]


def _is_error(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, HoldfastError)


_KINDS: dict[str, type[HoldfastError]] = {name: value for name, value in vars(errors).items() if _is_error(value)}
