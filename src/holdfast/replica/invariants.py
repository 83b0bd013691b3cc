"""What must hold at every step of a simulated run, whatever fails. Checked by its own account of what has happened.

The checker does not trust the ledger: it keeps who got which token and what was planned and committed from the answers
alone, so that a ledger that forgets a check is found out as well as a host that does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.replica.ledger import Answer, CommitEpoch, MarkCheckpoint, PlanEpoch, Request, Skip
from holdfast.replica.messages import Local
from holdfast.replica.queues import Slices, Vector
from holdfast.replica.schemes import Scheme, direct
from holdfast.replica.seating import Enlist, Resign, Seize, StopReplica, Turn

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
            self._expect(not self.same, "{} was stopped though all replicas compute the same", request.seat)
            self.secondary = None
        elif isinstance(request, Turn):
            self._expect(direct(self.scheme, request.to), "{} became {} in one step", self.scheme, request.to)
            self.scheme = request.to
        elif isinstance(request, Skip):
            self._on_skip(request)

    def _new_token(self, token: int) -> None:
        self._expect(token > max(self.primary or 0, self.secondary or 0), "token {} was given twice", token)

    def _may(self, token: int, epoch: int, done: str) -> None:
        second = self.scheme is Scheme.ACTIVE_REPLICATION and token == self.secondary
        self._expect(
            token == self.primary or second,
            "epoch {} was {} with token {}, which is not valid: the primary has {}, the secondary {} with {.value}",
            *(epoch, done, token, self.primary, self.secondary, self.scheme),
        )

    def _on_plan(self, request: PlanEpoch) -> None:
        epoch = request.epoch
        self._may(request.token, epoch, "planned")
        self._expect(epoch == len(self.plans) + 1, "epoch {} was planned twice or out of order", epoch)
        before = self.ends(len(self.plans))
        for number, (first, end) in enumerate(request.slices):
            self._expect(first >= before[number], "epoch {} reads twice what is before {}", epoch, before[number])
            self._expect(end >= first, "epoch {} reads backwards", epoch)
            if first > before[number]:
                self._expect(not self.precise, "epoch {} leaves out {} to {}", epoch, before[number], first)
                begun = self.begins.get(request.token)
                self._expect(
                    begun is not None and first <= begun[number],
                    "epoch {} leaves out input up to {}, but it was received from {} on",
                    *(epoch, first, begun),
                )
                self.gaps += 1
        self.begins.pop(request.token, None)
        self.plans.append(request.slices)

    def _on_commit(self, request: CommitEpoch) -> None:
        epoch = request.epoch
        self._may(request.token, epoch, "committed")
        self._expect(epoch == self.committed + 1, "epoch {} was committed after {}", epoch, self.committed)
        self._expect(epoch <= len(self.plans), "epoch {} was committed and never planned", epoch)
        slices = self.plans[epoch - 1]
        expected = (
            state_value(self.ends(epoch))
            if self.precise
            else self.states[-1] + sum(slice_value(number, *each) for number, each in enumerate(slices))
        )
        self._expect(
            not self.same or request.value == expected,
            "epoch {} gave {}; without faults it gives {}",
            *(epoch, request.value, expected),
        )
        written = (epoch, request.token) in self.outputs
        self._expect(written, "epoch {} was committed and its output is not there", epoch)
        self.states.append(request.value)
        self.values.append(request.value)
        self.tokens.append(request.token)

    def _on_checkpoint(self, request: MarkCheckpoint) -> None:
        self._expect(request.token == self.primary, "checkpoint by {}, who is not the primary", request.token)
        self._set_checkpoint(request.epoch, request.token, self.states[request.epoch])

    def _on_skip(self, request: Skip) -> None:
        token = request.token
        self._expect(not self.precise, "epochs up to {} were left out by a precise recovery", request.epoch)
        self._expect(token == self.primary, "epochs were left out by {}, who is not the primary", token)
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
        self._expect(saved is not None, "the checkpoint of epoch {} is not there", epoch)
        assert saved is not None
        same = not self.same or saved.value == value
        same = same and saved.ends == self.ends(epoch)
        self._expect(same, "the checkpoint of epoch {} is {}, not {}", epoch, saved, value)
        self.checkpoint, self.checkpoint_token = epoch, token

    def on_taken(self, epoch: int, value: int | None) -> None:
        """The reader took an epoch for new."""
        self._expect(epoch == self.taken + 1, "the reader took epoch {} after {}", epoch, self.taken)
        self._expect(epoch <= self.committed, "the reader took epoch {}, which is not committed", epoch)
        right = self.values[epoch]
        self._expect(value == right, "the reader took {} for epoch {}, not {}", value, epoch, right)
        self.taken = epoch

    def on_swept(self) -> None:
        """Nothing was removed that is still needed."""
        for epoch in range(self.taken + 1, self.committed + 1):
            if self.values[epoch] is not None:
                self._expect((epoch, self.tokens[epoch]) in self.outputs, "the output of epoch {} was removed", epoch)
        if self.checkpoint:
            kept = (self.checkpoint, self.checkpoint_token) in self.checkpoints
            self._expect(kept, "the checkpoint of epoch {} was removed", self.checkpoint)

    def on_released(self, trimmed: list[int]) -> None:
        needed = self.ends(self.checkpoint)
        for number, position in enumerate(trimmed):
            self._expect(
                position <= needed[number],
                "upstream {} forgot up to {}; the checkpoint of epoch {} needs it from {}",
                *(number, position, self.checkpoint, needed[number]),
            )

    def _expect(self, holds: bool, problem: str, *about: object) -> None:
        """The sentence is only made when it is needed: this is asked all the time."""
        if not holds:
            raise ViolationError(problem.format(*about))
