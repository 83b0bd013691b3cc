"""What the store keeps about a p-stream: what its rows are, and where and why it cuts its pipeline.

It is written once, when the stream is made known, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.stored_json import JsonForm

__all__ = ["MeasuredPlace", "Place", "Placement", "StreamDescription"]


@dataclass(frozen=True, slots=True)
class Place:
    """A place for a cut: these columns of the rows behind `after` are written, or the partials of `window`."""

    after: str
    columns: tuple[str, ...] = ()
    window: str | None = None


@dataclass(frozen=True, slots=True)
class MeasuredPlace:
    """A place and what it would write, in bytes per row of the source: encoded, and as plain columns."""

    place: Place
    bytes_per_row: float
    plain_per_row: float
    rows: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a p-stream cuts its pipeline, and why. `sample` is the number of the source's rows that were measured."""

    place: Place
    reason: str = ""
    sample: int = 0
    measured: tuple[MeasuredPlace, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamDescription:
    """The types of a stream's columns, and the column of its event time. `declared` is the operator behind which it was
    declared; it and the placement are None where no pipeline has declared it."""

    schema: Mapping[str, str]
    time: str | None = None
    declared: str | None = None
    placement: Placement | None = None

    def encode(self) -> str:
        return _FORM.encode(self)

    @staticmethod
    def decode(text: str) -> StreamDescription:
        return _FORM.decode(text)


_FORM = JsonForm(StreamDescription, "the description of a p-stream")
