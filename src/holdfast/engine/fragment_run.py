"""One run of a fragment by this process: its parts, put together, from taking its seat to letting it go."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from holdfast.engine.authority import Authority, HeldAuthority
from holdfast.engine.background_merges import Compacting
from holdfast.engine.committer import Committer
from holdfast.engine.delivery import SinkDelivery
from holdfast.engine.lease import LeaseKeeper
from holdfast.engine.loop import Loop
from holdfast.engine.machine import Machine
from holdfast.engine.notices import Notices
from holdfast.engine.observer import Observer
from holdfast.engine.options import RunOptions
from holdfast.engine.pacing import MeasuredPace, Pace, Pacer, Trigger
from holdfast.engine.place_checks import check_places
from holdfast.engine.planner import Planner
from holdfast.engine.progress import FragmentProgress
from holdfast.engine.repair import advise
from holdfast.engine.standby import Standby, inbox_of
from holdfast.engine.start import Start
from holdfast.engine.stream_links import StreamLinks, bind_streams
from holdfast.engine.upkeep import Upkeep
from holdfast.epoch.deadline import Deadlines
from holdfast.epoch.execution import Executor
from holdfast.epoch.record import EpochRecord, new_record
from holdfast.errors import DeadlineError, HoldfastError, LeaseLostError, StoreUnreachableError
from holdfast.graph.pipeline import Pipeline
from holdfast.meta import Lease, MetaStore
from holdfast.plan.program import Program, compile_program
from holdfast.store import DirectoryStore, Tiers, make_directories
from holdfast.task.work_directory import WorkDirectory
from holdfast.threads import SYSTEM, Threads

__all__ = ["FragmentRun", "Platform"]

_SECONDS_TO_LOOK = 1.0
_SECONDS_TO_LOOK_BESIDE_OTHERS = 0.01
_OTHERS_WAIT = (DeadlineError, LeaseLostError, StoreUnreachableError)
"""What does not answer is not asked once more: another host may be waiting to go on."""


class Platform(Protocol):
    """What epochs run on."""

    def sees_volatile(self, program: Program, options: RunOptions, tiers: Tiers) -> bool:
        """Whether all tasks see the same volatile tier; raises if they do not all see what they must."""

    def executor(
        self,
        program: Program,
        options: RunOptions,
        work: WorkDirectory,
        tiers: Tiers,
        clock: Callable[[], float],
        deadlines: Deadlines,
        *,
        alone: bool,
    ) -> Executor:
        """The executor of one run. Who is not `alone` leaves what fails to another host."""

    def compacting(self, program: Program, work: WorkDirectory, store: DirectoryStore) -> Compacting:
        """The merges of one run beside its epochs."""

    def warm_up(self, work: WorkDirectory, tasks: int) -> None:
        """Before the first epoch: what takes time once is done now."""

    def drive(self, loop: Loop, program: Program, options: RunOptions, home: Path) -> bool:
        """Run the loop to its end, or until less is wanted of the run: then False."""


class FragmentRun:
    """`upstream_ended` tells whether those who write what this run reads have ended: only then is a source without new
    rows idle. `authority` is by what right it plans and commits: by default a lease that it takes for itself. `pace`
    says how large epochs are: by default as the options say. The meta store is opened as they say, unless one is given.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        platform: Platform,
        options: RunOptions,
        *,
        observer: Observer | None = None,
        upstream_ended: Callable[[], bool] = lambda: True,
        authority: Authority | None = None,
        pace: Pace | None = None,
        clock: Callable[[], float] | None = None,
        meta: MetaStore | None = None,
        threads: Threads = SYSTEM,
    ) -> None:
        root = options.store.resolve()
        check_places(pipeline, root)
        self._options = options
        self._platform = platform
        self._clock = clock = clock or threads.now
        self._began: float | None = None
        observer = observer or Observer()
        self._meta = meta = meta or MetaStore(options.meta or options.store, sync=options.durable, clock=threads)
        self.program = program = bind_streams(compile_program(pipeline), meta, root, options.durable)
        self._deadlines = deadlines = Deadlines(options.deadline_seconds, threads.monotonic, threads)
        self._delivery = SinkDelivery(program, meta, clock, deadlines)
        alone = authority is None
        streams = StreamLinks(
            program, meta, root, options.durable, clock, observer, replicated=options.host is not None
        )
        self.home = root / pipeline.name
        self._tiers = tiers = options.tiers(pipeline.name, meta.identity())
        make_directories(self.home, sync=options.durable)  # what is synced below it has a name that lasts
        self._authority: Authority = authority or LeaseKeeper(
            meta, program.name, clock, stuck=self.stuck, threads=threads
        )
        right = HeldAuthority(meta, self._authority)
        self._work = WorkDirectory(self.home / "work" / (options.host or ""), uuid.uuid4().hex)
        self._upkeep = Upkeep(
            program, meta, options, tiers, self._work,
            platform.compacting(program, self._work, tiers.at("stable")), right, clock,
            shared=platform.sees_volatile(program, options, tiers), observer=observer, threads=threads,
        )  # fmt: skip
        notices = Notices(program, meta, observer, clock, deadlines)
        self.machine = machine = Machine()
        self._executor = executor = platform.executor(
            program, options, self._work, tiers, clock, deadlines, alone=alone
        )
        first = new_record(program, options.partitions)
        progress = FragmentProgress(first, first)
        pace = pace or MeasuredPace(
            Pacer(options.latency, options.least_rows, options.most_rows),
            Trigger(options.trigger_seconds, options.most_rows),
        )
        planner = Planner(
            program, meta, options, pace, self._authority, machine, executor, streams, notices, observer, deadlines,
            clock, upstream_ended, progress,
        )  # fmt: skip
        self._committer = committer = Committer(
            program, meta, tiers, self._authority, machine, executor, planner, self._delivery, streams, self._upkeep,
            observer, deadlines, clock, progress,
        )  # fmt: skip
        self._standby = Standby(program, meta, tiers, inbox_of(tiers), threads)
        start = Start(
            program, meta, options, tiers, self._authority, executor, self._standby, planner, committer, streams,
            self._upkeep, observer, deadlines, clock, self._remove_leftovers,
        )  # fmt: skip
        self.loop = Loop(
            program.name, machine, self._authority, executor, start, self._standby, planner, committer, observer,
            deadlines, threads.sleep, self._limit_reached, _SECONDS_TO_LOOK_BESIDE_OTHERS,
            _SECONDS_TO_LOOK if alone else _SECONDS_TO_LOOK_BESIDE_OTHERS,
        )  # fmt: skip
        self._alone = alone

    @property
    def compacting(self) -> Compacting:
        return self._upkeep.compacting

    @property
    def committed(self) -> int:
        """The last epoch that is committed and whose state is here."""
        return self.machine.committed

    @property
    def fresh(self) -> int:
        """Epochs that were committed here, without those that were made again."""
        return self._committer.fresh

    @property
    def received(self) -> int:
        """Bytes of state and input that came while it stood by."""
        return self._standby.received

    def stop(self) -> None:
        """Ask the run to end: epochs in flight are committed first."""
        self.loop.stopped = True

    def stuck(self) -> str | None:
        """Why the run does not go on, if so. To be asked by another thread."""
        return self._deadlines.stuck()

    def run(self) -> EpochRecord:
        """Run until the sources end or somebody stops it. Returns the last committed record."""
        self.live()
        return self._committer.progress.record

    def live(self) -> bool:
        """Until the fragment ends, or less is wanted of this run; whether it has come to its end here."""
        with self.seated() as loop:
            ended = self._platform.drive(loop, self.program, self._options, self.home)
            return ended and (self._alone or not loop.stopped)

    @contextlib.contextmanager
    def seated(self) -> Iterator[Loop]:
        """The loop, to be driven by whoever has entered; everything of the run is let go in the end."""
        try:
            with self._authority:
                try:
                    if self._alone:  # before Spark runs a job: what cannot be written to is told at once
                        self._delivery.check()
                    self._platform.warm_up(self._work, self._options.tasks)
                    yield self.loop
                except Exception as error:
                    if isinstance(error, HoldfastError):
                        progress = self._committer.progress
                        advise(error, self.program.name, progress.plans, progress.positions, self._options)
                    if not isinstance(error, _OTHERS_WAIT):
                        with contextlib.suppress(Exception):  # what ends the run is told; the next start publishes
                            self._committer.publish_all()
                    raise
                finally:
                    self._end()
        finally:
            self.close()

    def _end(self) -> None:
        """The work directory goes last: until then merges and tasks use it."""
        with contextlib.ExitStack() as ends:
            ends.callback(self._work.remove_run)
            ends.callback(self._upkeep.close)
            ends.callback(self._executor.end)
            self._deadlines.rest()

    def close(self) -> None:
        """Let go of the meta store. Only where the run does not live; else it does so itself."""
        self._meta.close()

    def _limit_reached(self) -> bool:
        epochs, seconds = self._options.max_epochs, self._options.max_seconds
        if self._began is None:
            self._began = self._clock()
        reached = epochs is not None and max(self.machine.committed, self.machine.planned) >= epochs
        return reached or (seconds is not None and self._clock() - self._began >= seconds)

    def _remove_leftovers(self, lease: Lease) -> None:
        self._work.remove_others(self._meta.right(lease))
