"""What a pipeline must keep, whatever fails: the user says what, and the mechanism follows from it."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import DeclarationError
from holdfast.graph.durations import Duration, parse_duration

__all__ = ["Guarantee"]


@dataclass(frozen=True, slots=True)
class Guarantee:
    """`recovery` is how long it may take to have the state back and all of the input processed that was processed
    before, once a process is there to do it: to notice the failure and to start Python and Java is not part of it.

    Of the checkpoint policies that keep it, the one that writes least is used.
    """

    recovery: Duration | None = None
    completeness: float | None = None
    """The part of all tuples that is still processed while replicas fail; see `docs/laar.md`."""

    def __post_init__(self) -> None:
        if self.recovery_seconds is not None and self.recovery_seconds <= 0:
            raise DeclarationError(
                f"a guarantee to recover within {self.recovery_seconds:g} s", cure="give a positive duration, e.g. '2s'"
            )
        if self.completeness is not None and not 0 < self.completeness <= 1:
            raise DeclarationError(
                f"a guarantee of completeness {self.completeness!r}", cure="give a part of all tuples, e.g. 0.7"
            )

    @property
    def recovery_seconds(self) -> float | None:
        return None if self.recovery is None else parse_duration(self.recovery) / 1e9
