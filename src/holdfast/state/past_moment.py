"""A moment in the past, as a user writes it: "1 h ago", a datetime, or its text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from holdfast.errors import WrongTypeError
from holdfast.spans import seconds_of

__all__ = ["Moment", "seconds_at", "shown_moment"]

Moment = str | datetime | timedelta
"""A text such as "1 h ago" or "2026-11-18 09:30:00", a datetime, or a timedelta before now. A time without a zone is
that of this machine."""
_AGO = "ago"


def seconds_at(at: Moment, now: float) -> float:
    """The moment in seconds of the wall clock."""
    if isinstance(at, timedelta):
        return now - seconds_of("at", at)
    if isinstance(at, str) and at.strip().lower().endswith(_AGO):
        return now - seconds_of("at", at.strip()[: -len(_AGO)])
    try:
        found = datetime.fromisoformat(at) if isinstance(at, str) else at
    except ValueError:
        found = None
    if not isinstance(found, datetime):
        raise WrongTypeError(
            f"at={at!r} is not a time", cure='write "1 h ago", or a time such as "2026-11-18 09:30:00"'
        )
    return found.timestamp()


def shown_moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
