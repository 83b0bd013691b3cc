"""Database URLs, which hold passwords: read and shown without giving them away."""

from __future__ import annotations

import re

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from holdfast.errors import DeclarationError

__all__ = ["parse_url", "shown_url"]

_SECRET = re.compile(r"password|passwd|pwd|secret|token|key", re.IGNORECASE)


def parse_url(text: str, what: str, example: str) -> sa.URL:
    """The URL of `what`. An error does not repeat the text: where it cannot be read, its password cannot be told."""
    try:
        return sa.make_url(text)
    except (SQLAlchemyError, ValueError, TypeError):
        raise DeclarationError(
            f"the URL of {what} cannot be parsed (it is not shown here, because it may contain a password)",
            cure=f"write it as in {example}, with %xx for special characters in the password",
        ) from None


def shown_url(url: sa.URL) -> str:
    """The URL as people may see it: without the password, wherever it stands."""
    hidden = {name: "***" for name in url.query if _SECRET.search(name)}
    return url.update_query_dict(hidden).render_as_string(hide_password=True)
