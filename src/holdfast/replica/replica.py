"""A replica of a fragment on a host: does what its seat asks for, and keeps doing so as the seat changes."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from sqlalchemy.exc import SQLAlchemyError

from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.roles import Role, Seat
from holdfast.errors import DeadlineError, HoldfastError, LeaseLostError, StoreFullError, StoreUnreachableError
from holdfast.meta import Lease
from holdfast.replica.fragment_notes import StoredNotes
from holdfast.replica.membership import FragmentPlace, Membership
from holdfast.threads import SYSTEM, Clock, Thread

__all__ = ["FragmentReplica", "SeatAuthority"]

_log = logging.getLogger(__name__)

_BUILD_SECONDS = 300.0
"""How long a run may take to begin: its program is loaded, and the executors of its session are waited for."""
_PAUSE = 0.2
_WORST_PAUSE = 5.0
_FULL_TIMES = 3
_MOST_FAILURES = 5
_PASSING = (DeadlineError, StoreFullError, StoreUnreachableError, SQLAlchemyError, OSError)
"""What may be mended while one waits, however long."""


@dataclass(slots=True)
class SeatAuthority:
    """The right of a run to what its host's seat allows."""

    member: Membership
    place: FragmentPlace
    fragment: str
    precise: bool
    token: int | None = None
    """Of the first seat, once the run has it: a new one is for a new run."""

    @property
    def lease(self) -> Lease:
        seat = self.place.keeper.seat
        if seat is None or (self.token is not None and not (self.place.keeper.is_primary and seat.token == self.token)):
            raise self._gone()  # the former primary is not the secondary now: its threads may still be at work
        return self.member.agreement.lease(self.fragment, seat.token, shared=not self.place.keeper.is_primary)

    @property
    def seat(self) -> Seat:
        shared = self.place.scheme is not None and self.place.scheme.both_commit
        return Seat(self.place.role, shared=shared, precise=self.precise, replica=True)

    def renew(self) -> None:
        seat = self.place.keeper.seat
        if seat is None or self.place.stopped is not None:
            raise self._gone()
        if self.place.keeper.is_primary:
            if self.token not in (None, seat.token):
                raise self._gone()
            self.token = seat.token

    def _gone(self) -> LeaseLostError:
        return LeaseLostError(
            f"this host no longer has a seat for '{self.fragment}'", cure="nothing to do: it takes a free one"
        )

    def ready(self, role: Role | None) -> None:
        before, scheme = self.place.ready, self.place.scheme
        self.place.ready = scheme if role is not None and role is self.place.role else None
        if self.place.ready is not None and self.place.ready is not before:
            self.member.on_ready(self.fragment, self.place.ready)

    def differs(self, epoch: int, what: str) -> None:
        _log.error("'%s', epoch %d: the outputs of the replicas differ: %s", self.fragment, epoch, what)
        self.member.stop_replica(self.fragment, epoch, what)

    def __enter__(self) -> SeatAuthority:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.place.ready = None


@dataclass(slots=True)
class FragmentReplica:
    """`build` makes a run under an authority: it loads the program. It is called from a thread of its own."""

    fragment: str
    member: Membership
    build: Callable[[SeatAuthority], FragmentRun]
    precise: bool
    on_trouble: Callable[[str], None]
    clock: Clock = SYSTEM
    run: FragmentRun | None = None
    ended: bool = False
    _stopping: bool = False
    _failures: int = 0
    _full: int = 0
    _building: float | None = None
    """Since when the run is being made, by the monotonic clock."""
    _went_on: bool = False
    """Whether epochs were committed here since this host last gave the fragment away."""
    _thread: Thread | None = None

    def stuck(self) -> str | None:
        """Why nothing makes progress here, if so. A seat whose holder is stuck is for others."""
        if self._thread is not None and not self._thread.is_alive() and not self.ended and not self._stopping:
            return "its thread has ended"
        run, since = self.run, self._building
        if run is None and since is not None and self.clock.monotonic() - since > _BUILD_SECONDS:
            return f"its run has not begun for {_BUILD_SECONDS:.0f} s"
        return None if run is None else run.stuck()

    def start(self, thread: Callable[[Callable[[], None], str], Thread]) -> None:
        """`thread` starts one for a function, by a name."""
        self.member.serve(self.fragment).stuck = self.stuck
        self._thread = thread(self._serve, f"replica-{self.fragment}")

    def stop(self) -> None:
        self._stopping = True
        if self.run is not None:
            self.run.stop()

    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def join(self, seconds: float) -> None:
        if self._thread is not None:
            self._thread.join(seconds)

    def _serve(self) -> None:
        place = self.member.serve(self.fragment)
        while not self._stopping:
            if place.agreed is not None and place.agreed.ended:
                self.ended = True
                return
            if place.role is Role.NONE:
                # A host that is deployed, or a spare one: there is a session, and nothing is loaded.
                scheme = place.scheme if place.keeper.seat is not None else None
                place.ready = scheme if scheme is not None and scheme.is_ready_with_session else None
                self.member.wait(_PAUSE)
                continue
            self._live(place)

    def _live(self, place: FragmentPlace) -> None:
        authority = SeatAuthority(self.member, place, self.fragment, self.precise)
        try:
            self._run(place, authority)
            self._failures = self._full = 0
        except LeaseLostError as error:
            _log.info("'%s': %s", self.fragment, error)
        except DeadlineError as error:
            if place.keeper.is_primary:  # first of all: others wait for it
                self.member.resign(self.fragment)
            self._trouble(error)
        except StoreFullError as error:
            self._full += 1
            self._trouble(error)
            if self._full >= _FULL_TIMES and place.keeper.is_primary:
                self.member.resign(self.fragment)
                self._full = 0
        except (HoldfastError, SQLAlchemyError, OSError) as error:
            self._trouble(error)
        except BaseException as error:  # noqa: BLE001 - also SystemExit and a panic of Polars: the seat is not to be left
            _log.exception("'%s' failed", self.fragment)
            self._trouble(error)
        finally:
            self.run = self._building = None

    def _run(self, place: FragmentPlace, authority: SeatAuthority) -> None:
        try:
            self._building = self.clock.monotonic()
            self.run = self.build(authority)
            self._building = None
            if not self._stopping and self.run.live():
                self.member.agreement.end(authority.lease)
                self.member.beat()
        finally:
            if self.run is not None and self.run.fresh:
                self._progressed(place)

    def _progressed(self, place: FragmentPlace) -> None:
        """Epochs were committed here: what failed before them does not count any more."""
        self._failures = self._full = 0
        self._went_on = True
        failing = {} if place.agreed is None else place.agreed.notes.failing
        if self.member.host in failing:
            others = {host: problem for host, problem in failing.items() if host != self.member.host}
            with contextlib.suppress(HoldfastError, SQLAlchemyError, OSError):
                self.member.agreement.note(self.fragment, StoredNotes(failing=others))

    def _give_up(self, place: FragmentPlace, problem: str) -> None:
        """It may be this host alone: the fragment ends when no other is left that has not failed, too. Who failed
        before epochs were committed here may be able to continue from there."""
        assert place.agreed is not None
        agreement, second = self.member.agreement, place.agreed.seats.secondary
        others = {} if self._went_on else place.agreed.notes.failing
        failing = {**others, self.member.host: problem}
        if second is not None and second.host not in failing:
            agreement.note(self.fragment, StoredNotes(failing=failing))
            self.member.resign(self.fragment)
            self._failures, self._went_on = 0, False
            return
        lease = SeatAuthority(self.member, place, self.fragment, self.precise).lease
        agreement.note(self.fragment, StoredNotes(failed=problem))
        agreement.end(lease)
        self.member.beat()

    def _trouble(self, error: BaseException) -> None:
        """What fails again and again, without an epoch committed meanwhile, will not be mended by trying: then the
        fragment ends, and says why."""
        self._failures += 1
        what = error if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
        self.on_trouble(f"'{self.fragment}': {what}")
        lasting = self._failures >= _MOST_FAILURES and not isinstance(error, _PASSING)
        if lasting and self.member.places[self.fragment].keeper.is_primary:
            with contextlib.suppress(HoldfastError, SQLAlchemyError, OSError):
                self._give_up(self.member.places[self.fragment], str(what))
        self.clock.sleep(min(_WORST_PAUSE, _PAUSE * 2**self._failures))
