"""Checkpoints of a running fragment: which epoch it would restart from, and the copies that move this point forward.

Each record says where to restart if the volatile tier is lost (`Base`): nowhere, if all its p-units are on the stable
tier; otherwise, depending on the policy, after the last checkpoint, after an epoch from which empty state leads to the
same state, or after the epoch of the oldest footprint. Plans, upstream buffers and p-units are kept from there on. A
separate thread makes the copies, and epochs never wait for it.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from msgspec import structs

from holdfast.connect.base import Position
from holdfast.durability.empty_replay import can_start_empty, forgets
from holdfast.durability.policy_choice import Amounts, PolicyChooser, may_choose
from holdfast.epoch.record import Base, EpochRecord
from holdfast.errors import HoldfastError
from holdfast.graph.policies import DELTA, CheckpointPolicy, ReplayStarts, as_policy, strictest
from holdfast.plan.fragment_facts import ProgramFacts
from holdfast.plan.program import Program
from holdfast.plan.watermarks import operator_watermark
from holdfast.state.primitives import (
    Checkpoint,
    backup_state,
    checkpoint_state,
    persist_state,
    spill_state,
    unspill_state,
)
from holdfast.store import Right, Tier, Tiers, remove_directory, remove_tree
from holdfast.threads import SYSTEM, ThreadPool, Threads

__all__ = ["CheckpointReport", "CheckpointSettings", "Checkpoints"]

_log = logging.getLogger(__name__)
_SPILL_MARGIN = 0.8


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """`policy` is the user's, or None to choose by what is measured, with `interval` as the c of interval(c).

    `memory` is the budget of the volatile tier in bytes. `failures_per_hour` weighs what a failure costs against what
    it costs to be prepared.
    """

    policy: CheckpointPolicy | None = None
    interval: float = 5.0
    memory: int | None = None
    failures_per_hour: float = 1.0
    recovery: float | None = None
    """The seconds within which lost state must be back."""
    shared: bool = True
    """Whether all tasks see the same volatile tier."""


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """The copy of a checkpoint to the stable tier and to the backups."""

    fragment: str
    epoch: int
    bytes: int
    backup_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _StartPoint:
    """An epoch from which a replay could begin."""

    epoch: int
    greatest: Mapping[str, int | None]
    positions: Mapping[str, Position]
    at: float
    files: frozenset[str] = frozenset()
    empty: bool = False
    eventual: bool = False


@dataclass(slots=True)
class _Backups:
    """What the backups have: files, by the number of the backup, and all of an epoch."""

    done: set[tuple[int, str]] = field(default_factory=set)
    epoch: int = 0


@dataclass(slots=True)
class _CopyJob:
    """The copy that is made while epochs continue, one at a time."""

    pool: ThreadPool
    epoch: int | None = None
    """Of what is being copied."""
    files: frozenset[str] = frozenset()
    """What may have its name on the stable tier already, and not be synced."""
    _point: _StartPoint | None = None
    _work: Future[CheckpointReport | None] | None = None

    @property
    def running(self) -> bool:
        return self._work is not None

    def begin(
        self,
        epoch: int,
        work: Callable[[], CheckpointReport | None],
        point: _StartPoint | None = None,
        files: frozenset[str] = frozenset(),
    ) -> None:
        """With a `point` from which a replay can begin when the copy is made."""
        self.epoch, self.files, self._point = epoch, files, point
        self._work = self.pool.submit(work)

    def finished(self, *, wait: bool) -> tuple[_StartPoint | None, CheckpointReport | None] | None:
        """The point and the report of a copy that is done now; raises what went wrong."""
        work = self._work
        if work is None or not (wait or work.done()):
            return None
        self._work, self.epoch, self.files = None, None, frozenset()
        return self._point, work.result()


class Checkpoints:
    """Follows the commits of one fragment."""

    def __init__(
        self,
        program: Program,
        tiers: Tiers,
        settings: CheckpointSettings,
        right: Right,
        clock: Callable[[], float],
        on_checkpoint: Callable[[CheckpointReport], None],
        threads: Threads = SYSTEM,
    ) -> None:
        self._program = program
        self._tiers = tiers
        self._right = right
        self._settings = settings
        self._clock = clock
        self._tell = on_checkpoint
        self._forgets = forgets(program)
        self._asked = asked_policy(program, settings.policy)
        self._chooser: PolicyChooser | None = None
        if self._asked is None and settings.shared and may_choose(program):
            self._chooser = PolicyChooser(
                program, interval=settings.interval, failures_per_hour=settings.failures_per_hour,
                recovery=settings.recovery,
            )  # fmt: skip
        self.policy = self._asked or DELTA
        self.policy.check(ProgramFacts(program, settings.shared))
        self._base = _StartPoint(0, {}, {}, 0.0)
        self._past: deque[_StartPoint] = deque()
        self._known: dict[int, _StartPoint] = {}
        """All epochs from the base on."""
        self._stable: set[str] = set()
        self._copy_began = -math.inf
        self._job = _CopyJob(threads.pool(1, "checkpoint"))
        self._backups = _Backups()
        self._copied: _StartPoint | None = None

    @property
    def tier(self) -> Tier:
        """Where the tasks of the next epoch write."""
        return self.policy.tier

    @property
    def reason(self) -> str | None:
        """Why this policy, where it was not the user who chose it."""
        if self._asked is not None:
            return None
        if self._chooser is None:
            return "the sources do not promise to keep what was read"
        choice = self._chooser.choice
        return choice.why if choice is not None else "nothing measured yet"

    # where to begin again

    def begin(self, record: EpochRecord, base: Base, records: Mapping[int, EpochRecord], chosen: str | None) -> None:
        """Go on with a record whose state is all there; were it lost, it would begin again from `base`.

        `records` are those from the base on. `chosen` is the policy that was in force.
        """
        now = self._clock()
        start, *later = (_start_point(number, known, now) for number, known in sorted(records.items()))
        self._base = replace(start, empty=base.empty, eventual=base.eventual)
        self._past = deque([self._base, *later])
        self._known = {point.epoch: point for point in self._past}
        self._stable = {name for name in record.files() if self._tiers.stable_only.found(name) is not None}
        self._copy_began = now
        if self._chooser is not None and chosen is not None:
            self.policy = as_policy(chosen) or DELTA

    def base_of(self, epoch: int, record: EpochRecord) -> Base | None:
        """Where to begin again if the state of this record is lost; None if it cannot be."""
        self._finish(wait=False)  # a copy made meanwhile counts from this record on, not from the next
        files = record.files()
        self._stable &= files
        stable = self._tiers.stable_only
        # What is being copied may have its name already, and not be synced.
        known = files - self._stable - self._job.files
        self._stable |= {name for name in known if stable.found(name) is not None}
        if self._copied is not None and self._copied.epoch > self._base.epoch:
            self._base = self._copied
        here = _start_point(epoch, record, self._clock())
        self._past.append(here)
        self._known[epoch] = here
        if files <= self._stable:
            self._base = here
        marks = {
            node.name: operator_watermark(self._program, node.name, record.greatest, record.done)
            for node in self._program.stateful
        }
        while len(self._past) > 1 and (
            not self._forgets or can_start_empty(self._program, self._past[1].greatest, marks)
        ):
            self._past.popleft()
        if self._base is not here:
            self._move_base(record)
        self._known = {number: point for number, point in self._known.items() if number >= self._base.epoch}
        return None if self._base is here else Base(self._base.epoch, self._base.empty, self._base.eventual)

    def _move_base(self, record: EpochRecord) -> None:
        """As the policy says, to where less would be replayed."""
        starts = self._replay_starts(record)
        match self.policy.replay_start(starts):
            case "empty" if starts.empty is not None:
                self._base = replace(self._known[starts.empty], empty=True)
            case "footprints" if starts.footprints is not None:
                self._base = replace(self._known[starts.footprints], eventual=True)

    def _replay_starts(self, record: EpochRecord) -> ReplayStarts:
        """None of them lies before the base: what was needed for that is let go, for good."""
        base = self._base.epoch
        empty = self._past[0].epoch if self._forgets else base
        oldest = -1
        if record.footings and record.footings.keys() >= {node.name for node in self._program.stateful}:
            oldest = min(footing.extent.oldest for footing in record.footings.values())
        return ReplayStarts(base, empty if empty > base else None, oldest if oldest >= base else None)

    @property
    def positions(self) -> Mapping[str, Position]:
        """What upstream holds before these positions is needed no more."""
        return self._base.positions

    @property
    def keep_from(self) -> int:
        """The epochs behind this one may have to be replayed."""
        return self._base.epoch

    def pinned(self) -> frozenset[int]:
        """Epochs whose p-units must stay: the base, unless footprints stand for it, and what is being copied."""
        copying = {self._job.epoch} if self._job.epoch is not None else set()
        return frozenset(copying if self._base.eventual else {self._base.epoch, *copying})

    # while epochs continue

    def committed(self, epoch: int, record: EpochRecord, amounts: Amounts) -> None:
        """After a commit: see what is done, and begin what it is time for."""
        self._finish(wait=False)
        now = self._clock()
        if self._chooser is not None:
            history = now - self._past[0].at if self._forgets else None
            policy = self._chooser.epoch(record, amounts, self.policy, history, now)
            if policy != self.policy:
                self.policy, self._copy_began = policy, -math.inf
        if self._job.running:
            return
        checkpoint = checkpoint_state(epoch, record.state, record.positions)
        volatile = self.policy.tier == "volatile" or not record.files() <= self._stable
        if volatile and self._base.epoch < epoch and self._copy_due(epoch, now):
            self._begin_copy(epoch, record)
        elif self._tiers.backups and self.policy.tier == "stable":
            self._job.begin(epoch, lambda: self._back_up(checkpoint))
        elif self._settings.memory is not None and volatile:
            self._job.begin(epoch, lambda: self._fit(checkpoint))

    def _copy_due(self, epoch: int, now: float) -> bool:
        last = max(self._base.epoch, 0 if self._copied is None else self._copied.epoch)
        return self.policy.copy_due(now - self._copy_began, epoch - last)

    def _begin_copy(self, epoch: int, record: EpochRecord) -> None:
        self._copy_began = self._clock()
        checkpoint, known = _of(epoch, record), frozenset(self._stable)
        point = _start_point(epoch, record, self._clock())
        self._job.begin(epoch, lambda: self._copy(checkpoint, known), point, record.files() - known)

    def _finish(self, *, wait: bool) -> None:
        """Take in the outcome of a copy that was made meanwhile. What went wrong there ends the run here."""
        finished = self._job.finished(wait=wait)
        if finished is None:
            return
        copied, report = finished
        if copied is not None:
            self._copied = copied
        if report is not None:
            self._tell(report)

    def _copy(self, checkpoint: Checkpoint, known: frozenset[str]) -> CheckpointReport:
        started = self._clock()
        written = persist_state(checkpoint, self._tiers, known)
        backed_up = self._copy_to_backups(checkpoint)
        self._fit(checkpoint)
        return CheckpointReport(self._program.name, checkpoint.epoch, written, backed_up, self._clock() - started)

    def _back_up(self, checkpoint: Checkpoint) -> CheckpointReport | None:
        started = self._clock()
        written = self._copy_to_backups(checkpoint)
        if not written:
            return None
        return CheckpointReport(self._program.name, checkpoint.epoch, 0, written, self._clock() - started)

    def _copy_to_backups(self, checkpoint: Checkpoint) -> int:
        """A backup that fails is logged and made again at the next occasion: the state itself is safe."""
        if not self._tiers.backups:
            return 0
        try:
            written = backup_state(checkpoint, self._tiers, self._right, self._backups.done, keep=self._base.files)
        except (HoldfastError, OSError) as error:
            _log.warning("no backup of '%s' after epoch %d: %s", self._program.name, checkpoint.epoch, error)
            return 0
        self._backups.epoch = checkpoint.epoch
        return written

    def _fit(self, checkpoint: Checkpoint) -> None:
        """Keep the volatile tier within its budget."""
        if self._settings.memory is not None:
            units = list(checkpoint.units().values())
            if not spill_state(units, self._tiers, self._settings.memory, self._right):
                unspill_state(units, self._tiers, int(_SPILL_MARGIN * self._settings.memory), self._right)

    def idle(self, epoch: int, record: EpochRecord) -> EpochRecord | None:
        """While nothing comes in: make the last epoch durable when that is due, so that upstream can let go of it.
        Returns the record to be written, if it has changed."""
        self._finish(wait=False)
        if record.base is None:
            if not self._job.running and self._tiers.backups and self._backups.epoch < epoch:
                checkpoint = _of(epoch, record)
                self._job.begin(epoch, lambda: self._back_up(checkpoint))
            return None
        if self._copied is not None and self._copied.epoch == epoch:
            self._base = self._copied
            return structs.replace(record, base=None)
        if not self._job.running and self._copy_due(epoch, self._clock()):
            self._begin_copy(epoch, record)
        return None

    def end(self, epoch: int, record: EpochRecord) -> EpochRecord | None:
        """A clean end leaves all state on the stable tier. Returns the record to be written, if it has changed."""
        try:
            self._finish(wait=True)
            if record.base is None:
                if self._backups.epoch < epoch:
                    self._copy_to_backups(_of(epoch, record))
                return None
            self._begin_copy(epoch, record)
            self._finish(wait=True)
            self._base = _start_point(epoch, record, self._clock())
            return structs.replace(record, base=None)
        finally:
            self.close()

    def forget_volatile(self) -> None:
        """Remove the volatile tier: all that is in it is on the stable tier, too."""
        for place in (self._tiers.volatile, self._tiers.spilled):
            remove_tree(place, self._right)
        remove_directory(self._tiers.volatile.parent, self._right)  # other fragments may have theirs next to it

    def close(self) -> None:
        self._job.pool.shutdown(wait=True, cancel_futures=True)


def asked_policy(program: Program, default: CheckpointPolicy | None) -> CheckpointPolicy | None:
    """What the operators of a fragment ask for: they are checkpointed together, so the strictest holds for all."""
    return strictest(policy for node in program.stateful if (policy := node.checkpoint or default) is not None)


def _of(epoch: int, record: EpochRecord) -> Checkpoint:
    return checkpoint_state(epoch, record.state, record.positions)


def _start_point(epoch: int, record: EpochRecord, at: float) -> _StartPoint:
    return _StartPoint(epoch, record.seen(), record.positions, at, record.files())
