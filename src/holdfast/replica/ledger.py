"""What replicas agree on, and the transactions that change it: the part of the meta store that the protocol needs.

There are two seats, of the primary and of the secondary. Who takes one gets a token that is greater than all before;
with that, the token of who sat there is worth nothing, whatever it still tries. No clock is read here: a seat is taken
from a host by who has watched that it did not beat, and only if it has not done so since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.errors import InvalidTransitionError
from holdfast.replica.queues import Slices, Vector
from holdfast.replica.schemes import Scheme, changes

__all__ = [
    "Answer",
    "Beat",
    "CommitEpoch",
    "Enlist",
    "Ledger",
    "MarkCheckpoint",
    "Member",
    "PlanEpoch",
    "Record",
    "Request",
    "Resign",
    "Seat",
    "Seize",
    "Skip",
    "StopReplica",
    "Turn",
    "View",
]


@dataclass(frozen=True, slots=True)
class Seat:
    host: str
    incarnation: int
    token: int


@dataclass(frozen=True, slots=True)
class Member:
    """A host that beats: its process, how often it has beaten, and the scheme it is ready for."""

    incarnation: int
    beats: int
    ready: Scheme | None


@dataclass(frozen=True, slots=True)
class Record:
    """A committed epoch: the checksum of its output, and the token under which it was written."""

    value: int
    token: int
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """What a transaction saw at its end. Plans and records are those after the last checkpoint, or not delivered."""

    primary: Seat | None
    secondary: Seat | None
    scheme: Scheme
    turns: int
    lineage: int
    planned: int
    planned_ends: Vector
    committed: int
    checkpoint: int
    checkpoint_token: int
    previous: int
    delivered: int
    plans: Mapping[int, Slices]
    records: Mapping[int, Record]
    members: Mapping[str, Member]
    stopped: tuple[tuple[str, int, int], ...]
    serial: int


@dataclass(frozen=True, slots=True)
class Beat:
    """I live. Also carries what the reader has."""

    host: str
    incarnation: int
    delivered: int
    ready: Scheme | None


@dataclass(frozen=True, slots=True)
class Seize:
    """Make me the primary, if `rival` still has the seat and has not beaten since."""

    host: str
    incarnation: int
    rival: Seat | None
    seen: Member | None


@dataclass(frozen=True, slots=True)
class Enlist:
    """Make me the secondary, on the same terms."""

    host: str
    incarnation: int
    rival: Seat | None
    seen: Member | None


@dataclass(frozen=True, slots=True)
class Resign:
    token: int


@dataclass(frozen=True, slots=True)
class PlanEpoch:
    token: int
    epoch: int
    slices: Slices


@dataclass(frozen=True, slots=True)
class CommitEpoch:
    token: int
    epoch: int
    value: int


@dataclass(frozen=True, slots=True)
class MarkCheckpoint:
    """The state after the epoch is durable under the token."""

    token: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Skip:
    """Gap recovery: leave out what is planned up to `epoch`, and go on with the state of epoch `base`, which is durable
    as that of `epoch` under the token."""

    token: int
    epoch: int
    base: int
    value: int


@dataclass(frozen=True, slots=True)
class StopReplica:
    """The output of a replica differs from what was committed for the epoch."""

    token: int
    seat: Seat
    epoch: int


@dataclass(frozen=True, slots=True)
class Turn:
    """Take one step of the wheel, if so many were taken before."""

    turns: int
    to: Scheme


Request = Beat | Seize | Enlist | Resign | PlanEpoch | CommitEpoch | MarkCheckpoint | Skip | StopReplica | Turn


@dataclass(frozen=True, slots=True)
class Answer:
    """`done` is whether this very transaction changed what it asked for; the view tells why not."""

    done: bool
    view: View


@dataclass(slots=True)
class Ledger:
    """The transactions, one after the other. `precise` is what the pipeline was started with: only with gap recovery
    may epochs be skipped and inputs left out."""

    upstreams: int
    precise: bool = True
    scheme: Scheme = Scheme.PASSIVE_STANDBY_COLD
    turns: int = 0
    token: int = 0
    primary: Seat | None = None
    secondary: Seat | None = None
    lineage: int = 0
    planned: int = 0
    planned_ends: Vector = field(init=False)
    committed: int = 0
    checkpoint: int = 0
    checkpoint_token: int = 0
    previous: int = 0
    """The checkpoint before: kept with all that a replay from it needs, for a secondary that is about to read it."""
    delivered: int = 0
    plans: dict[int, Slices] = field(default_factory=dict)
    records: dict[int, Record] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)
    stopped: tuple[tuple[str, int, int], ...] = ()
    serial: int = 0

    def __post_init__(self) -> None:
        self.planned_ends = (0,) * self.upstreams

    def apply(self, request: Request) -> Answer:
        self.serial += 1
        done = bool(getattr(self, _METHODS[type(request)])(request))
        return Answer(done, self.view())

    def view(self) -> View:
        return View(
            self.primary, self.secondary, self.scheme, self.turns, self.lineage, self.planned, self.planned_ends,
            self.committed, self.checkpoint, self.checkpoint_token, self.previous, self.delivered, self.plans.copy(),
            self.records.copy(), self.members.copy(), self.stopped, self.serial,
        )  # fmt: skip

    def may_commit(self, token: int) -> bool:
        """The secondary may only with active replication."""
        if self.primary is not None and token == self.primary.token:
            return True
        return self.secondary is not None and token == self.secondary.token and self.scheme is Scheme.ACTIVE_REPLICATION

    def _is_primary(self, token: int) -> bool:
        return self.primary is not None and token == self.primary.token

    def _beat(self, beat: Beat) -> bool:
        before = self.members.get(beat.host)
        if before is not None and before.incarnation > beat.incarnation:
            return False  # a process that was replaced: what it says came late
        beats = before.beats + 1 if before is not None and before.incarnation == beat.incarnation else 1
        self.members[beat.host] = Member(beat.incarnation, beats, beat.ready)
        if beat.delivered > self.delivered:
            self.delivered = min(beat.delivered, self.committed)
            self._trim()
        return True

    def _is_free(self, seat: Seat | None, request: Seize | Enlist) -> bool:
        if seat != request.rival:
            return False
        if seat is None:
            return True
        member = self.members.get(seat.host)
        return member is None or member.incarnation != seat.incarnation or member == request.seen

    def _is_current(self, host: str, incarnation: int) -> bool:
        member = self.members.get(host)
        if member is None or member.incarnation != incarnation:
            return False
        return not any((host, incarnation) == each[:2] for each in self.stopped)

    def _seize(self, request: Seize) -> bool:
        if not self._is_current(request.host, request.incarnation) or not self._is_free(self.primary, request):
            return False
        self.token += 1
        self.primary = Seat(request.host, request.incarnation, self.token)
        if self.secondary is not None and self.secondary.host == request.host:
            self.secondary = None
        return True

    def _enlist(self, request: Enlist) -> bool:
        if not self._is_current(request.host, request.incarnation) or not self._is_free(self.secondary, request):
            return False
        if self.primary is not None and self.primary.host == request.host:
            return False
        self.token += 1
        self.secondary = Seat(request.host, request.incarnation, self.token)
        return True

    def _resign(self, request: Resign) -> bool:
        if not self._is_primary(request.token):
            return False
        self.primary = None
        return True

    def _plan(self, request: PlanEpoch) -> bool:
        """The first plan wins: who comes later finds it in the view."""
        if not self.may_commit(request.token) or request.epoch != self.planned + 1:
            return False
        for (first, end), before in zip(request.slices, self.planned_ends, strict=True):
            if first != before and (self.precise or first < before):
                return False
            if end < first:
                return False
        self.planned += 1
        self.planned_ends = tuple(end for _, end in request.slices)
        self.plans[self.planned] = request.slices
        return True

    def _commit(self, request: CommitEpoch) -> bool:
        if not self.may_commit(request.token):
            return False
        if request.epoch != self.committed + 1 or request.epoch not in self.plans:
            return False
        self.committed += 1
        self.records[self.committed] = Record(request.value, request.token)
        return True

    def _mark(self, request: MarkCheckpoint) -> bool:
        if not self._is_primary(request.token) or not self.checkpoint < request.epoch <= self.committed:
            return False
        self.previous = self.checkpoint
        self.checkpoint, self.checkpoint_token = request.epoch, request.token
        self._trim()
        return True

    def _skip(self, request: Skip) -> bool:
        if self.precise or not self._is_primary(request.token):
            return False
        if request.epoch != self.planned or not self.checkpoint <= request.base <= request.epoch:
            return False
        for epoch in range(self.committed + 1, self.planned + 1):
            self.records[epoch] = Record(request.value, request.token, skipped=True)
        self.committed = self.planned
        self.previous = self.checkpoint = request.epoch  # what is before belongs to another lineage
        self.checkpoint_token = request.token
        self.lineage += 1
        self._trim()
        return True

    def _stop(self, request: StopReplica) -> bool:
        """Only a seat that is held can be named, and only by who has one itself; never the primary."""
        if self.secondary != request.seat:
            return False
        if not self._is_primary(request.token) and request.token != request.seat.token:
            return False
        self.stopped = (*self.stopped, (request.seat.host, request.seat.incarnation, request.epoch))
        self.secondary = None
        return True

    def _turn(self, request: Turn) -> bool:
        if request.turns != self.turns:
            return False
        try:
            changes(self.scheme, request.to)
        except InvalidTransitionError:
            return False
        self.scheme = request.to
        self.turns += 1
        return True

    def _trim(self) -> None:
        """Plans are needed to replay what is after a checkpoint, records to deliver what is not delivered."""
        kept = min(self.previous, self.delivered)
        for epoch in [each for each in self.plans if each <= kept]:
            del self.plans[epoch]
        for epoch in [each for each in self.records if each <= kept]:
            del self.records[epoch]


_METHODS: Mapping[type, str] = {
    Beat: "_beat",
    Seize: "_seize",
    Enlist: "_enlist",
    Resign: "_resign",
    PlanEpoch: "_plan",
    CommitEpoch: "_commit",
    MarkCheckpoint: "_mark",
    Skip: "_skip",
    StopReplica: "_stop",
    Turn: "_turn",
}
