"""The seat that a host has, and the one it should request. Pure; the same for hosts and for their simulation.

A host takes a seat if it is free, or if its holder has been silent for long enough. Only the store decides which host
gets it. From then on the token counts: every request of a host that has lost its seat is rejected.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.replica.seats import Enlist, SeatHolder, SeatView, Seize
from holdfast.replica.supervision import Watch

__all__ = ["LEAST_BEAT", "Keeper", "Timing"]

LEAST_BEAT = 0.05
"""Seconds between two beats of hosts; more often would keep the meta store busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """A host that has not beaten for `detection` seconds is taken for dead. Two epochs may be planned and not yet
    committed; a checkpoint is made after every `checkpoint_epochs`; an epoch takes at most `most_rows` per input."""

    beat: float = 0.25
    detection: float = 1.0
    flight: int = 2
    checkpoint_epochs: int = 4
    most_rows: int = 50

    @property
    def noticed(self) -> float:
        """How long it takes at most until another host asks for the seat of a host that has died: its last beat is seen
        with the watcher's next look, and so is that there were no more."""
        return self.detection + 2 * self.beat


@dataclass(slots=True)
class Keeper:
    """`incarnation` grows with every process that is started for the host."""

    host: str
    incarnation: int
    timing: Timing
    seat: SeatHolder | None = None
    is_primary: bool = False
    saw_beats: bool = False
    """Whether a host in the first seat was seen to beat."""
    _primary: Watch = field(default_factory=Watch)
    _secondary: Watch = field(default_factory=Watch)

    def sit(self, view: SeatView) -> bool:
        """Find my seat in the view; whether it is another than before."""
        mine = next(
            (
                seat
                for seat in (view.primary, view.secondary)
                if seat is not None and seat.host == self.host and seat.incarnation == self.incarnation
            ),
            None,
        )
        if mine == self.seat:
            return False
        self.seat = mine
        self.is_primary = mine is not None and mine == view.primary
        return True

    def look(self, view: SeatView, now: float) -> None:
        """Watch which hosts have the seats. `now` is the host's own clock; only differences of it are looked at."""
        most = 2 * self.timing.beat
        self._primary.look(view.primary, view, now, most)
        self.saw_beats = self.saw_beats or self._primary.moved
        self._secondary.look(view.secondary, view, now, most)

    def seek(self, view: SeatView) -> Seize | Enlist | str | None:
        """Take a seat that is free, or whose holder is silent. A spare host waits longer: the secondary is ahead.
        A text says why the process should end."""
        if self.is_primary:
            return None
        first = view.secondary is None or self.seat is not None
        patience = self.timing.detection + (0 if first else 4 * self.timing.beat)
        if self._primary.is_gone(patience):
            seen = None if view.primary is None else view.members.get(view.primary.host)
            return Seize(self.host, self.incarnation, view.primary, seen)
        if not view.scheme.needs_secondary:
            return f"the primary runs, and {view.scheme} needs no other host" if self._primary.moved else None
        if self.seat is None and self._secondary.is_gone(self.timing.detection):
            seen = None if view.secondary is None else view.members.get(view.secondary.host)
            return Enlist(self.host, self.incarnation, view.secondary, seen)
        return None

    @property
    def silence(self) -> float:
        """For how long nothing was heard of the primary, as far as this host has watched."""
        return self._primary.silence

    def alone(self) -> bool:
        """Whether the second seat has no live host, as far as this host has seen."""
        return self._secondary.is_gone(self.timing.detection + 4 * self.timing.beat)
