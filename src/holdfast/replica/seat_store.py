"""Seats in the meta store: the requests of the protocol as transactions.

The rules are those of `Seats`, which the simulation also tests; here they are applied to the content of the store, in
one transaction. The lease of a fragment is that of its primary: `holdfast run`, which runs the pipeline alone, takes it
in the same way, and keeps hosts from taking it while it is alive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from holdfast.engine.lease import LEASE_SECONDS
from holdfast.meta import Lease, LeaseHolder, MetaStore, ReplicaMeta, ReplicaRow, SeatsUpdate
from holdfast.plan.cuts import FragmentLinks
from holdfast.replica.fragment_notes import FragmentNotes, StoredNotes
from holdfast.replica.schemes import Scheme
from holdfast.replica.seats import Beat, Seats, SeatsRequest, Seize
from holdfast.stored_json import JsonForm

__all__ = ["Agreed", "Agreement", "agreed_of", "deployed_fragments"]

_NOTHING = StoredNotes()


@dataclass(frozen=True, slots=True)
class Agreed:
    """What a transaction left of a fragment, and which of its requests were fulfilled."""

    seats: Seats
    notes: FragmentNotes
    ended: bool
    done: tuple[bool, ...] = ()


class Agreement:
    """What the hosts of a store agree on. `owner` is this process as the owner of leases."""

    def __init__(self, meta: MetaStore, owner: str, clock: Callable[[], float]) -> None:
        self._rows = ReplicaMeta(meta)
        self._owner = owner
        self._clock = clock

    def open(self, fragment: str, scheme: Scheme, notes: StoredNotes = _NOTHING) -> None:
        """Begin with empty seats, unless there are some. The scheme is asked for by `Turn` where it is another."""
        self._rows.open(fragment, Seats(scheme=scheme).encode(), notes.encode())

    def look(self, fragments: Sequence[str]) -> dict[str, Agreed]:
        return {name: agreed_of(row) for name, row in self._rows.rows(fragments).items()}

    def ask(self, requests: Mapping[str, Sequence[SeatsRequest]]) -> dict[str, Agreed]:
        """Apply requests, those of each fragment in their order, all in one transaction."""
        done: dict[str, tuple[bool, ...]] = {}

        def change(fragment: str, row: ReplicaRow, held: LeaseHolder | None) -> SeatsUpdate | None:
            seats = Seats.decode(row.seats)
            before = seats.encode()
            self._take_note(seats, held)
            done[fragment] = tuple(
                self._allows(request, seats, held) and seats.change(request) for request in requests[fragment]
            )
            after = seats.encode()
            if after == before:
                return None
            return _update_of(seats, after, self._lease(seats, held, requests[fragment]))

        rows = self._rows.change(list(requests), change)
        return {name: agreed_of(row, done[name]) for name, row in rows.items()}

    def note(self, fragment: str, notes: StoredNotes) -> None:
        self._rows.note(fragment, notes.encode())

    def end(self, lease: Lease) -> None:
        self._rows.end(lease)

    def lease(self, fragment: str, token: int, *, shared: bool) -> Lease:
        return Lease(fragment, self._owner, token, shared)

    def _take_note(self, seats: Seats, held: LeaseHolder | None) -> None:
        """A run of the pipeline alone may have taken the lease: then the first seat is empty, and tokens continue from
        its."""
        if held is not None:
            if seats.primary is not None and held.token != seats.primary.token:
                seats.primary = None
            seats.token = max(seats.token, held.token)

    def _allows(self, request: SeatsRequest, seats: Seats, held: LeaseHolder | None) -> bool:
        """Whether no other process runs the fragment alone."""
        if not isinstance(request, Seize) or held is None or seats.primary is not None:
            return True
        return not held.is_running(self._clock())

    def _lease(self, seats: Seats, held: LeaseHolder | None, requests: Sequence[SeatsRequest]) -> LeaseHolder | None:
        """The lease goes with the first seat. Its holder's beats keep it; an empty seat sets it free."""
        if seats.primary is None:
            mine = held is not None and held.owner == self._owner
            return LeaseHolder(seats.token, self._owner, 0.0) if mine else None
        beats = any(isinstance(request, Beat) and request.host == seats.primary.host for request in requests)
        if beats or held is None or held.token != seats.primary.token:
            return LeaseHolder(seats.primary.token, self._owner, self._clock() + LEASE_SECONDS)
        return None


def agreed_of(row: ReplicaRow, done: tuple[bool, ...] = ()) -> Agreed:
    """What a row of the store says."""
    return Agreed(Seats.decode(row.seats), FragmentNotes(row.notes), row.ended, done)


class _FragmentsOfDeployment(msgspec.Struct, frozen=True):
    fragments: Mapping[str, FragmentLinks]


_FRAGMENTS = JsonForm(_FragmentsOfDeployment, "a deployment")


def deployed_fragments(meta: MetaStore) -> dict[str, tuple[str, ...]]:
    """The fragments that hosts are to run, by pipeline."""
    return {name: tuple(_FRAGMENTS.decode(text).fragments) for name, text in ReplicaMeta(meta).deployed().items()}


def _update_of(seats: Seats, after: str, lease: LeaseHolder | None) -> SeatsUpdate:
    first, second = (None if seat is None else seat.token for seat in (seats.primary, seats.secondary))
    return SeatsUpdate(after, first, second, seats.scheme.both_commit, lease)
