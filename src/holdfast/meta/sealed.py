"""Texts of the meta store that carry their checksum: plans, records, shapes, and the entries of p-streams.

What is read is what was written for this very place, or an error says which text it is. The checksum stands before the
JSON and covers the place, too, so that a row that came to stand for another one is found.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import xxhash

from holdfast.errors import CorruptRecordError

__all__ = ["SEALED_SINCE", "SealedPlace"]

SEALED_SINCE = 6
"""The version of the store from which on every text has a checksum."""
_DIGITS = 16


@dataclass(frozen=True, slots=True)
class SealedPlace:
    """Where a text belongs: what it is, of which pipeline or p-stream, and of which epoch or entry."""

    what: str
    owner: str
    number: int | None = None

    def sealed(self, text: str) -> str:
        return f"{self._checksum(text)} {text}"

    def opened(self, text: str, version: int) -> str:
        """The JSON text, once its checksum was verified. A store before `SEALED_SINCE` has texts without."""
        if version < SEALED_SINCE and text.startswith("{"):
            try:
                json.loads(text)
            except (ValueError, RecursionError):
                raise self._damaged("it is no JSON") from None
            return text
        checksum, body = text[:_DIGITS], text[_DIGITS + 1 :]
        if checksum != self._checksum(body):
            raise self._damaged("it does not match its checksum")
        return body

    def _damaged(self, why: str) -> CorruptRecordError:
        return CorruptRecordError(
            f"{self} is damaged in the meta store: {why}",
            cure="nothing was changed; restore the meta store from a backup, together with the files of the store",
            epoch=None if self.what == "entry" else self.number,
        )

    def _checksum(self, text: str) -> str:
        return xxhash.xxh3_64_hexdigest(f"{self.what}\0{self.owner}\0{self.number}\0{text}".encode())

    def __str__(self) -> str:
        kind = "p-stream" if self.what == "entry" else "pipeline"
        if self.number is None:
            return f"the {self.what} of {kind} '{self.owner}'"
        number = f"entry {self.number}" if self.what == "entry" else f"the {self.what} of epoch {self.number}"
        return f"{number} of {kind} '{self.owner}'"
