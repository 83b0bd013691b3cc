"""One run of a fragment in this process: assembles its parts, takes its seat, and releases it at the end."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from functools import partial

from holdfast.engine.authority import Authority, HeldAuthority
from holdfast.engine.background_merges import BackgroundMerges
from holdfast.engine.committer import Committer
from holdfast.engine.delivery import SinkDelivery
from holdfast.engine.first_epoch import first_rows, sizes_of_rows
from holdfast.engine.fragment_progress import FragmentProgress
from holdfast.engine.lease import LeaseKeeper
from holdfast.engine.loop import Loop
from holdfast.engine.machine import Machine
from holdfast.engine.notices import Notices
from holdfast.engine.observer import Observer
from holdfast.engine.options import RunOptions
from holdfast.engine.pacer import MeasuredPace, Pace, Pacer, Readers, Trigger, Widening
from holdfast.engine.place_checks import check_places
from holdfast.engine.planner import Planner
from holdfast.engine.platform import Platform
from holdfast.engine.repair import advise
from holdfast.engine.run_context import RunContext
from holdfast.engine.shadow_output import ShadowWatch, withheld, withheld_output
from holdfast.engine.standby import Standby, inbox_of
from holdfast.engine.start import Start
from holdfast.engine.stream_links import StreamLinks, bind_streams
from holdfast.engine.table_versions import TableVersions, bind_lookups
from holdfast.engine.upkeep import Upkeep
from holdfast.epoch.deadline import Deadlines
from holdfast.epoch.record import EpochRecord, new_record
from holdfast.errors import DeadlineError, HoldfastError, LeaseLostError, StoreUnreachableError
from holdfast.graph.pipeline import Pipeline
from holdfast.meta import Lease, MetaStore, RunNotes
from holdfast.plan.executor_choice import ExecutorChoice
from holdfast.plan.partition_count import begins_alone
from holdfast.plan.program import Program, compile_program
from holdfast.pstream import Announcements
from holdfast.store import DirectoryStore, make_directories, sync_directory
from holdfast.task.work_directory import WorkDirectory
from holdfast.threads import SYSTEM, Threads

__all__ = ["FragmentRun"]

_SECONDS_TO_LOOK = 1.0
_SECONDS_TO_LOOK_BESIDE_OTHERS = 0.01
_NO_ANSWER = (DeadlineError, StoreUnreachableError)
_OTHERS_WAIT = (*_NO_ANSWER, LeaseLostError)
"""What does not answer is not asked once more: another host may be waiting to continue."""


class FragmentRun:
    """`upstream_ended` tells whether the writers of what this run reads have ended: only then is a source without new
    rows idle. `authority` is by what right it plans and commits: by default a lease that it takes for itself. `pace`
    says how large epochs are: by default as the options say. The meta store is opened as they say, unless one is given.
    `announcements` are those of the writers and readers of p-streams in this process. With a `shadow`, the run keeps
    state of its own and publishes nothing: it receives what it has made of each epoch that others have committed.
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
        announcements: Announcements | None = None,
        shadow: ShadowWatch | None = None,
    ) -> None:
        check_places(pipeline, options.store.resolve())
        self._options = options
        self._platform = platform
        self._threads = threads
        self._clock = clock or threads.now
        # The time of day may be set: spans are measured by another clock, unless one was given for both.
        self._ticks = clock or threads.monotonic
        self._began: float | None = None
        self._observer = observer or Observer()
        self.executor: ExecutorChoice | None = None
        """What runs the epochs, where there is a choice."""
        self._alone = authority is None
        self._meta = meta or MetaStore(options.meta or options.store, sync=options.durable, clock=threads)
        try:
            self._prepare(pipeline, authority, shadow is not None)
            self._put_together(self._observer, upstream_ended, pace, announcements, shadow)
        except BaseException:  # no caller has the run, to release it
            self._meta.close()
            raise

    def _prepare(self, pipeline: Pipeline, authority: Authority | None, withholds: bool) -> None:
        """The program, bound to the store, and by what right and where it is run."""
        options, meta = self._options, self._meta
        root = options.store.resolve()
        self.home = root / pipeline.name
        program = bind_streams(compile_program(pipeline), meta, root, options.durable)
        program = bind_lookups(program, self._versions)
        self.program = withheld(program, withheld_output(self.home)) if withholds else program
        self._deadlines = Deadlines(options.deadline_seconds, self._threads.monotonic, self._threads)
        self._tiers = options.tiers(pipeline.name, meta.identity())
        make_directories(self.home, sync=options.durable)
        if options.durable:  # what is synced below it has a name that lasts, whoever has made it
            sync_directory(root)
            sync_directory(root.parent)  # a process that made the store may have been killed before it came to that
        self._work = WorkDirectory(self.home / "work" / (options.host or ""), uuid.uuid4().hex)
        self._authority: Authority = authority or LeaseKeeper(
            meta, self.program.name, self._clock, stuck=self.stuck, threads=self._threads
        )

    def _put_together(
        self,
        observer: Observer,
        upstream_ended: Callable[[], bool],
        pace: Pace | None,
        announcements: Announcements | None,
        shadow: ShadowWatch | None,
    ) -> None:
        """The parts of the run, each with what it needs of the others."""
        program, meta, options, tiers = self.program, self._meta, self._options, self._tiers
        platform, authority, deadlines, clock = self._platform, self._authority, self._deadlines, self._clock
        machine = Machine()
        shared = platform.sees_volatile(program, options, tiers)  # first: on a cluster, executors are waited for
        executor, batches = platform.executor(
            program,
            options,
            self._work,
            tiers,
            clock,
            deadlines,
            partial(self._executor_chosen, noted=shadow is None),
            alone=self._alone,
        )
        standby = Standby(program, meta, tiers, inbox_of(tiers), self._threads)
        self._upkeep = Upkeep(
            program, meta, options, tiers, self._work,
            merges=platform.merges_of(
                program, self._work, tiers.at("stable" if shadow is None else "volatile")
            ),
            right=HeldAuthority(meta, authority),
            clock=clock,
            ticks=self._ticks,
            shared=shared,
            observer=observer,
            threads=self._threads,
        )  # fmt: skip
        streams = StreamLinks(
            program, meta, options.store.resolve(), options.durable, clock, observer,
            replicated=options.host is not None, announcements=announcements, ticks=self._ticks,
        )  # fmt: skip
        first = new_record(program, options.first_partitions)
        run = RunContext(
            program=program,
            options=options,
            meta=meta,
            tiers=tiers,
            authority=authority,
            machine=machine,
            executor=executor,
            streams=streams,
            observer=observer,
            deadlines=deadlines,
            clock=clock,
            ticks=self._ticks,
            progress=FragmentProgress(first, first),
            shadow=shadow,
        )
        tables = TableVersions(
            program, meta, self._versions, deadlines, HeldAuthority(meta, authority), clock, self._ticks,
            patience=options.latency, alone=options.host is None,
        )  # fmt: skip
        notices = Notices(program, meta, observer, clock, deadlines, tables.notices)
        planner = Planner(run, pace or _pace_of(program, options), notices, tables, upstream_ended, batches)
        committer = Committer(run, planner, SinkDelivery(program, meta, self._ticks, deadlines), self._upkeep)
        start = Start(run, standby, planner, committer, self._upkeep, self._remove_leftovers)
        rest = self._threads.sleep if batches is None else batches.wait
        if announcements is not None and streams.read:
            rest = announcements.listener(streams.read).wait
        self.loop = Loop(
            name=program.name,
            machine=machine,
            authority=authority,
            executor=executor,
            start=start,
            standby=standby,
            planner=planner,
            committer=committer,
            observer=observer,
            deadlines=deadlines,
            sleep=self._threads.sleep,
            rest=rest,
            limit_reached=self._limit_reached,
            pause=_SECONDS_TO_LOOK_BESIDE_OTHERS,
            patience=_SECONDS_TO_LOOK if self._alone else _SECONDS_TO_LOOK_BESIDE_OTHERS,
        )

    @property
    def _versions(self) -> DirectoryStore:
        """Where the versions of lookup tables are."""
        return DirectoryStore(self.home / "lookups", self._options.durable)

    @property
    def machine(self) -> Machine:
        return self.loop.machine

    @property
    def merges(self) -> BackgroundMerges:
        return self._upkeep.merges

    @property
    def committed(self) -> int:
        """The last epoch that is committed and whose state is here."""
        return self.machine.committed

    @property
    def fresh(self) -> int:
        """Epochs that were committed here, without those that were made again."""
        return self.loop.committer.fresh

    @property
    def received(self) -> int:
        """Bytes of state and input that came while it stood by."""
        return self.loop.standby.received

    def stop(self) -> None:
        """Ask the run to end: epochs in flight are committed first."""
        self.loop.stopped = True

    def stuck(self) -> str | None:
        """Why the run is not making progress, if so. To be asked by another thread."""
        return self._deadlines.stuck()

    def run(self) -> EpochRecord:
        """Run until the sources end or somebody stops it. Returns the last committed record."""
        self.live()
        return self.loop.committer.run.progress.record

    def live(self) -> bool:
        """Until the fragment ends, or this run gets a lesser role; whether the fragment has ended here."""
        with self.seated() as loop:
            ended = self._platform.drive(loop)
            return ended and (self._alone or not loop.stopped)

    @contextlib.contextmanager
    def seated(self) -> Iterator[Loop]:
        """The loop, driven by the caller that has entered; everything of the run is released at the end."""
        try:
            with self._authority:
                try:
                    if self._alone:  # before Spark runs a job: what cannot be written to is reported at once
                        self.loop.committer.delivery.check()
                    self._platform.warm_up(self._work, self._options)
                    yield self.loop
                except Exception as error:
                    if isinstance(error, HoldfastError):
                        progress = self.loop.committer.run.progress
                        advise(error, self.program.name, progress.plans, progress.positions, self._options)
                    if not isinstance(error, _NO_ANSWER):
                        with contextlib.suppress(Exception):  # what was committed is reported, whatever comes after it
                            self.loop.committer.chores.do()
                    if not isinstance(error, _OTHERS_WAIT):
                        with contextlib.suppress(Exception):  # what ends the run is reported; the next start publishes
                            self.loop.committer.publish_all()
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
            ends.callback(self.loop.executor.end)
            self._deadlines.rest()

    def close(self) -> None:
        """Close the meta store. Only if the run is not alive; otherwise it does so itself."""
        self._meta.close()

    def _executor_chosen(self, choice: ExecutorChoice, *, noted: bool) -> None:
        if self.executor is not None:
            self._observer.notice(self.program.name, str(choice))
        self.executor = choice
        if noted:
            RunNotes(self._meta).executor(self.program.name, self._options.host, str(choice))
        self._observer.executor_chosen(self.program.name, str(choice))

    def _limit_reached(self) -> bool:
        epochs, seconds = self._options.max_epochs, self._options.max_seconds
        if self._began is None:
            self._began = self._ticks()
        reached = epochs is not None and max(self.machine.committed, self.machine.planned) >= epochs
        return reached or (seconds is not None and self._ticks() - self._began >= seconds)

    def _remove_leftovers(self, lease: Lease) -> None:
        self._work.remove_others(self._meta.right(lease))


def _pace_of(program: Program, options: RunOptions) -> Pace:
    first = first_rows(sizes_of_rows(program), options.latency, options.least_rows, options.most_rows)
    alone = begins_alone(options.partitions, options.latency, scaled=options.scaling is not None)
    return MeasuredPace(
        Pacer(options.latency, options.least_rows, options.most_rows, first),
        Trigger(options.trigger_seconds, options.most_rows),
        Readers(options.latency),
        Widening(options.latency) if alone else None,
    )
