"""A host: one process with one Spark session that runs replicas of the fragments it is told to run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pyspark import InheritableThread
from pyspark.sql import SparkSession
from sqlalchemy.exc import SQLAlchemyError

from holdfast.epoch.fragments import open_cuts
from holdfast.epoch.lease import this_process
from holdfast.epoch.replicated import ReplicaRun
from holdfast.epoch.report import EpochReport
from holdfast.errors import HoldfastError
from holdfast.graph.pipeline import Pipeline
from holdfast.meta import MetaStore, ReplicaMeta
from holdfast.replica.agreement import Agreement
from holdfast.replica.deployment import Deployment
from holdfast.replica.fragment import FragmentReplica, SeatAuthority
from holdfast.replica.keeper import Timing
from holdfast.replica.member import Member

__all__ = ["Host", "HostSettings"]

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.5
_SECONDS_TO_END = 60.0

Tell = Callable[[str, dict[str, object]], None]


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
    """`load` finds a pipeline by its file and name. `tell` is told what happens, as a kind and its facts."""

    settings: HostSettings
    load: Callable[[str], Pipeline]
    tell: Tell
    member: Member = field(init=False)
    replicas: dict[str, FragmentReplica] = field(default_factory=dict)
    _meta: MetaStore = field(init=False)
    _deployed: dict[str, Deployment] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)
    _not_needed: set[str] = field(default_factory=set)
    _spark: SparkSession | None = None

    def __post_init__(self) -> None:
        settings = self.settings
        self._meta = MetaStore(settings.meta or settings.store, sync=settings.sync)
        agreement = Agreement(self._meta, this_process(), time.time)
        self.member = Member(settings.name, self._incarnation(), agreement, settings.timing, self._needless)

    def _incarnation(self) -> int:
        """Greater than that of any process of this host before, also if the clock was set back."""
        rows = ReplicaMeta(self._meta)
        fragments = [name for each in rows.deployed().values() for name in each["fragments"]]
        seen = [int(row.seats["members"].get(self.settings.name, [0])[0]) for row in rows.rows(fragments).values()]
        return max([time.time_ns() // 1_000, *(each + 1 for each in seen)])

    def beat(self) -> None:
        """Be seen, before there is a session."""
        self._look()
        self.member.start()

    def run(self, spark: SparkSession) -> None:
        """Serve until `stop`, or until nobody needs this host."""
        self._spark = spark
        self.member.sessions = True
        self.tell("ready", {"incarnation": self.member.incarnation})
        try:
            while not self._over.wait(_LOOK_SECONDS):
                self._look()
                for name in [n for n in self._wanted() if n not in self.replicas]:
                    self._begin(name)
        finally:
            self._close()

    def stop(self) -> None:
        self._over.set()

    def _wanted(self) -> list[str]:
        return [name for each in self._deployed.values() for name in each.fragments]

    def _look(self) -> None:
        """What is to be run? If the store does not answer, what was."""
        try:
            found = ReplicaMeta(self._meta).deployed()
        except (SQLAlchemyError, HoldfastError):
            return
        self._deployed = {name: Deployment.from_json(each) for name, each in found.items()}
        for name in self._wanted():
            self.member.serve(name)
        for name in [n for n in self.replicas if n not in self._wanted()]:
            replica = self.replicas.pop(name)
            replica.stop()
            self.member.leave(name)

    def _begin(self, fragment: str) -> None:
        deployment = next(each for each in self._deployed.values() if fragment in each.fragments)
        replica = FragmentReplica(
            fragment,
            self.member,
            lambda authority: self._build(deployment, fragment, authority),
            deployment.precise,
            lambda text: self.tell("trouble", {"fragment": fragment, "text": text}),
        )
        self.replicas[fragment] = replica
        replica.start(InheritableThread)

    def _build(self, deployment: Deployment, fragment: str, authority: SeatAuthority) -> ReplicaRun:
        began = time.monotonic()
        pipeline = self.load(deployment.target)
        pipeline.check()
        cuts = open_cuts(pipeline, self._meta)
        chosen = next(each for each in cuts.fragments if each.name == fragment)
        settings = self.settings
        run = ReplicaRun(
            chosen.pipeline,
            self._spark,
            deployment.options(fragment, settings.store, settings.meta, settings.name, settings.volatile),
            authority=authority,
            on_epoch=lambda report: self._committed(fragment, report),
            on_takeover=lambda seconds, replayed: self._took_over(fragment, seconds, replayed),
            upstream_ended=lambda: self._ended(deployment.fragments[fragment].upstream),
            beside=len(deployment.fragments) - 1,
        )
        self.tell("loaded", {"fragment": fragment, "seconds": time.monotonic() - began, "role": authority.role.name})
        return run

    def _ended(self, fragments: tuple[str, ...]) -> bool:
        found = (self.member.serve(name).agreed for name in fragments)
        return all(agreed is not None and agreed.ended for agreed in found)

    def _committed(self, fragment: str, report: EpochReport) -> None:
        self.tell(
            "commit",
            {"fragment": fragment, "epoch": report.epoch, "started": report.started, "committed": report.committed},
        )

    def _took_over(self, fragment: str, seconds: float, replayed: int) -> None:
        scheme = self.member.serve(fragment).scheme
        told = {"fragment": fragment, "seconds": seconds, "replayed": replayed, "scheme": scheme and scheme.value}
        self.tell("takeover", told)

    def _needless(self, fragment: str, reason: str) -> None:
        """The process ends when none of its fragments needs it."""
        self._not_needed.add(fragment)
        places = self.member.places
        if all(n in self._not_needed and each.keeper.seat is None for n, each in places.items()):
            self.tell("exit", {"reason": reason})
            self._over.set()

    def _close(self) -> None:
        for replica in self.replicas.values():
            replica.stop()
        deadline = time.monotonic() + _SECONDS_TO_END
        for replica in self.replicas.values():
            replica.join(max(0.1, deadline - time.monotonic()))
        self.member.close()
        self._meta.close()
