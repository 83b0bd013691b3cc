"""A version of a lookup table, as the plan of an epoch names it."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.pstream import PUnit

__all__ = ["LookupVersion"]


@dataclass(frozen=True, slots=True)
class LookupVersion:
    """`unit` has the rows, in a file that is named after its content. The table had them when it was read, at `taken`,
    and was last seen to have them at `seen`, by the clock of the driver. `mark` tells whether it has changed since."""

    unit: PUnit
    mark: str | None
    taken: float
    seen: float
