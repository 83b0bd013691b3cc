"""A host: one process with one platform that runs replicas of the fragments of all deployments."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from holdfast.durability.checkpoints import CheckpointReport
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.fragment_runs import open_cuts
from holdfast.engine.observer import Observer, Observers
from holdfast.engine.platform import Platform
from holdfast.engine.recovery import RecoveryReport
from holdfast.engine.roles import Role
from holdfast.epoch.report import EpochReport
from holdfast.errors import ClusterError, HoldfastError
from holdfast.graph.pipeline import Pipeline
from holdfast.laar.epoch_journal import host_journal
from holdfast.meta import MetaStore, ReplicaMeta, RunNotes, StreamMeta
from holdfast.plan.executor_choice import ExecutorName
from holdfast.pstream import Announcements
from holdfast.replica.activation_controller import ActivationController
from holdfast.replica.controller_loop import ControllerLoop
from holdfast.replica.deployment import Deployment
from holdfast.replica.host_events import (
    Emit,
    EpochRun,
    HostLeft,
    HostReady,
    ReplicaCommitted,
    ReplicaLoaded,
    ReplicaPrepared,
    ReplicaRecovered,
    ReplicaTrouble,
)
from holdfast.replica.keeper import Timing
from holdfast.replica.membership import Membership
from holdfast.replica.process_meter import ProcessMeter
from holdfast.replica.rates import EpochIntake
from holdfast.replica.replica import FragmentReplica, SeatAuthority
from holdfast.replica.seat_store import Agreement, deployed_fragments
from holdfast.replica.seats import Activate
from holdfast.replica.takeovers import Takeovers
from holdfast.threads import SYSTEM, Event, Threads
from holdfast.watch.event_log import EventLog
from holdfast.watch.pipeline_description import describe_pipeline, keep_description
from holdfast.watch.run_events import RunEvents

__all__ = ["Host", "HostSettings"]

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.5
_SECONDS_TO_END = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """`name` is the host's among those of the store. `volatile` is its own memory, lost with it. `executor` is what
    runs epochs here; without one it is as the deployment says."""

    name: str
    store: Path
    meta: str | None = None
    volatile: Path | None = None
    timing: Timing = field(default_factory=Timing)
    sync: bool = True
    executor: ExecutorName | None = None


@dataclass(slots=True)
class Host:
    """`load` finds a pipeline by its file and name. `emit` takes what happens. `process` is what is known of the
    process that this host is."""

    settings: HostSettings
    load: Callable[[str], Pipeline]
    emit: Emit
    threads: Threads = SYSTEM
    process: ProcessMeter = field(default_factory=ProcessMeter)
    open_meta: Callable[[], MetaStore] | None = None
    """How the meta store is opened; by default as the settings say."""
    events: EventLog | None = None
    """Where the events of its replicas are kept for whatever watches the store."""
    member: Membership = field(init=False)
    replicas: dict[str, FragmentReplica] = field(default_factory=dict)
    loops: dict[str, ControllerLoop] = field(default_factory=dict)
    _activation: dict[str, ActivationController] = field(default_factory=dict)
    _meta: MetaStore = field(init=False)
    _deployed: dict[str, Deployment] = field(default_factory=dict)
    _outdated: set[str] = field(default_factory=set)
    """Fragments whose replicas run as an older deployment says."""
    _over: Event = field(init=False)
    _takeovers: Takeovers = field(init=False)
    _told: dict[str, RunEvents] = field(default_factory=dict)
    _announcements: Announcements = field(init=False)
    """What one fragment writes here wakes the others that read it."""

    def __post_init__(self) -> None:
        settings, threads = self.settings, self.threads
        opened = partial(MetaStore, settings.meta or settings.store, sync=settings.sync, clock=threads)
        self._meta = (self.open_meta or opened)()
        self._over = threads.event()
        self._announcements = Announcements(threads)
        agreement = Agreement(self._meta, self.process.name, threads.now)
        self.member = Membership(
            settings.name, self._incarnation(agreement), agreement, settings.timing, self.leave,
            lambda fragment, scheme: self.emit(ReplicaPrepared(fragment, scheme.name)),
            clock=threads.monotonic, threads=threads,
        )  # fmt: skip
        self._takeovers = Takeovers(self.member, self._meta, self.process, self.loops, self.emit, threads)

    def _incarnation(self, agreement: Agreement) -> int:
        """Greater than that of any process of this host before, also if the clock was set back."""
        fragments = [name for names in deployed_fragments(self._meta).values() for name in names]
        agreed = agreement.look(fragments).values()
        seen = [one.seats.members[self.settings.name] for one in agreed if self.settings.name in one.seats.members]
        return max([int(self.threads.now() * 1e6), *(member.incarnation + 1 for member in seen)])

    def beat(self) -> None:
        """Be seen, before there is a session."""
        self.process.deployed(self.threads.now(), self.threads.monotonic())
        self._look()
        self.member.start()

    def run(self, platform: Platform) -> None:
        """Serve until `stop`, or until this host is no longer needed. Without its platform it is of no use, and leaves:
        another host takes over at once, and a new process has a new session."""
        self.process.opened_session(self.threads.monotonic())
        self.member.sessions = True
        self.emit(HostReady(self.member.incarnation))
        patience = _SECONDS_TO_END
        try:
            while not self._over.is_set():
                if platform.has_died():
                    patience = 0.0
                    raise ClusterError(
                        f"the Spark session of host '{self.settings.name}' has died",
                        cure="nothing to do if `holdfast up` runs: it starts the host again; the log has the cause",
                    )
                self._look()
                for name in [n for n in self._wanted() if n not in self.replicas]:
                    self._begin(name, platform)
                self._run_controllers()
                self.process.sample(self.threads.monotonic())
                self._over.wait(_LOOK_SECONDS)
        finally:
            self._close(patience)

    def stop(self) -> None:
        self._over.set()

    def leave(self, reason: str) -> None:
        """Stop, and say why."""
        if not self._over.is_set():
            self.emit(HostLeft(reason))
            self._over.set()

    def _wanted(self) -> list[str]:
        return [name for deployment in self._deployed.values() for name in deployment.fragments]

    def _look(self) -> None:
        """What is to be run? If the store does not answer, what was."""
        try:
            found = ReplicaMeta(self._meta).deployed()
        except (SQLAlchemyError, HoldfastError):
            return
        before, self._deployed = self._deployed, {name: Deployment.decode(text) for name, text in found.items()}
        for name in self._wanted():
            self.member.serve(name)
        for key, deployment in self._deployed.items():
            if not before.get(key, deployment).runs_like(deployment):
                self._outdated |= set(deployment.fragments)
            self._plan(key, deployment)
        for name in [n for n in self.replicas if self._is_over(n)]:
            self.replicas[name].stop()
            if self.replicas[name].is_alive():
                continue  # a new one begins when this one has ended its epochs
            del self.replicas[name], self.loops[name]
            self._outdated.discard(name)
        for name in [n for n in self.member.places if n not in self._wanted() and n not in self.replicas]:
            self.member.leave(name)

    def _plan(self, pipeline: str, deployment: Deployment) -> None:
        """Which replicas are active at which rates, where there is a plan for it."""
        known = self._activation.get(pipeline)
        plan = deployment.activation
        if plan is None:
            self._activation.pop(pipeline, None)
        elif known is None or known.plan != plan:
            self._activation[pipeline] = ActivationController(
                plan, self.member, self.emit, self._written, self.threads.now
            )

    def _written(self, stream: str) -> int:
        return StreamMeta(self._meta).state(stream).offset

    def _is_over(self, fragment: str) -> bool:
        """Whether a replica is not wanted any more, not as it is, or has ended before and is to run on."""
        if fragment not in self._wanted() or fragment in self._outdated:
            return True
        agreed = self.member.serve(fragment).agreed
        return self.replicas[fragment].ended and agreed is not None and not agreed.ended

    def _release(self) -> None:
        """A command that was given by a plan, and came after the plan was dropped, does not hold."""
        for pipeline, deployment in self._deployed.items():
            for fragment in deployment.fragments if pipeline not in self._activation else ():
                place = self.member.serve(fragment)
                if place.keeper.is_primary and place.agreed is not None and place.agreed.seats.active is not None:
                    self.member.ask(fragment, [Activate(place.agreed.seats.orders, None, None)])

    def _run_controllers(self) -> None:
        self._release()
        for pipeline, controller in self._activation.items():
            try:
                controller.tick(self.threads.monotonic())
            except (SQLAlchemyError, HoldfastError, OSError) as error:
                _log.debug("no command for '%s' now: %s", pipeline, error)
        for loop in list(self.loops.values()):
            try:
                loop.tick(self.threads.monotonic())
            except (SQLAlchemyError, HoldfastError, OSError) as error:  # the store is away: later, then
                _log.debug("no decision on '%s' now: %s", loop.fragment, error)

    def _begin(self, fragment: str, platform: Platform) -> None:
        deployment = self._deployment(fragment)
        loop = self.loops[fragment] = ControllerLoop(fragment, deployment, self.member, self.emit, self.threads)
        loop.took("session", self.process.session_seconds)
        loop.took("deploy", self.process.deploy_seconds)
        loop.took("detection", self.settings.timing.noticed)
        loop.resident(self.process.idle_bytes)
        replica = FragmentReplica(
            fragment,
            self.member,
            lambda authority: self._build(platform, self._deployment(fragment), fragment, authority),
            deployment.precise,
            lambda text: self.emit(ReplicaTrouble(fragment, text)),
            self.threads,
        )
        self.replicas[fragment] = replica
        replica.start(platform.start)

    def _deployment(self, fragment: str) -> Deployment:
        return next(deployment for deployment in self._deployed.values() if fragment in deployment.fragments)

    def _build(
        self, platform: Platform, deployment: Deployment, fragment: str, authority: SeatAuthority
    ) -> FragmentRun:
        began = self.threads.monotonic()
        pipeline = self.load(deployment.target)
        pipeline.check()
        cuts = open_cuts(pipeline, self._meta)
        chosen = next(cut for cut in cuts.fragments if cut.name == fragment)
        settings = self.settings
        journal = host_journal(
            deployment.pipeline, chosen, settings.store, self._meta, settings.name, deployment.since,
            lambda: self.process.overhead.rate,
        )  # fmt: skip
        options = deployment.options(
            fragment, settings.store, settings.meta, settings.name, settings.volatile, settings.executor
        )
        run = FragmentRun(
            chosen.pipeline,
            platform.shared(len(deployment.fragments)),
            options,
            authority=authority,
            observer=self._watched(
                _ReplicaObserver(self, deployment.pipeline, fragment, authority, journal), deployment.pipeline
            ),
            upstream_ended=lambda: self._ended(deployment.fragments[fragment].upstream),
            meta=None if self.open_meta is None else self.open_meta(),
            threads=self.threads,
            announcements=self._announcements,
        )
        if self.events is not None:
            keep_description(settings.store, describe_pipeline(pipeline, cuts.fragments, options.latency))
            RunNotes(self._meta).ran(fragment, settings.name, deployment.target)
        seconds = self.threads.monotonic() - began
        self.loops[fragment].took("program", seconds)
        self.emit(ReplicaLoaded(fragment, seconds, authority.seat.role.name))
        return run

    def _watched(self, observer: Observer, pipeline: str) -> Observer:
        """With its events in the store. What the observer does not handle, as notices, is still logged."""
        if self.events is None:
            return observer
        if pipeline not in self._told:
            self._told[pipeline] = RunEvents(self.events, pipeline, self.settings.name)
        return Observers(Observers(observer), self._told[pipeline])

    def _ended(self, fragments: tuple[str, ...]) -> bool:
        found = (self.member.serve(name).agreed for name in fragments)
        return all(agreed is not None and agreed.ended for agreed in found)

    def _took(self, pipeline: str, fragment: str, entered: int, streamed: int) -> None:
        """An epoch has begun here, whoever is going to commit it."""
        controller = self._activation.get(pipeline)
        if controller is not None:
            controller.took(fragment, EpochIntake(self.threads.monotonic(), entered, streamed))

    def _processed(self, pipeline: str, report: EpochReport) -> None:
        """An epoch was run here, whoever has committed it."""
        controller = self._activation.get(pipeline)
        if controller is not None:
            controller.waits(report.fragment, self.threads.monotonic(), report.lag)
        cpu = sum(report.cpu.values())
        self.process.overhead.spent(cpu)
        self._takeovers.processed(report)
        self.emit(EpochRun(report.fragment, report.epoch, report.rows, cpu))

    def _committed(self, fragment: str, report: EpochReport, journal: Callable[[EpochReport], None]) -> None:
        self.loops[fragment].committed(report)
        self._takeovers.put_out(fragment, report)
        journal(report)
        self.emit(ReplicaCommitted(fragment, report.epoch, report.started, report.committed, report.output_rows))

    def _recovered(self, fragment: str, report: RecoveryReport, role: Role) -> None:
        self.loops[fragment].recovered(report, leads=role is Role.LEAD)
        self.emit(ReplicaRecovered(fragment, role.name, dict(report.seconds), report.loading, report.replayed))

    def _close(self, patience: float) -> None:
        for replica in self.replicas.values():
            replica.stop()
        deadline = self.threads.monotonic() + patience
        for replica in self.replicas.values():
            replica.join(max(0.1, deadline - self.threads.monotonic()))
        self.member.close()
        self._meta.close()


@dataclass(frozen=True, slots=True)
class _ReplicaObserver(Observer):
    """Tells the host what one of its replicas does."""

    host: Host
    pipeline: str
    fragment: str
    authority: SeatAuthority
    journal: Callable[[EpochReport], None]

    def input_taken(self, fragment: str, outside_rows: int, stream_rows: int) -> None:
        self.host._took(self.pipeline, fragment, outside_rows, stream_rows)

    def epoch_processed(self, report: EpochReport) -> None:
        self.host._processed(self.pipeline, report)

    def epoch_committed(self, report: EpochReport) -> None:
        self.host._committed(self.fragment, report, self.journal)

    def checkpoint_copied(self, report: CheckpointReport) -> None:
        self.host.loops[self.fragment].checkpoint(report)

    def recovered(self, report: RecoveryReport) -> None:
        self.host._recovered(self.fragment, report, self.authority.seat.role)

    def took_over(self, fragment: str, replayed: int) -> None:
        self.host._takeovers.took_over(fragment, replayed)
