"""What a pipeline must keep, whatever fails: the user says what, and the mechanism follows from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from holdfast.errors import DeclarationError, WrongTypeError
from holdfast.graph.durations import Duration, parse_duration

__all__ = ["Delivery", "Guarantee"]


class Delivery(StrEnum):
    """Precise recovery replays what was not processed; gap recovery leaves it out, and never has anything twice."""

    EXACTLY_ONCE = "exactly-once"
    GAP = "gap"


@dataclass(frozen=True, slots=True)
class Guarantee:
    """`recovery` is the longest allowed gap in the output after a failure.

    On hosts that is what a reader sees: from the last commit before the failure to the first one after it, with what
    passes between two commits anyhow, with noticing the failure, and with the start of a process where one has to be
    started. Of the schemes of keeping a second host, the cheapest that keeps it is used.

    In one process nobody is there to notice a failure: whoever starts the process again decides when that is. There it
    is the time from when Python and Java have started to when the state is back and all of the input is processed that
    was processed before. Of the checkpoint policies that keep it, the one that writes least is used.

    With `delivery="gap"` what was not processed when a host failed may be left out, and a recovery is faster for it;
    this is up to replicas alone. `budget` is how much money the secondary may cost per hour, in the currency of the
    prices that the controller reckons with; None: whatever it takes.
    """

    recovery: Duration | None = None
    delivery: str = Delivery.EXACTLY_ONCE
    budget: float | None = None
    completeness: float | None = None
    """The part of all tuples that is still processed while replicas fail; see `docs/laar.md`."""

    def __post_init__(self) -> None:
        _check_recovery(self.recovery)
        _check_delivery(self.delivery)
        object.__setattr__(self, "delivery", Delivery(self.delivery))
        if self.budget is not None:
            _check_budget(self.budget)
        if self.completeness is not None and not 0 < self.completeness <= 1:
            raise DeclarationError(
                f"a guarantee of completeness {self.completeness!r}", cure="give a share of all tuples, e.g. 0.7"
            )
        if self.completeness is not None and self.recovery is not None:
            raise DeclarationError(
                "a guarantee of both completeness and recovery time: each decides which replicas are active",
                cure="choose one of them",
            )

    @property
    def recovery_seconds(self) -> float | None:
        """`recovery` in seconds."""
        return None if self.recovery is None else parse_duration(self.recovery) / 1e9

    @property
    def precise(self) -> bool:
        """Whether no rows may be dropped."""
        return self.delivery == Delivery.EXACTLY_ONCE


def _check_recovery(recovery: Duration | None) -> None:
    if recovery is None:
        return
    try:
        seconds = parse_duration(recovery) / 1e9
    except WrongTypeError as error:
        raise WrongTypeError(f"a guarantee with recovery={recovery!r}: {error.problem}", cure=error.cure) from None
    if seconds <= 0:
        raise DeclarationError(
            f"a guarantee to recover within {seconds:g} s", cure="give a positive duration, e.g. '2s'"
        )


def _check_delivery(delivery: object) -> None:
    known = [kind.value for kind in Delivery]
    if delivery not in known:
        raise DeclarationError(f"a guarantee with delivery={delivery!r}", cure=f"choose one of: {', '.join(known)}")


def _check_budget(budget: object) -> None:
    number = isinstance(budget, int | float) and not isinstance(budget, bool)
    if not number or not math.isfinite(budget) or budget < 0:  # type: ignore[arg-type, operator]
        raise DeclarationError(
            f"a guarantee with a budget of {budget!r}", cure="give the money per hour for the second host, 0 or more"
        )
