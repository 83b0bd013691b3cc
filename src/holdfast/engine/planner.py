"""The planner: decides what each epoch reads, writes its plan to the meta store, and launches it.

The plan of an epoch is in the store before anything runs. If there are two, the first one wins.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace

from holdfast.connect.base import DriverSink
from holdfast.engine.clock_timers import ClockTimers
from holdfast.engine.drill_strike import DrillStrike
from holdfast.engine.epoch_input import Taken, batch_taken, is_awaited, new_plan, nothing_taken, obey, take_input
from holdfast.engine.events import EpochPlanned, Overlap, Stopped
from holdfast.engine.instructions import PlanEpoch
from holdfast.engine.notices import Notices
from holdfast.engine.pacer import Pace
from holdfast.engine.run_context import RunContext
from holdfast.engine.silent_sources import SilentSources, followed_in
from holdfast.engine.table_versions import TableVersions
from holdfast.epoch.execution import Batches
from holdfast.epoch.facts import EpochFacts
from holdfast.epoch.lookup_version import LookupVersion
from holdfast.epoch.plan import EpochPlan, TaskSettings
from holdfast.epoch.record_change import record_of
from holdfast.epoch.transaction import committing
from holdfast.errors import CommandGoneError, EpochFailedError, LeaseLostError
from holdfast.meta import Commands, Commit
from holdfast.plan.watermarks import following
from holdfast.pstream.link import StreamSource
from holdfast.task.inbox import Inbox

__all__ = ["Planner", "left_behind"]

_WORTH_OVERLAPPING = 0.1
_COMMANDS_SECONDS = 0.5
"""Between two looks for commands while nothing comes in: people and the autoscaler do not notice it, and each costs as
much as all else that is looked at."""
_FIRST_PAUSE = 64
"""The first look after an epoch comes after a small part of `poll`."""


class Planner:
    """Plans and launches the epochs of one run. `upstream_ended` tells whether the writers of what this run reads have
    ended: only then is a source without new rows idle."""

    def __init__(
        self,
        run: RunContext,
        pace: Pace,
        notices: Notices,
        tables: TableVersions,
        upstream_ended: Callable[[], bool],
        batches: Batches | None = None,
    ) -> None:
        self._run = run
        self.tables = tables
        self._pace = pace
        self.notices = notices
        self._upstream_ended = upstream_ended
        self._batches = batches
        """What cuts the epochs, if that is not this planner."""
        self._commands = Commands(run.meta)
        self._tasks = run.options.tasks
        self._pause = run.options.poll_seconds
        self._commands_due = 0.0
        self._rows: dict[int, int] = {}
        self._lags: dict[int, Mapping[str, int]] = {}
        """How many rows waited behind the epochs that were planned here, and are not committed."""
        self._inbox: Inbox | None = None
        self._silent = SilentSources(run.program, run.ticks())
        self._timers = ClockTimers(run.program)
        self._drills = DrillStrike(run)

    @property
    def overlaps(self) -> bool:
        """Whether epochs may overlap at all."""
        return self._run.options.overlap

    def pause(self) -> float:
        """How long to wait for new input: longer and longer, up to `poll`, from the last epoch on."""
        self._pause = min(self._run.options.poll_seconds, 2 * self._pause)
        return self._pause

    @property
    def in_flight_rows(self) -> int:
        """About how many rows the epochs have read that were planned here and are not committed."""
        self._rows = {number: rows for number, rows in self._rows.items() if number in self._run.progress.plans}
        return sum(self._rows.values())

    def lags_behind(self, epoch: int) -> Mapping[str, int]:
        """How many rows of each source waited behind an epoch when it was planned, if it was here. Asked once, at its
        commit."""
        return self._lags.pop(epoch, {})

    def use_inbox(self, inbox: Inbox | None) -> None:
        """Read what a standby has received from there."""
        self._inbox = inbox

    def plan(self, instruction: PlanEpoch) -> EpochPlanned | Stopped | None:
        """Fix the input of the next epoch. None if there is none now."""
        epoch, name = instruction.epoch, self._run.program.name
        if instruction.look:
            found = self._run.meta.look_up(name, epoch)
            if found is None and self._run.meta.last_epoch(name) >= epoch:
                found = self._run.meta.look_up(name, epoch)  # it may have been planned and committed in between
                if found is None:
                    raise left_behind(name, epoch)
            # A shadow compares what it runs, however late: to it no epoch is over.
            over = isinstance(found, Commit) and self._run.shadow is None
            if isinstance(found, Commit) and over:
                self._run.progress.outrun(epoch, record_of(found))
            if found is not None:
                return self._planned(epoch, EpochPlan.decode(found.plan), committed=over)
        if not self._run.machine.leading:
            self._run.authority.ready(self._run.machine.seat.role)  # nothing is committed that was not run here
        if not instruction.make:
            return None
        try:
            return self._take(epoch)
        except LeaseLostError:
            if self._run.machine.leading:
                raise
            self._run.authority.renew()  # what is left of the seat is seen in the next step
            return None

    def _take(self, epoch: int) -> EpochPlanned | Stopped | None:
        if self._batches is not None:
            return self._take_batch(epoch, self._batches)
        # Before looking: what was written or complete until then is seen below.
        idle = self._run.options.until_idle and self._upstream_ended()
        program, progress, deadlines = self._run.program, self._run.progress, self._run.deadlines
        tasks = self._pace.tasks(self._tasks)
        wanted = self._pace.rows(epoch, program)
        room = self._run.streams.room(wanted, self.in_flight_rows)
        self.notices.look(self._run.authority.lease, progress.positions)
        if wanted and not room:
            return None
        due, taken = self._pace.is_due(self._run.ticks()), None
        if not wanted and not all(progress.done.values()):
            taken = nothing_taken(program, progress.positions, progress.done, tasks, deadlines)
        elif due:
            idle = idle and not is_awaited(program.sources, progress.positions, epoch, deadlines)
            taken = take_input(program, progress.positions, progress.done, room, tasks, epoch, deadlines)
            taken = self._with_idle(epoch, taken, tasks)
        asked = taken is None and self._is_asked(now_or_never=idle or all(progress.done.values()))
        if taken is None and (asked or (due and self._timers.due(self._run))):
            # What was asked for is done now, and so is what timers are set for.
            taken = nothing_taken(program, progress.positions, progress.done, tasks, deadlines)
        if taken is None:
            return self._end(idle=idle) if due else None
        if due:
            self._pace.began(self._run.ticks())
        self._rows[epoch], self._lags[epoch] = taken.rows, taken.lags
        return self._planned(epoch, self._fixed(epoch, taken, tasks))

    def _with_idle(self, epoch: int, taken: Taken | None, tasks: int) -> Taken | None:
        """What was taken after a look at all sources, with those that have been silent for long. Where nothing was
        taken, but such a source holds windows up that need not wait for it, an epoch without rows."""
        program, progress, deadlines = self._run.program, self._run.progress, self._run.deadlines
        silent = self._silent.after(self._run.ticks(), taken)
        quiet = [node for node in silent if not is_awaited([node], progress.positions, epoch, deadlines)]
        if not quiet:
            return taken
        ended = progress.done if taken is None else taken.done
        known = dict(progress.record.greatest)
        idle = followed_in(program, quiet, ended, known)
        if taken is not None:
            return replace(taken, idle=idle)
        if progress.plans or following(known, idle) == known:
            return None
        return replace(nothing_taken(program, progress.positions, progress.done, tasks, deadlines), idle=idle)

    def _is_asked(self, *, now_or_never: bool) -> bool:
        """Whether commands wait. Each epoch looks for them by itself; this is for while there is none."""
        now = self._run.ticks()
        if now < self._commands_due and not now_or_never:
            return False
        self._commands_due = now + _COMMANDS_SECONDS
        return self._drills.concern(self._commands.waiting(self._run.program.name))

    def _take_batch(self, epoch: int, batches: Batches) -> EpochPlanned | Stopped | None:
        [node] = self._run.program.sources
        self.notices.look(self._run.authority.lease, self._run.progress.positions)
        if not self._run.streams.room(self._pace.rows(epoch, self._run.program), 0):
            return None
        batch = batches.next(self._run.machine.committed)
        if batch is None:
            return Stopped() if batches.ended else None
        return self._planned(epoch, self._fixed(epoch, batch_taken(node.name, batch), 1))

    def _end(self, *, idle: bool) -> Stopped | None:
        """Nothing to read: whether it is the end. Of a secondary the primary says so."""
        if not self._run.machine.leading:
            return None
        return Stopped() if all(self._run.progress.done.values()) or idle else None

    def _fixed(self, epoch: int, taken: Taken, tasks: int) -> EpochPlan:
        """Write the plan of an epoch, with what was asked for by commands. One may be taken back meanwhile."""
        tables = self.tables.current(epoch)  # not within the transaction: tables may have to be read
        while True:
            with contextlib.suppress(CommandGoneError):
                return self._write(epoch, taken, tasks, tables)

    def _write(self, epoch: int, taken: Taken, tasks: int, tables: Mapping[str, LookupVersion]) -> EpochPlan:
        routing = self._pace.routing(epoch, self._run.program, self._run.progress.routing)
        now = max(self._run.clock(), self._run.progress.clock)  # one that is set back must not undo what has passed
        with committing(self._run.meta, self._run.authority.lease, epoch, synced=self._is_seen()) as transaction:
            obeyed = obey(self._run.program, self._drills.without(transaction.waiting()), routing, self._tasks, epoch)
            plan = new_plan(self._run.program, taken, tasks, obeyed.routing, now, tables)
            winner, first = transaction.plan(plan, now)
            for number, answer in obeyed.answers.items() if first else ():
                transaction.answer(number, answer, now)
        self._tasks = obeyed.tasks
        return winner

    def _is_seen(self) -> bool:
        """Whether others may go by a plan before its epoch is committed: replicas, sinks that are called before the
        commit, and Spark's own log of batches. Else a plan that is lost with the power of the machine, and all that has
        run by it, is made anew: its commit syncs it."""
        replica, sinks = self._run.machine.seat.replica, self._run.program.sinks
        return replica or self._batches is not None or any(isinstance(node.sink, DriverSink) for node in sinks)

    def _planned(self, epoch: int, plan: EpochPlan, *, committed: bool = False) -> EpochPlanned:
        self._run.progress.planned(epoch, plan)
        self.tables.planned(plan)
        self._silent.planned(self._run.ticks(), plan)
        self._pause = self._run.options.poll_seconds / _FIRST_PAUSE
        self._run.machine.on(Overlap(self._run.machine.overlap and self._has_room()))
        return EpochPlanned(epoch, committed)

    def committed(self, epoch: int, facts: EpochFacts) -> None:
        """This run, which leads, has committed an epoch."""
        self.notices.committed(self._run.authority.lease, epoch, facts)
        self.tables.sweep()

    def launch(self, epoch: int, *, silent: bool) -> None:
        replica = self._run.machine.seat.replica
        plan = self.tables.completed(self._run.progress.plans[epoch], epoch)
        if replica and not silent:
            rows = {True: 0, False: 0}
            for node in self._run.program.sources:
                rows[isinstance(node.source, StreamSource)] += plan.rows_of(node.name)
            self._run.observer.input_taken(self._run.program.name, rows[False], rows[True])
        inbox = None if self._inbox is None or not replica else str(self._inbox.root)
        self._run.executor.launch(epoch, plan, TaskSettings(silent=silent, digest=replica, inbox=inbox))
        self._drills.launched(epoch)

    def measured(self, rows: int, busy: float, reading: float | None = None) -> None:
        """An epoch of so many rows was busy for so long; it is known how long it was reading where that decides whether
        the next ones overlap. Two short epochs in flight only wait for each other: it pays where reading takes long."""
        self._pace.measured(rows, busy, reading)
        if reading is not None:
            self._run.machine.on(Overlap(reading > _WORTH_OVERLAPPING and self._has_room()))

    def _has_room(self) -> bool:
        if not self._run.options.overlap or self._run.program.stages == 1:
            return False
        width = max(self._tasks, *(routing.partitions for routing in self._run.progress.routing.values()))
        return self._run.executor.has_room(width)


def left_behind(fragment: str, epoch: int) -> EpochFailedError:
    """What a secondary raises that needs an epoch which is no longer retained."""
    return EpochFailedError(
        f"this replica of '{fragment}' is too far behind: epoch {epoch} is no longer retained",
        cure="nothing to do: it restarts from the last checkpoint",
        epoch=epoch,
    )
