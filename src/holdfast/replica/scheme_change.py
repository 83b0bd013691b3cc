"""Changing the scheme by hand: to the next one on the wheel, or step by step to any other."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import DeclarationError, UnknownStateError
from holdfast.replica.schemes import Scheme, wheel
from holdfast.replica.seat_store import Agreement
from holdfast.replica.seats import Turn

__all__ = ["is_reached", "named", "turn", "turn_to"]


def named(text: str) -> Scheme:
    """The scheme that a user means: by its name, words joined as one likes."""
    plain = text.lower().replace("-", " ").replace("_", " ").strip()
    for scheme in wheel.SCHEMES:
        if scheme.name == plain:
            return scheme
    raise DeclarationError(
        f"there is no scheme '{text}'", cure=f"use one of: {', '.join(scheme.name for scheme in wheel.SCHEMES)}"
    )


def turn(agreement: Agreement, fragment: str, to: Scheme) -> None:
    """One step of the wheel; what is no step is an error that names the way."""
    agreed = agreement.look([fragment]).get(fragment)
    if agreed is None:
        raise UnknownStateError(f"no hosts run '{fragment}'", cure="start them with: holdfast up")
    wheel.check_step(agreed.seats.scheme, to)
    if not agreement.ask({fragment: [Turn(agreed.seats.turns, to)]})[fragment].done[0]:
        turn(agreement, fragment, to)  # another process has turned it meanwhile


def turn_to(agreement: Agreement, fragment: str, to: Scheme) -> list[Scheme]:
    """Step by step to a scheme; the schemes that were passed."""
    agreed = agreement.look([fragment]).get(fragment)
    if agreed is None:
        raise UnknownStateError(f"no hosts run '{fragment}'", cure="start them with: holdfast up")
    steps = list(wheel.path(agreed.seats.scheme, to))
    for step in steps:
        turn(agreement, fragment, step)
    return steps


def is_reached(agreement: Agreement, fragments: Sequence[str], scheme: Scheme) -> bool:
    """Whether the secondaries are what the scheme says."""
    for agreed in agreement.look(fragments).values():
        seats = agreed.seats
        if agreed.ended:
            continue
        if seats.scheme is not scheme:
            return False
        if not (seats.secondary_ready if scheme.needs_secondary else seats.secondary is None):
            return False
    return True
