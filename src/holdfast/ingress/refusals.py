"""An error as a client gets it: a status and the text of problem, cure and place, the same over every protocol."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

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
    RefusedError,
    SchemaMismatchError,
    StoreFullError,
    StreamFullError,
    TakenBeforeError,
    UnknownStreamError,
    UnsupportedBodyError,
)
from holdfast.stored_json import encode_json

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
)
_STOPPING = 503
_SAY_AGAIN_SECONDS = 60.0
_said: dict[str, float] = {}
_log = logging.getLogger(__name__)
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

    def __str__(self) -> str:
        return f"{self.problem}; cure: {self.cure}"

    def encoded(self) -> bytes:
        return encode_json(self).encode()


def refusal(error: BaseException) -> Refusal:
    """How an error is told. Clients are told what is wrong with what they sent. What is wrong with the receiver names
    its files, its database and who opens it: that stays in the log."""
    if isinstance(error, StoreFullError):
        _log_rarely(error)
        return Refusal(507, "no space left", "send the batch again later; the receiver's log says where", None)
    if not isinstance(error, HoldfastError):
        return Refusal(
            500, "the receiver failed", "send the batch again with the same batch id; see the receiver's log", None
        )
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), _STOPPING)
    if status == _STOPPING and not isinstance(error, RefusedError):
        _log_rarely(error)
        return Refusal(
            status,
            "the receiver currently cannot make rows durable",
            "send the batch again with the same batch id; see the receiver's log",
            None,
        )
    places = [f"source '{error.operator}'" if error.operator else None, getattr(error, "place", None)]
    return Refusal(status, error.problem, error.cure, ", ".join(place for place in places if place) or None)


def _log_rarely(error: HoldfastError) -> None:
    """Every client may get the same error many times a second."""
    text, now = str(error), time.monotonic()
    if now - _said.get(text, float("-inf")) > _SAY_AGAIN_SECONDS:
        if len(_said) > 100:
            _said.clear()
        _said[text] = now
        _log.warning("rows are refused: %s", text)
