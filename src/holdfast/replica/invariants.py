"""What must hold at every step of a simulated run, whatever fails. Checked by its own account of what has happened.

The checker does not trust the ledger: it keeps who got which token and what was planned and committed from the answers
alone, so that a ledger that forgets a check is found out as well as a host that does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.replica.ledger import (
    Answer,
    CommitEpoch,
    Enlist,
    MarkCheckpoint,
    PlanEpoch,
    Request,
    Resign,
    Seize,
    Skip,
    StopReplica,
    Turn,
)
from holdfast.replica.messages import Local
from holdfast.replica.queues import Slices, Vector
from holdfast.replica.schemes import Scheme, direct

__all__ = ["Checker", "ViolationError", "slice_value", "state_value"]


class ViolationError(AssertionError):
    """An invariant does not hold."""


def _sum_of_squares(end: int) -> int:
    return (end - 1) * end * (2 * end - 1) // 6


def slice_value(upstream: int, first: int, end: int) -> int:
    """What the events of a slice add to the state. It is the same however the slice is cut, and another one if any
    event is missing or there twice."""
    return (2 * upstream + 1) * (_sum_of_squares(end) - _sum_of_squares(first))


def state_value(ends: Vector) -> int:
    """The state, and the output, of a run in which nothing fails, when it has read so far."""
    return sum(slice_value(number, 0, end) for number, end in enumerate(ends))


@dataclass(slots=True)
class Checker:
    """`same` is whether all replicas compute the same. If one does not, values are not looked at."""

    upstreams: int
    precise: bool
    scheme: Scheme
    outputs: Mapping[tuple[int, int], int]
    checkpoints: Mapping[tuple[int, int], Local]
    same: bool = True
    primary: int | None = None
    primary_host: str = ""
    secondary: int | None = None
    secondary_host: str = ""
    plans: list[Slices] = field(default_factory=list)
    values: list[int | None] = field(default_factory=lambda: [0])
    """The state after each committed epoch; None for the output of one that was left out."""
    states: list[int] = field(default_factory=lambda: [0])
    tokens: list[int] = field(default_factory=lambda: [0])
    checkpoint: int = 0
    checkpoint_token: int = 0
    delivered: int = 0
    taken: int = 0
    begins: dict[int, Vector] = field(default_factory=dict)
    """By token, where a primary's inputs began anew."""
    gaps: int = 0
    takeovers: int = 0

    @property
    def committed(self) -> int:
        return len(self.states) - 1

    def ends(self, epoch: int) -> Vector:
        return tuple(end for _, end in self.plans[epoch - 1]) if epoch else (0,) * self.upstreams

    def on_answer(self, request: Request, answer: Answer) -> None:
        """After every transaction that was done."""
        if not answer.done:
            return
        if isinstance(request, CommitEpoch):
            self._on_commit(request)
        elif isinstance(request, PlanEpoch):
            self._on_plan(request)
        elif isinstance(request, MarkCheckpoint):
            self._on_checkpoint(request)
        elif isinstance(request, Seize):
            assert answer.view.primary is not None
            self._new_token(answer.view.primary.token)
            self.primary, self.primary_host = answer.view.primary.token, request.host
            if self.secondary_host == request.host:
                self.secondary = None
            self.takeovers += 1
        elif isinstance(request, Enlist):
            assert answer.view.secondary is not None
            self._new_token(answer.view.secondary.token)
            self.secondary, self.secondary_host = answer.view.secondary.token, request.host
        elif isinstance(request, Resign):
            self.primary = None
        elif isinstance(request, StopReplica):
            self._expect(not self.same, f"{request.seat} was stopped though all replicas compute the same")
            self.secondary = None
        elif isinstance(request, Turn):
            self._expect(direct(self.scheme, request.to), f"{self.scheme} became {request.to} in one step")
            self.scheme = request.to
        elif isinstance(request, Skip):
            self._on_skip(request)

    def _new_token(self, token: int) -> None:
        self._expect(token > max(self.primary or 0, self.secondary or 0), f"token {token} was given twice")

    def _may(self, token: int, what: str) -> None:
        second = self.scheme is Scheme.ACTIVE_REPLICATION and token == self.secondary
        self._expect(
            token == self.primary or second,
            f"{what} with token {token}, which is not valid: the primary has {self.primary}, the secondary"
            f" {self.secondary} with {self.scheme.value}",
        )

    def _on_plan(self, request: PlanEpoch) -> None:
        self._may(request.token, f"epoch {request.epoch} was planned")
        self._expect(request.epoch == len(self.plans) + 1, f"epoch {request.epoch} was planned twice or out of order")
        before = self.ends(len(self.plans))
        for number, (first, end) in enumerate(request.slices):
            self._expect(first >= before[number], f"epoch {request.epoch} reads twice what is before {before[number]}")
            self._expect(end >= first, f"epoch {request.epoch} reads backwards")
            if first > before[number]:
                self._expect(not self.precise, f"epoch {request.epoch} leaves out {before[number]} to {first}")
                begun = self.begins.get(request.token)
                self._expect(
                    begun is not None and first <= begun[number],
                    f"epoch {request.epoch} leaves out input up to {first}, but it was received from {begun} on",
                )
                self.gaps += 1
        self.begins.pop(request.token, None)
        self.plans.append(request.slices)

    def _on_commit(self, request: CommitEpoch) -> None:
        epoch = request.epoch
        self._may(request.token, f"epoch {epoch} was committed")
        self._expect(epoch == self.committed + 1, f"epoch {epoch} was committed after {self.committed}")
        self._expect(epoch <= len(self.plans), f"epoch {epoch} was committed and never planned")
        slices = self.plans[epoch - 1]
        expected = (
            state_value(self.ends(epoch))
            if self.precise
            else self.states[-1] + sum(slice_value(number, *each) for number, each in enumerate(slices))
        )
        self._expect(
            not self.same or request.value == expected,
            f"epoch {epoch} gave {request.value}; without faults it gives {expected}",
        )
        self._expect((epoch, request.token) in self.outputs, f"epoch {epoch} was committed and its output is not there")
        self.states.append(request.value)
        self.values.append(request.value)
        self.tokens.append(request.token)

    def _on_checkpoint(self, request: MarkCheckpoint) -> None:
        self._expect(request.token == self.primary, f"checkpoint by {request.token}, who is not the primary")
        self._set_checkpoint(request.epoch, request.token, self.states[request.epoch])

    def _on_skip(self, request: Skip) -> None:
        self._expect(not self.precise, f"epochs up to {request.epoch} were left out by a precise recovery")
        self._expect(request.token == self.primary, f"epochs were left out by {request.token}, who is not the primary")
        self._expect(request.base >= self.checkpoint, "a gap recovery went behind the last checkpoint")
        value = self.states[request.base]
        while self.committed < len(self.plans):
            self.states.append(value)
            self.values.append(None)
            self.tokens.append(request.token)
        self.states[-1] = value
        self._set_checkpoint(request.epoch, request.token, value)

    def _set_checkpoint(self, epoch: int, token: int, value: int) -> None:
        saved = self.checkpoints.get((epoch, token))
        self._expect(saved is not None, f"the checkpoint of epoch {epoch} is not there")
        assert saved is not None
        same = not self.same or saved.value == value
        self._expect(
            same and saved.ends == self.ends(epoch), f"the checkpoint of epoch {epoch} is {saved}, not {value}"
        )
        self.checkpoint, self.checkpoint_token = epoch, token

    def on_taken(self, epoch: int, value: int | None) -> None:
        """The reader took an epoch for new."""
        self._expect(epoch == self.taken + 1, f"the reader took epoch {epoch} after {self.taken}")
        self._expect(epoch <= self.committed, f"the reader took epoch {epoch}, which is not committed")
        self._expect(
            value == self.values[epoch], f"the reader took {value} for epoch {epoch}, not {self.values[epoch]}"
        )
        self.taken = epoch

    def on_swept(self) -> None:
        """Nothing was removed that is still needed."""
        for epoch in range(self.taken + 1, self.committed + 1):
            if self.values[epoch] is not None:
                self._expect((epoch, self.tokens[epoch]) in self.outputs, f"the output of epoch {epoch} was removed")
        if self.checkpoint:
            kept = (self.checkpoint, self.checkpoint_token) in self.checkpoints
            self._expect(kept, f"the checkpoint of epoch {self.checkpoint} was removed")

    def on_released(self, trimmed: list[int]) -> None:
        needed = self.ends(self.checkpoint)
        for number, position in enumerate(trimmed):
            self._expect(
                position <= needed[number],
                f"upstream {number} forgot up to {position}; the checkpoint of epoch {self.checkpoint} needs it from "
                f"{needed[number]}",
            )

    def _expect(self, holds: bool, problem: str) -> None:
        if not holds:
            raise ViolationError(problem)
