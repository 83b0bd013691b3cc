"""A host: one process with one Spark session that runs replicas of the fragments of all deployments."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from pyspark import InheritableThread
from pyspark.sql import SparkSession
from sqlalchemy.exc import SQLAlchemyError

from holdfast.durability.checkpoints import CheckpointReport
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.fragment_runs import open_cuts
from holdfast.engine.lease import this_process
from holdfast.engine.observer import Observer
from holdfast.engine.recovery import RecoveryReport
from holdfast.engine.roles import Role
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.epoch.report import EpochReport
from holdfast.errors import ClusterError, HoldfastError
from holdfast.graph.pipeline import Pipeline
from holdfast.laar.epoch_journal import host_journal
from holdfast.meta import Commit, MetaStore, ReplicaMeta, StreamMeta
from holdfast.replica.activation_controller import ActivationController
from holdfast.replica.controller_loop import ControllerLoop
from holdfast.replica.deployment import Deployment
from holdfast.replica.host_overhead import HostOverhead, cpu_of_processes, resident_bytes
from holdfast.replica.keeper import Timing
from holdfast.replica.membership import Membership
from holdfast.replica.output_gap import CommitTimes, FirstOutput, Takeover
from holdfast.replica.rates import EpochIntake
from holdfast.replica.replica import FragmentReplica, SeatAuthority
from holdfast.replica.schemes import Scheme
from holdfast.replica.seat_store import Agreement, deployed_fragments
from holdfast.replica.seats import Activate
from holdfast.spark.session import is_lost

__all__ = ["Host", "HostSettings"]

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.5
_SECONDS_TO_END = 60.0

Emit = Callable[[str, dict[str, object]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """`name` is the host's among those of the store. `volatile` is its own memory, lost with it."""

    name: str
    store: Path
    meta: str | None = None
    volatile: Path | None = None
    timing: Timing = field(default_factory=Timing)
    sync: bool = True


@dataclass(slots=True)
class Host:
    """`load` finds a pipeline by its file and name. `emit` takes what happens, as a kind and its facts."""

    settings: HostSettings
    load: Callable[[str], Pipeline]
    emit: Emit
    member: Membership = field(init=False)
    replicas: dict[str, FragmentReplica] = field(default_factory=dict)
    loops: dict[str, ControllerLoop] = field(default_factory=dict)
    _activation: dict[str, ActivationController] = field(default_factory=dict)
    _meta: MetaStore = field(init=False)
    _deployed: dict[str, Deployment] = field(default_factory=dict)
    _outdated: set[str] = field(default_factory=set)
    """Fragments whose replicas run as an older deployment says."""
    _over: threading.Event = field(default_factory=threading.Event)
    _taken: dict[str, int] = field(default_factory=dict)
    """The seat with which a fragment was taken over last."""
    _takeovers: dict[str, tuple[Scheme, float, Takeover]] = field(default_factory=dict)
    _went_on: dict[str, int] = field(default_factory=dict)
    """The seat under which a fragment has put out last."""
    _outputs: dict[str, FirstOutput] = field(default_factory=dict)
    _commits: dict[str, CommitTimes] = field(default_factory=dict)
    _overhead: HostOverhead = field(default_factory=HostOverhead)
    _cpu: dict[int, float] = field(default_factory=dict)
    _spark: SparkSession | None = None
    _began: float = 0.0
    _deploy_seconds: float = 0.0
    _session_seconds: float = 0.0
    _idle_bytes: float = 0.0

    def __post_init__(self) -> None:
        settings = self.settings
        self._meta = MetaStore(settings.meta or settings.store, sync=settings.sync)
        agreement = Agreement(self._meta, this_process(), time.time)
        self.member = Membership(
            settings.name, self._incarnation(), agreement, settings.timing, self._needless,
            lambda fragment, scheme: self.emit("prepared", {"fragment": fragment, "scheme": scheme.name}),
        )  # fmt: skip

    def _incarnation(self) -> int:
        """Greater than that of any process of this host before, also if the clock was set back."""
        fragments = [name for names in deployed_fragments(self._meta).values() for name in names]
        agreed = Agreement(self._meta, this_process(), time.time).look(fragments).values()
        seen = [one.seats.members[self.settings.name] for one in agreed if self.settings.name in one.seats.members]
        return max([time.time_ns() // 1_000, *(member.incarnation + 1 for member in seen)])

    def beat(self) -> None:
        """Be seen, before there is a session."""
        self._began = time.monotonic()
        self._deploy_seconds = time.time() - psutil.Process().create_time()
        self._look()
        self.member.start()

    def run(self, spark: SparkSession) -> None:
        """Serve until `stop`, or until nobody needs this host. Without its session it is of no use, and leaves: another
        host goes on at once, and a new process has a new session."""
        self._spark = spark
        self._session_seconds = time.monotonic() - self._began
        self._idle_bytes = resident_bytes()
        self.member.sessions = True
        self.emit("ready", {"incarnation": self.member.incarnation})
        patience = _SECONDS_TO_END
        try:
            while not self._over.is_set():
                if is_lost(spark):
                    patience = 0.0
                    raise ClusterError(
                        f"the Spark session of host '{self.settings.name}' has died",
                        cure="nothing to do where `holdfast up` runs: it starts the host again; its log has the cause",
                    )
                self._look()
                for name in [n for n in self._wanted() if n not in self.replicas]:
                    self._begin(name)
                self._run_controllers()
                self._sample()
                self._over.wait(_LOOK_SECONDS)
        finally:
            self._close(patience)

    def stop(self) -> None:
        self._over.set()

    def _sample(self) -> None:
        now = time.monotonic()
        if self._overhead.due(now):
            self._overhead.sample(now, cpu_of_processes(self._cpu))

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
            self._activation[pipeline] = ActivationController(plan, self.member, self.emit, self._written)

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
                controller.tick(time.monotonic())
            except (SQLAlchemyError, HoldfastError, OSError) as error:
                _log.debug("no command for '%s' now: %s", pipeline, error)
        for loop in list(self.loops.values()):
            try:
                loop.tick(time.monotonic())
            except (SQLAlchemyError, HoldfastError, OSError) as error:  # the store is away: later, then
                _log.debug("no decision on '%s' now: %s", loop.fragment, error)

    def _begin(self, fragment: str) -> None:
        deployment = self._deployment(fragment)
        loop = self.loops[fragment] = ControllerLoop(fragment, deployment, self.member, self.emit)
        loop.took("session", self._session_seconds)
        loop.took("deploy", self._deploy_seconds)
        loop.took("detection", self.settings.timing.noticed)
        loop.resident(self._idle_bytes)
        replica = FragmentReplica(
            fragment,
            self.member,
            lambda authority: self._build(self._deployment(fragment), fragment, authority),
            deployment.precise,
            lambda text: self.emit("trouble", {"fragment": fragment, "text": text}),
        )
        self.replicas[fragment] = replica
        replica.start(InheritableThread)

    def _deployment(self, fragment: str) -> Deployment:
        return next(deployment for deployment in self._deployed.values() if fragment in deployment.fragments)

    def _build(self, deployment: Deployment, fragment: str, authority: SeatAuthority) -> FragmentRun:
        began = time.monotonic()
        pipeline = self.load(deployment.target)
        pipeline.check()
        cuts = open_cuts(pipeline, self._meta)
        chosen = next(cut for cut in cuts.fragments if cut.name == fragment)
        settings = self.settings
        journal = host_journal(
            deployment.pipeline, chosen, settings.store, self._meta, settings.name, deployment.since,
            lambda: self._overhead.rate,
        )  # fmt: skip
        assert self._spark is not None
        run = FragmentRun(
            chosen.pipeline,
            SparkPlatform(self._spark, beside=len(deployment.fragments) - 1),
            deployment.options(fragment, settings.store, settings.meta, settings.name, settings.volatile),
            authority=authority,
            observer=_ReplicaObserver(self, deployment.pipeline, fragment, authority, journal),
            upstream_ended=lambda: self._ended(deployment.fragments[fragment].upstream),
        )
        seconds = time.monotonic() - began
        self.loops[fragment].took("program", seconds)
        self.emit("loaded", {"fragment": fragment, "seconds": seconds, "role": authority.seat.role.name})
        return run

    def _ended(self, fragments: tuple[str, ...]) -> bool:
        found = (self.member.serve(name).agreed for name in fragments)
        return all(agreed is not None and agreed.ended for agreed in found)

    def _took(self, pipeline: str, fragment: str, entered: int, streamed: int) -> None:
        """An epoch has begun here, whoever is going to commit it."""
        controller = self._activation.get(pipeline)
        if controller is not None:
            controller.took(fragment, EpochIntake(time.monotonic(), entered, streamed))

    def _processed(self, pipeline: str, report: EpochReport) -> None:
        """An epoch was run here, whoever has committed it."""
        controller = self._activation.get(pipeline)
        if controller is not None:
            controller.waits(report.fragment, time.monotonic(), report.lag)
        cpu = sum(report.cpu.values())
        self._overhead.spent(cpu)
        self._commits.setdefault(report.fragment, CommitTimes()).add(report.started, report.committed)
        event = {"fragment": report.fragment, "epoch": report.epoch, "rows": report.rows, "cpu": cpu}
        self.emit("processed", event)

    def _committed(self, fragment: str, report: EpochReport, journal: Callable[[EpochReport], None]) -> None:
        self.loops[fragment].committed(report)
        self._put_out(fragment, report)
        journal(report)
        self.emit(
            "commit",
            {
                "fragment": fragment,
                "epoch": report.epoch,
                "started": report.started,
                "committed": report.committed,
                "rows": report.output_rows,
            },
        )

    def _recovered(self, fragment: str, report: RecoveryReport, role: Role) -> None:
        self.loops[fragment].recovered(report, leads=role is Role.LEAD)
        phases = {"phases": dict(report.seconds), "loading": report.loading, "replayed": report.replayed}
        self.emit("recovered", {"fragment": fragment, "role": role.name, **phases})

    def _took_over(self, fragment: str, replayed: int) -> None:
        """The steps of a recovery are those since the seat was there or, where a process was started for it, since that
        began; one that saw the primary before was not. The first start of a fragment is no recovery."""
        place = self.member.serve(fragment)
        scheme, seat = place.scheme, place.keeper.seat
        seconds = time.monotonic() - place.seated_at
        if place.first:
            self.loops[fragment].began(seconds)
        if scheme is None or place.first or seat is None or self._taken.get(fragment) == seat.token:
            return  # also of a run that began again on the seat it has
        self._taken[fragment] = seat.token
        seated_at, silence = place.seated_at, place.silence
        if not scheme.needs_secondary and place.started_for:
            seconds = time.time() - psutil.Process().create_time()
            seated_at, silence = time.monotonic() - seconds, self.settings.timing.noticed
        self._takeovers[fragment] = scheme, seconds, Takeover(silence, seated_at, time.time(), replayed)
        event = {"fragment": fragment, "seconds": seconds, "replayed": replayed, "scheme": scheme.name}
        self.emit("takeover", event)
        self._report_gap(fragment)

    def _put_out(self, fragment: str, report: EpochReport) -> None:
        """Output goes on under this primary with the first epoch that it commits."""
        place = self.member.serve(fragment)
        seat = place.keeper.seat
        if seat is None or not place.keeper.is_primary or place.first or self._went_on.get(fragment) == seat.token:
            return
        self._went_on[fragment] = seat.token
        before = None
        with contextlib.suppress(SQLAlchemyError, HoldfastError):
            found = self._meta.look_up(fragment, report.epoch - 1)
            before = found.committed_at if isinstance(found, Commit) else None
        self._outputs[fragment] = FirstOutput(time.monotonic(), report.started, report.committed, before)
        self._report_gap(fragment)

    def _report_gap(self, fragment: str) -> None:
        """What a reader has seen of a takeover, when it is over and output has gone on."""
        if fragment not in self._takeovers or fragment not in self._outputs:
            return
        scheme, seconds, taken = self._takeovers.pop(fragment)
        first, loop = self._outputs.pop(fragment), self.loops[fragment]
        if scheme.both_commit:
            since = time.time() - (time.monotonic() - taken.seated_at) - taken.silence - self.settings.timing.noticed
            gap, noticed = self._commits[fragment].longest(since), 0.0
        else:
            gap, noticed = taken.gap(first, loop.rhythm + 2 * self.settings.timing.beat), taken.silence
        loop.took_over(scheme, gap, taken.replayed, time.monotonic(), noticed=noticed, steps=seconds)
        self.emit("gap", {"fragment": fragment, "scheme": scheme.name, "seconds": gap, "noticed": noticed})

    def _needless(self, reason: str) -> None:
        if not self._over.is_set():
            self.emit("exit", {"reason": reason})
            self._over.set()

    def _close(self, patience: float) -> None:
        for replica in self.replicas.values():
            replica.stop()
        deadline = time.monotonic() + patience
        for replica in self.replicas.values():
            replica.join(max(0.1, deadline - time.monotonic()))
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
        self.host._took_over(fragment, replayed)
