"""Which hosts are silent, and what a supervisor does about it.

Silence is measured by the watcher's own clock, and only while it is watching: a watcher that was stopped for an hour
has not watched for an hour. So neither clock skew nor a jump of a clock makes a live host look dead.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.replica.seats import Member, SeatHolder, SeatView

__all__ = ["Watch", "supervise"]


@dataclass(slots=True)
class Watch:
    """How long a seat's holder has not beaten. `moved` is whether it was seen to beat at all."""

    mark: tuple[SeatHolder, Member | None] | None = None
    silence: float = 0.0
    moved: bool = False
    at: float = 0.0

    def look(self, seat: SeatHolder | None, view: SeatView, now: float, most: float) -> None:
        """`most` bounds what counts between two looks."""
        mark = None if seat is None else (seat, view.members.get(seat.host))
        if mark == self.mark:
            self.silence += min(max(0.0, now - self.at), most)
        else:
            same = mark is not None and self.mark is not None and mark[0] == self.mark[0]
            self.mark, self.silence, self.moved = mark, 0.0, same
        self.at = now

    def is_gone(self, seconds: float) -> bool:
        """Whether the seat is free, or held by a process that was replaced, or one that has been silent for so long."""
        if self.mark is None:
            return True
        seat, member = self.mark
        return member is None or member.incarnation != seat.incarnation or self.silence >= seconds


def supervise(
    view: SeatView | None, watch: Watch, detection: float, slots: tuple[str, ...], running: tuple[str, ...]
) -> tuple[str, ...]:
    """Which hosts to start. Where no secondary is needed one is enough, as long as it is the primary and beats; when
    nothing is known of the store, what runs is left alone, but one at least is there when it answers."""
    missing = tuple(slot for slot in slots if slot not in running)
    if view is None:
        return missing[:1] if not running else ()
    if not view.scheme.needs_secondary and running and not watch.is_gone(detection):
        return ()
    return missing
