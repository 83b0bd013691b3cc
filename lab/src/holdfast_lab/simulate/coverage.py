"""What seeds reach: roles, instructions and events of the machine, commits of every kind, schemes, policies and faults.

A simulation that never comes to a place says nothing about it. `PlacesReached` counts, while worlds run, how often the
shipped code has come to each place of `PLACES`, which are derived from the product where it lists them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, get_args

import holdfast.engine.planner
import holdfast.engine.repair
from holdfast.connect.sinks.database import DatabaseSink
from holdfast.durability.checkpoints import Checkpoints
from holdfast.engine.background_merges import BackgroundMerges
from holdfast.engine.committer import Committer
from holdfast.engine.events import Event
from holdfast.engine.instructions import CommitEpoch, How, Instruction
from holdfast.engine.machine import Machine
from holdfast.engine.restart import Restart
from holdfast.engine.roles import Role
from holdfast.engine.start import Start
from holdfast.graph.policies.catalog import POLICIES
from holdfast.replica.controller_loop import ControllerLoop
from holdfast.replica.schemes.wheel import SCHEMES
from holdfast.replica.seats import Beat, Enlist, Resign, Seats, Seize, Turn

__all__ = ["PLACES", "PlacesReached"]

_TRANSITIONS = (
    (Role.COLD, Role.HOT), (Role.HOT, Role.COLD), (Role.COLD, Role.LEAD), (Role.HOT, Role.LEAD),
    (Role.HOT, Role.FOLLOW), (Role.FOLLOW, Role.SHARE), (Role.SHARE, Role.FOLLOW), (Role.FOLLOW, Role.LEAD),
    (Role.SHARE, Role.LEAD),
)  # fmt: skip
_FAULTS = (
    "a clock is set backwards", "a clock is set forwards", "a host is cut off", "a host is killed",
    "a host is switched off", "a host sleeps", "a host stalls", "epochs are planned again", "partitions change",
    "power loss", "the disk is full", "the disk is slow", "the network is slow", "the process is killed",
    "the process sleeps", "the reader is killed", "the receiver is killed", "the receiver sleeps", "the scheme changes",
    "the store is away", "the table is away",
)  # fmt: skip
_COMMITS = (
    "commit: the secondary was first", "commit: the primary was first", "commit: the epoch was left out",
    "commit: an answer was lost", "commit: a connection was lost in its middle", "commit: the table was outrun",
)  # fmt: skip
_STATE = (
    "state: made again", "state: begun again empty", "state: gathered from footprints", "state: a gap was left",
    "state: copied to the stable tier", "state: merged beside the epochs", "state: partitions changed",
    "state: a repair was carried out", "state: the controller took a step",
)  # fmt: skip
_REQUESTS = (Beat, Seize, Enlist, Resign, Turn)

PLACES: tuple[str, ...] = (
    *(f"role: {role.name.lower()}" for role in Role if role is not Role.NONE),
    *(f"transition: {a.name.lower()} to {b.name.lower()}" for a, b in _TRANSITIONS),
    *(f"instruction: {kind.__name__}" for kind in get_args(Instruction)),
    *(f"instruction: CommitEpoch {how.name.lower()}" for how in How),
    *(f"event: {kind.__name__}" for kind in get_args(Event)),
    *(f"seats: {kind.__name__}" for kind in _REQUESTS),
    *(f"scheme: {scheme.name}" for scheme in SCHEMES),
    *(f"policy: {policy.name}" for policy in POLICIES),
    *_COMMITS,
    *_STATE,
    *(f"fault: {kind}" for kind in _FAULTS),
)
"""All that seeds are to reach."""


class PlacesReached:
    """How often each place was reached."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._roles: dict[int, tuple[Machine, Role]] = {}

    def note(self, place: str, times: int = 1) -> None:
        self.counts[place] += times

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, the shipped code is watched."""
        with ExitStack() as watched:
            for owner, name, make in self._watches():
                real = getattr(owner, name)
                watched.callback(setattr, owner, name, real)
                setattr(owner, name, make(real))
            yield
        self._roles.clear()

    def _watches(self) -> Iterable[tuple[Any, str, Callable[[Any], Any]]]:
        yield Machine, "next", self._next
        yield Machine, "on", self._on
        yield Seats, "change", self._change
        yield Committer, "_outrun", self._before("commit: the secondary was first")
        yield Committer, "_reconciled", self._reconciled
        yield Committer, "_share", self._shared
        yield DatabaseSink, "_advance", self._advanced
        yield Restart, "_rewind", self._rewound
        yield Start, "_leave_gap", self._before("state: a gap was left")
        yield Checkpoints, "_copy", self._before("state: copied to the stable tier")
        yield Checkpoints, "base_of", self._based
        yield BackgroundMerges, "_finished", self._merged
        yield holdfast.engine.planner, "obey", self._obeyed
        yield holdfast.engine.repair.Mending, "outcome", self._before("state: a repair was carried out")
        yield ControllerLoop, "_decide", self._decided

    def _before(self, place: str) -> Callable[[Any], Any]:
        def make(real: Any) -> Any:
            def watched(*given: Any, **named: Any) -> Any:
                self.note(place)
                return real(*given, **named)

            return watched

        return make

    def _next(self, real: Any) -> Any:
        def watched(machine: Machine) -> Any:
            instruction = real(machine)
            role = machine.seat.role
            before = self._roles.get(id(machine), (machine, role))[1]
            self._roles[id(machine)] = machine, role
            self.note(f"role: {role.name.lower()}")
            if role is not before:
                self.note(f"transition: {before.name.lower()} to {role.name.lower()}")
            self.note(f"instruction: {type(instruction).__name__}")
            if isinstance(instruction, CommitEpoch):
                self.note(f"instruction: CommitEpoch {instruction.how.name.lower()}")
            return instruction

        return watched

    def _on(self, real: Any) -> Any:
        def watched(machine: Machine, event: Any) -> None:
            real(machine, event)
            self.note(f"event: {type(event).__name__}")

        return watched

    def _change(self, real: Any) -> Any:
        def watched(seats: Seats, request: Any) -> bool:
            done: bool = real(seats, request)
            if done:
                self.note(f"seats: {type(request).__name__}")
            self.note(f"scheme: {seats.scheme.name}")
            return done

        return watched

    def _reconciled(self, real: Any) -> Any:
        def watched(committer: Committer, epoch: int, winner: Any, *given: Any, **named: Any) -> Any:
            if winner.gap is not None:
                self.note("commit: the epoch was left out")
            return real(committer, epoch, winner, *given, **named)

        return watched

    def _shared(self, real: Any) -> Any:
        def watched(committer: Committer, epoch: int, execution: Any) -> bool:
            done: bool = real(committer, epoch, execution)
            if not done:
                self.note("commit: the primary was first")
            return done

        return watched

    def _advanced(self, real: Any) -> Any:
        def watched(*given: Any) -> None:
            try:
                real(*given)
            except Exception:
                self.note("commit: the table was outrun")
                raise

        return watched

    def _rewound(self, real: Any) -> Any:
        def watched(restart: Restart, base: Any, tiers: Any) -> None:
            real(restart, base, tiers)
            self.note(
                "state: gathered from footprints" if base.eventual
                else "state: begun again empty" if base.empty else "state: made again"
            )  # fmt: skip

        return watched

    def _based(self, real: Any) -> Any:
        def watched(checkpoints: Checkpoints, *given: Any) -> Any:
            self.note(f"policy: {checkpoints.policy.name}")
            return real(checkpoints, *given)

        return watched

    def _merged(self, real: Any) -> Any:
        def watched(merges: BackgroundMerges, record: Any) -> Any:
            before = merges.merged
            after = real(merges, record)
            self.note("state: merged beside the epochs", merges.merged - before)
            return after

        return watched

    def _obeyed(self, real: Any) -> Any:
        def watched(*given: Any) -> Any:
            obeyed = real(*given)
            self.note("state: partitions changed", sum(answer.problem is None for answer in obeyed.answers.values()))
            return obeyed

        return watched

    def _decided(self, real: Any) -> Any:
        def watched(loop: ControllerLoop, state: Any, event: Any, place: Any) -> Any:
            after = real(loop, state, event, place)
            self.note("state: the controller took a step", after.stepping is not None and state.stepping is None)
            return after

        return watched
