"""The planner: decides what each epoch reads, writes its plan to the meta store, and launches it.

The plan of an epoch is in the store before anything runs, and the first one wins.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import sqlalchemy as sa

from holdfast.engine.authority import Authority
from holdfast.engine.epoch_input import Taken, batch_taken, is_awaited, new_plan, nothing_taken, obey, take_input
from holdfast.engine.events import EpochPlanned, Overlap, Stopped
from holdfast.engine.instructions import PlanEpoch
from holdfast.engine.machine import Machine
from holdfast.engine.notices import Notices
from holdfast.engine.observer import Observer
from holdfast.engine.options import RunOptions
from holdfast.engine.pacing import Pace
from holdfast.engine.progress import FragmentProgress
from holdfast.engine.stream_links import StreamLinks
from holdfast.epoch.deadline import Deadlines
from holdfast.epoch.execution import Executor
from holdfast.epoch.plan import EpochPlan, TaskSettings
from holdfast.epoch.record import EpochRecord
from holdfast.errors import CommandGoneError, EpochFailedError, LeaseLostError
from holdfast.meta import Commands, Commit, MetaStore
from holdfast.plan.program import Program
from holdfast.pstream.link import StreamSource
from holdfast.task.inbox import Inbox

__all__ = ["Planner", "left_behind"]

_WORTH_OVERLAPPING = 0.1


class Planner:
    """Plans and launches the epochs of one run. `upstream_ended` tells whether those who write what this run reads have
    ended: only then is a source without new rows idle."""

    def __init__(
        self,
        program: Program,
        meta: MetaStore,
        options: RunOptions,
        pace: Pace,
        authority: Authority,
        machine: Machine,
        executor: Executor,
        streams: StreamLinks,
        notices: Notices,
        observer: Observer,
        deadlines: Deadlines,
        clock: Callable[[], float],
        upstream_ended: Callable[[], bool],
        progress: FragmentProgress,
    ) -> None:
        self.progress = progress
        self._program = program
        self._meta = meta
        self._options = options
        self._authority = authority
        self._machine = machine
        self._executor = executor
        self._streams = streams
        self.notices = notices
        self._observer = observer
        self._deadlines = deadlines
        self._clock = clock
        self._upstream_ended = upstream_ended
        self._commands = Commands(meta)
        self._pace = pace
        self._tasks = options.tasks
        self._rows: dict[int, int] = {}
        self._inbox: Inbox | None = None
        self.batch: int | None = None
        """The micro-batch of Structured Streaming that is to be planned, if it cuts the epochs."""

    @property
    def overlaps(self) -> bool:
        """Whether epochs may overlap at all."""
        return self._options.overlap

    @property
    def poll(self) -> float:
        return self._options.poll

    @property
    def in_flight_rows(self) -> int:
        """About how many rows the epochs have read that were planned here and are not committed."""
        self._rows = {number: rows for number, rows in self._rows.items() if number in self.progress.plans}
        return sum(self._rows.values())

    def use_inbox(self, inbox: Inbox | None) -> None:
        """Read what a standby has received from there."""
        self._inbox = inbox

    def plan(self, instruction: PlanEpoch) -> EpochPlanned | Stopped | None:
        """Fix the input of the next epoch. None if there is none now."""
        epoch, name = instruction.epoch, self._program.name
        if instruction.look:
            found = self._meta.look_up(name, epoch)
            if isinstance(found, Commit):
                self.progress.lost[epoch] = EpochRecord.decode(found.record)
            if found is not None:
                return self._planned(epoch, EpochPlan.decode(found.plan), committed=isinstance(found, Commit))
            if self._meta.last_epoch(name) >= epoch:
                raise left_behind(name, epoch)
        if not self._machine.leading:
            self._authority.ready(self._machine.seat.role)  # nothing is committed that was not run here
        if not instruction.make:
            return None
        try:
            return self._take(epoch)
        except LeaseLostError:
            if self._machine.leading:
                raise
            self._authority.renew()  # what is left of the seat is seen in the next step
            return None

    def _take(self, epoch: int) -> EpochPlanned | Stopped | None:
        if self._program.spark_input is not None:
            return self._take_batch(epoch)
        # Before looking: what was written or complete until then is seen below.
        idle = self._options.until_idle and self._upstream_ended()
        progress, tasks = self.progress, self._tasks
        wanted = self._pace.rows(epoch, self._program)
        room = self._streams.room(wanted, self.in_flight_rows)
        self.notices.look(self._authority.lease, progress.positions)
        if wanted and not room:
            return None
        due, taken = self._pace.is_due(self._clock()), None
        if not wanted and not all(progress.done.values()):
            taken = nothing_taken(self._program, progress.positions, progress.done, tasks, self._deadlines)
        elif due:
            idle = idle and not is_awaited(self._program, progress.positions, epoch, self._deadlines)
            taken = take_input(self._program, progress.positions, progress.done, room, tasks, epoch, self._deadlines)
        if taken is None and self._commands.waiting(self._program.name):
            # What was asked for is done now.
            taken = nothing_taken(self._program, progress.positions, progress.done, tasks, self._deadlines)
        if taken is None:
            return self._end(idle=idle) if due else None
        if due:
            self._pace.began(self._clock())
        self._rows[epoch] = taken.rows
        return self._planned(epoch, self._fixed(epoch, taken, tasks))

    def _take_batch(self, epoch: int) -> EpochPlanned | None:
        [node] = self._program.sources
        self.notices.look(self._authority.lease, self.progress.positions)
        if self.batch is None or not self._streams.room(self._pace.rows(epoch, self._program), 0):
            return None
        return self._planned(epoch, self._fixed(epoch, batch_taken(node.name, self.batch), 1))

    def _end(self, *, idle: bool) -> Stopped | None:
        """Nothing to read: whether it is the end. Of a secondary the primary says so."""
        if not self._machine.leading:
            return None
        return Stopped() if all(self.progress.done.values()) or idle else None

    def _fixed(self, epoch: int, taken: Taken, tasks: int) -> EpochPlan:
        """Write the plan of an epoch, with what was asked for by commands. One may be taken back meanwhile."""
        while True:
            with contextlib.suppress(CommandGoneError):
                return self._write(epoch, taken, tasks)

    def _write(self, epoch: int, taken: Taken, tasks: int) -> EpochPlan:
        waiting = self._commands.waiting(self._program.name)
        routing = self._pace.routing(epoch, self._program, self.progress.routing)
        obeyed = obey(self._program, waiting, routing, self._tasks, epoch)
        now = self._clock()
        plan = new_plan(self._program, taken, tasks, obeyed.routing, now)

        def answer(connection: sa.Connection) -> None:
            for number, given in obeyed.answers.items():
                self._commands.answer_in(connection, number, given.encode(), now)

        also = answer if obeyed.answers else None
        winner = self._meta.plan(self._authority.lease, epoch, plan.encoded_as, now, also=also)
        self._tasks = obeyed.tasks
        return EpochPlan.decode(winner)

    def _planned(self, epoch: int, plan: EpochPlan, *, committed: bool = False) -> EpochPlanned:
        self.progress.planned(epoch, plan)
        self._machine.on(Overlap(self._machine.overlap and self._has_room()))
        return EpochPlanned(epoch, committed)

    def launch(self, epoch: int, *, silent: bool) -> None:
        plan, replica = self.progress.plans[epoch], self._machine.seat.replica
        if replica and not silent:
            rows = {True: 0, False: 0}
            for node in self._program.sources:
                rows[isinstance(node.source, StreamSource)] += plan.rows_of(node.name)
            self._observer.input_taken(self._program.name, rows[False], rows[True])
        inbox = None if self._inbox is None or not replica else str(self._inbox.root)
        self._executor.launch(epoch, plan, TaskSettings(silent=silent, digest=replica, inbox=inbox))

    def measured(self, rows: int, busy: float, reading: float | None = None) -> None:
        """An epoch of so many rows was busy for so long; it is known how long it was reading where that decides whether
        the next ones overlap. Two short epochs in flight only wait for each other: it pays where reading takes long."""
        self._pace.measured(rows, busy)
        if reading is not None:
            self._machine.on(Overlap(reading > _WORTH_OVERLAPPING and self._has_room()))

    def _has_room(self) -> bool:
        if not self._options.overlap or self._program.stages == 1:
            return False
        width = max(self._tasks, *(routing.partitions for routing in self.progress.routing.values()))
        return self._executor.has_room(width)


def left_behind(fragment: str, epoch: int) -> EpochFailedError:
    """What a secondary raises that needs an epoch which is not kept any more."""
    return EpochFailedError(
        f"this replica of '{fragment}' is too far behind: epoch {epoch} is not kept any more",
        cure="nothing to do: it begins again from the last checkpoint",
        epoch=epoch,
    )
