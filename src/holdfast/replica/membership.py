"""A host among the others: its heartbeats, and its seats.

One thread sends heartbeats, looks at the seats and requests free ones. It does nothing else, so neither a long epoch
nor a slow source delays a heartbeat. If the store does not answer, it tries again at the next beat. A host that has a
seat keeps working meanwhile, and finds out at its next commit whether it still has it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sqlalchemy.exc import SQLAlchemyError

from holdfast.engine.roles import Role
from holdfast.errors import HoldfastError
from holdfast.replica.activation_rules import resignation, stays_away, turns
from holdfast.replica.fragment_notes import Divergence, StoredNotes
from holdfast.replica.keeper import Keeper, Timing
from holdfast.replica.schemes import Scheme
from holdfast.replica.seat_store import Agreed, Agreement
from holdfast.replica.seats import Beat, Enlist, Resign, SeatsRequest, Seize, StopReplica
from holdfast.threads import SYSTEM, Condition, Event, Lock, Thread, Threads

__all__ = ["FragmentPlace", "Membership"]

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class FragmentPlace:
    """What the host is for one fragment, as of the last look."""

    keeper: Keeper
    agreed: Agreed | None = None
    ready: Scheme | None = None
    seated_at: float = 0.0
    silence: float = 0.0
    """How long the primary before had been silent when this host got its seat."""
    first: bool = True
    """Whether there was no primary before: then there is nothing to recover from."""
    started_for: bool = False
    """Whether this process has seen no primary before it got its seat, as one that was started to take over."""
    stopped: str | None = None
    """Why this process has no seat any more."""
    stuck: Callable[[], str | None] = lambda: None
    """Says why the replica here makes no progress, if so."""
    silent: bool = False
    """Whether it therefore does not beat."""
    reluctant_until: float = 0.0
    """Before that, a host that has just given the first seat away leaves it to the other."""

    @property
    def role(self) -> Role:
        if self.agreed is None or self.agreed.ended or self.keeper.seat is None:
            return Role.NONE
        return Role.LEAD if self.keeper.is_primary else self.agreed.seats.scheme.role

    @property
    def scheme(self) -> Scheme | None:
        return None if self.agreed is None else self.agreed.seats.scheme


@dataclass(slots=True)
class Membership:
    """`incarnation` is greater for every process of the host. `on_exit` is called with the reason when it is not needed
    any more."""

    host: str
    incarnation: int
    agreement: Agreement
    timing: Timing
    on_exit: Callable[[str], None]
    on_ready: Callable[[str, Scheme], None] = lambda fragment, scheme: None
    """Told when a replica here has what a scheme asks for."""
    clock: Callable[[], float] = time.monotonic
    threads: Threads = SYSTEM
    places: dict[str, FragmentPlace] = field(default_factory=dict)
    changed: Condition = field(init=False)
    sessions: bool = False
    """Whether there is a session: without it no seat is taken."""
    away_since: float | None = None
    _ended: Event = field(init=False)
    _lock: Lock = field(init=False)
    _asking: Lock = field(init=False)
    _thread: Thread | None = None

    def __post_init__(self) -> None:
        self.changed = self.threads.condition()
        self._ended = self.threads.event()
        self._lock, self._asking = self.threads.lock(), self.threads.lock()

    def start(self) -> None:
        self._thread = self.threads.start(self._keep, "beats")

    def serve(self, fragment: str) -> FragmentPlace:
        with self._lock:
            return self.places.setdefault(fragment, FragmentPlace(Keeper(self.host, self.incarnation, self.timing)))

    def leave(self, fragment: str) -> None:
        with self._lock:
            self.places.pop(fragment, None)

    def _keep(self) -> None:
        while not self._ended.wait(self.timing.beat):
            self.beat()

    def beat(self) -> None:
        """Beat, look, and ask for seats; all fragments in one transaction each time. Where nothing makes progress,
        there is no beat: whoever is silent loses the seat."""
        with self._lock:
            places = {name: place for name, place in self.places.items() if not self._is_stuck(name, place)}
        beats: dict[str, list[SeatsRequest]] = {
            name: [Beat(self.host, self.incarnation, 0, place.ready)] for name, place in places.items()
        }
        if not beats or not self._ask(beats, places):
            return
        now = self.clock()
        wanted: dict[str, list[SeatsRequest]] = {}
        served = {name: place for name, place in places.items() if place.agreed is None or not place.agreed.ended}
        needless: dict[str, str] = {}
        for name, place in served.items():
            if place.agreed is None or place.stopped is not None:
                continue
            place.keeper.look(place.agreed.seats, now)
            if place.keeper.is_primary:
                wanted[name] = self._toward(place, now)
                continue
            request = place.keeper.seek(place.agreed.seats) if self.sessions else None
            reluctant = now < place.reluctant_until and place.agreed.seats.secondary is not None
            if isinstance(request, str):
                needless[name] = request
            elif (
                request is not None
                and not (reluctant and isinstance(request, Seize))
                and not stays_away(place.agreed.seats, self.host, request, alone=place.keeper.alone())
            ):
                # Replicas that differ do not process side by side again.
                odd = place.agreed.notes.diverged is not None and place.agreed.seats.scheme.processes
                if not (odd and isinstance(request, Enlist)):
                    wanted[name] = [request]
        wanted = {name: requests for name, requests in wanted.items() if requests}
        if wanted:
            self._ask(wanted, places)
        elif needless and len(needless) == len(served):
            self.on_exit(next(iter(needless.values())))

    def _is_stuck(self, fragment: str, place: FragmentPlace) -> bool:
        problem = place.stuck()
        if (problem is not None) != place.silent:
            place.silent = problem is not None
            _log.warning(
                "'%s': %s",
                fragment,
                f"{problem}; no more heartbeats" if problem else "it continues, and sends heartbeats again",
            )
        return place.silent

    def _toward(self, place: FragmentPlace, now: float) -> list[SeatsRequest]:
        """What the primary does to have those process that were commanded to."""
        assert place.agreed is not None
        leaving = resignation(place.agreed.seats, self.host, alone=place.keeper.alone())
        if leaving is None:
            return [*turns(place.agreed.seats)]
        place.reluctant_until = now + 2 * self.timing.detection
        return [leaving]

    def _ask(self, requests: Mapping[str, list[SeatsRequest]], places: Mapping[str, FragmentPlace]) -> bool:
        with self._asking:  # so that answers are taken in as they were given
            return self._asked(requests, places)

    def _asked(self, requests: Mapping[str, list[SeatsRequest]], places: Mapping[str, FragmentPlace]) -> bool:
        try:
            answers = self.agreement.ask(requests)
        except (SQLAlchemyError, HoldfastError, OSError) as error:
            if self.away_since is None:
                self.away_since = self.clock()
                _log.warning("the meta store does not answer: %s", error)
            return False
        if self.away_since is not None:
            _log.warning("the meta store answers again, after %.1f s", self.clock() - self.away_since)
            self.away_since = None
        changed = False
        for name, agreed in answers.items():
            place = places[name]
            before = place.role
            known = agreed.seats.members.get(self.host)
            if known is not None and known.incarnation > self.incarnation:
                self.on_exit("another process of this host has taken its place")
            self._leave_if_named(name, place, agreed)
            known_before = place.agreed
            place.agreed = agreed
            if place.keeper.sit(agreed.seats):
                place.first = known_before is None or known_before.seats.primary is None
                place.seated_at, place.ready = self.clock(), None
                place.silence = place.keeper.silence
                place.started_for = not place.keeper.saw_beats
                changed = True
            changed = changed or place.role is not before
        if changed:
            with self.changed:
                self.changed.notify_all()
        return True

    def _leave_if_named(self, fragment: str, place: FragmentPlace, agreed: Agreed) -> None:
        """A process that was named, by whomever, gets no seat any more: the next one may."""
        epoch = agreed.seats.stopped_at(self.host, self.incarnation)
        if epoch is not None and place.stopped is None:
            place.stopped = f"its output of epoch {epoch} of '{fragment}' differs from that of the primary"
            self.on_exit(place.stopped)

    # what others of this host ask for

    def ask(self, fragment: str, requests: list[SeatsRequest]) -> Agreed | None:
        """What became of requests, which is also what this host uses from now on; None if there is no answer."""
        place = self.serve(fragment)
        return place.agreed if self._ask({fragment: requests}, {fragment: place}) else None

    def resign(self, fragment: str) -> None:
        """Give the first seat away, e.g. because nothing can be written here."""
        place = self.places[fragment]
        if place.keeper.seat is not None and place.keeper.is_primary:
            place.reluctant_until = self.clock() + 2 * self.timing.detection
            self._ask({fragment: [Resign(place.keeper.seat.token)]}, self.places)

    def stop_replica(self, fragment: str, epoch: int, what: str) -> None:
        """Name the secondary whose output differs: this one, or the other if this is the primary."""
        place = self.places[fragment]
        seat = place.keeper.seat
        if place.agreed is None or seat is None:
            return
        mine = not place.keeper.is_primary
        named = seat if mine else place.agreed.seats.secondary
        if mine:
            place.stopped = what
        if named is not None:
            self._ask({fragment: [StopReplica(seat.token, named, epoch)]}, self.places)
            self.agreement.note(fragment, StoredNotes(diverged=Divergence(named.host, epoch, what)))
        if mine:
            self.on_exit(f"its output of epoch {epoch} of '{fragment}' differs from what was committed: {what}")

    def wait(self, seconds: float) -> None:
        """Until a seat has changed, or for so long."""
        with self.changed:
            self.changed.wait(seconds)

    def close(self) -> None:
        """Leave: all seats are given back, so that no host has to wait for silence, nor counts on a host that is
        gone."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(10.0)
        for name, place in list(self.places.items()):
            if place.keeper.seat is not None:
                self._ask({name: [Resign(place.keeper.seat.token)]}, self.places)
