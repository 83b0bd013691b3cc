"""What the store holds as JSON, read by programs that did not write it: the value, or an error that says what is wrong.

Records, plans and manifests name files that are opened and removed. So numbers are numbers, names stay below the
directory of the store, and whatever else stands there is one kind of error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from holdfast.errors import CorruptRecordError

__all__ = ["file_name", "reading", "whole"]

P = ParamSpec("P")
R = TypeVar("R")
_WRONG = (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError)


def reading(what: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Makes a function that reads `what` raise one kind of error, whatever it stumbles over."""

    def guarded(read: Callable[P, R]) -> Callable[P, R]:
        @wraps(read)
        def guard(*arguments: P.args, **named: P.kwargs) -> R:
            try:
                return read(*arguments, **named)
            except _WRONG as error:
                raise CorruptRecordError(
                    f"{what} in the store cannot be read: {type(error).__name__}: {str(error)[:200]}",
                    cure="restore the store from a copy; nothing was changed",
                ) from error

        return guard

    return guarded


def whole(value: Any, least: int | None = 0, most: int | None = None) -> int:
    """A whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r:.50} is no whole number")
    if (least is not None and value < least) or (most is not None and value > most):
        raise ValueError(f"{value} is out of bounds")
    return value


def file_name(value: Any) -> str:
    """The name of a file below the store's directory."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise TypeError(f"{value!r:.50} is no name of a file")
    if value.startswith("/") or ".." in value.split("/"):
        raise ValueError(f"the name {value[:100]!r} leads out of the store")
    return value
