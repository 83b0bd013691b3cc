"""What replicas agree on, and the transactions that change it: the part of the meta store that the protocol needs.

The seats of primary and secondary, with plans, commits and checkpoints, which need a token that is valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.replica.queues import Slices, Vector
from holdfast.replica.schemes import Scheme
from holdfast.replica.seating import Beat, Enlist, Member, Resign, Seat, Seats, SeatsRequest, Seize, StopReplica, Turn

__all__ = [
    "Answer",
    "CommitEpoch",
    "Ledger",
    "MarkCheckpoint",
    "PlanEpoch",
    "Record",
    "Request",
    "Skip",
    "View",
]


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


Request = SeatsRequest | PlanEpoch | CommitEpoch | MarkCheckpoint | Skip


@dataclass(frozen=True, slots=True)
class Answer:
    """`done` is whether this very transaction changed what it asked for; the view tells why not."""

    done: bool
    view: View


@dataclass(slots=True, kw_only=True)
class Ledger(Seats):
    """The transactions, one after the other. `precise` is what the pipeline was started with: only with gap recovery
    may epochs be skipped and inputs left out."""

    upstreams: int
    precise: bool = True
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

    def _beat(self, beat: Beat) -> bool:
        if not Seats._beat(self, beat):
            return False
        if beat.delivered > self.delivered:
            self.delivered = min(beat.delivered, self.committed)
            self._trim()
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
