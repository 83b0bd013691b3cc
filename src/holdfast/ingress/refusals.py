"""An error as a client gets it: a status and the text of problem, cure and place, the same over every protocol."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from holdfast.errors import (
    AccessDeniedError,
    BadRowError,
    BodyTooLargeError,
    HoldfastError,
    IncompleteBodyError,
    IngressBusyError,
    MalformedBodyError,
    NotAuthenticatedError,
    OperatorError,
    SchemaMismatchError,
    StoreFullError,
    StreamFullError,
    TakenBeforeError,
    UnknownStreamError,
    UnsupportedBodyError,
)

__all__ = ["Refusal", "refusal"]

_STATUS: tuple[tuple[type[HoldfastError], int], ...] = (
    (MalformedBodyError, 400),
    (NotAuthenticatedError, 401),
    (AccessDeniedError, 403),
    (UnknownStreamError, 404),
    (IncompleteBodyError, 408),
    (TakenBeforeError, 409),
    (BodyTooLargeError, 413),
    (UnsupportedBodyError, 415),
    (SchemaMismatchError, 422),
    (BadRowError, 422),
    (OperatorError, 422),
    (StreamFullError, 429),
    (IngressBusyError, 429),
    (StoreFullError, 507),
)
_STOPPING = 503
_RETRY_SECONDS = {429: 1, _STOPPING: 2, 507: 30}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Nothing was taken, and why. The statuses are those of HTTP; the other protocols tell them too."""

    status: int
    problem: str
    cure: str
    place: str | None

    @property
    def retry_after(self) -> int | None:
        """After how many seconds another try makes sense, if it does at all."""
        return _RETRY_SECONDS.get(self.status)

    def to_json(self) -> dict[str, Any]:
        return {"status": self.status, "problem": self.problem, "cure": self.cure, "place": self.place}

    def __str__(self) -> str:
        return f"{self.problem}; cure: {self.cure}"

    def encoded(self) -> bytes:
        return json.dumps(self.to_json()).encode()


def refusal(error: BaseException) -> Refusal:
    """How an error is told. What is not a HoldfastError is a fault of the program, and its text stays in the log."""
    if not isinstance(error, HoldfastError):
        return Refusal(
            500, "the receiver failed", "send the batch again with the same batch id; see the receiver's log", None
        )
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), _STOPPING)
    places = [f"source '{error.operator}'" if error.operator else None, getattr(error, "place", None)]
    return Refusal(status, error.problem, error.cure, ", ".join(place for place in places if place) or None)
