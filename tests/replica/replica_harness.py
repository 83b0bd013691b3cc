"""Two hosts in one process: real runs on one Spark session, real seats in a real store; only heartbeats are made by
hand, so that a host is dead when the test says so."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.fragment_runs import open_cuts
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.engine.options import RunOptions
from holdfast.engine.roles import Role
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.meta import MetaStore
from holdfast.meta.lease_holder import this_process
from holdfast.replica.keeper import Timing
from holdfast.replica.membership import Membership
from holdfast.replica.replica import FragmentReplica, SeatAuthority
from holdfast.replica.schemes import Scheme
from holdfast.replica.seat_store import Agreed, Agreement
from observers import watching

Build = Callable[[hf.sink.Sink], hf.Pipeline]

PATIENCE = 90.0


class KilledError(BaseException):
    """Stands for kill -9: nobody catches it."""


class MortalAuthority(SeatAuthority):
    """Ends a run between two of its steps."""

    killed: bool = False

    def renew(self) -> None:
        if self.killed:
            raise KilledError
        super().renew()


class MortalReplica(FragmentReplica):
    """Ends with kill -9, as a process would."""

    def _trouble(self, error: BaseException) -> None:
        if isinstance(error, KilledError):
            raise error
        super()._trouble(error)


def _mortal_thread(work: Callable[[], None], name: str) -> threading.Thread:
    def live() -> None:
        with suppress(KilledError):
            work()

    thread = threading.Thread(target=live, name=name, daemon=True)
    thread.start()
    return thread


@dataclass
class TestHost:
    """One host. It beats as long as it lives."""

    __test__ = False

    name: str
    pipeline: hf.Pipeline
    spark: SparkSession | None
    options: RunOptions
    precise: bool = True
    alive: bool = True
    troubles: list[str] = field(default_factory=list)
    takeovers: list[int] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """Why its process would have ended."""
    replicas: dict[str, FragmentReplica] = field(default_factory=dict)
    _authorities: list[MortalAuthority] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.meta = MetaStore(self.options.meta or self.options.store, sync=False)
        agreement = Agreement(self.meta, f"{this_process()}#{self.name}", time.time)
        timing = Timing(beat=0.05, detection=0.4)
        self.member = Membership(self.name, time.time_ns(), agreement, timing, self.left.append)
        self.member.sessions = True
        self._beats = threading.Thread(target=self._beat, daemon=True)

    def start(self) -> None:
        cuts = open_cuts(self.pipeline, self.meta)
        for fragment in cuts.fragments:
            self.member.serve(fragment.name)
            replica = MortalReplica(
                fragment.name,
                self.member,
                lambda authority, fragment=fragment: self._build(fragment, authority),  # type: ignore[misc]
                self.precise,
                self.troubles.append,
            )
            self.replicas[fragment.name] = replica
            replica.start(_mortal_thread)
        self._beats.start()

    def _build(self, fragment: Any, given: SeatAuthority) -> FragmentRun:
        authority = MortalAuthority(given.member, given.place, given.fragment, given.precise)
        self._authorities.append(authority)
        upstream = {other.name for other in open_cuts(self.pipeline, self.meta).fragments} - {fragment.name}
        return FragmentRun(
            fragment.pipeline,
            InProcessPlatform() if self.spark is None else SparkPlatform(self.spark),
            replace(self.options, host=self.name, until_idle=bool(fragment.reads)),
            authority=authority,
            observer=watching(
                epoch_committed=lambda report: self.committed.append(report.epoch),
                took_over=lambda fragment, replayed: self.takeovers.append(replayed),
            ),
            upstream_ended=lambda: not fragment.reads or all(self._ended(name) for name in upstream),
        )

    def _ended(self, fragment: str) -> bool:
        agreed = self.member.serve(fragment).agreed
        return agreed is not None and agreed.ended

    def _beat(self) -> None:
        while self.alive:
            self.member.beat()
            time.sleep(self.member.timing.beat)

    def role(self, fragment: str) -> Role:
        return self.member.serve(fragment).role

    def kill(self) -> None:
        self.alive = False
        for authority in self._authorities:
            authority.killed = True

    def lose(self) -> None:
        """Kill it, and lose what only it had."""
        self.kill()
        place = self.options.volatile
        assert place is not None
        while (place / f"host-{self.name}").exists():  # tasks that it has left may still be writing
            shutil.rmtree(place / f"host-{self.name}", ignore_errors=True)

    def close(self) -> None:
        for replica in self.replicas.values():
            replica.stop()
        self.alive = False
        for replica in self.replicas.values():
            replica.join(20.0)


@dataclass
class Pair:
    """Two hosts of one pipeline."""

    hosts: dict[str, TestHost]
    agreement: Agreement
    fragments: list[str]

    def look(self, fragment: str | None = None) -> Agreed:
        name = fragment or self.fragments[-1]
        return self.agreement.look([name])[name]

    def primary(self) -> TestHost:
        found: list[str] = []

        def seated() -> bool:
            seat = self.look().seats.primary
            found[:] = [] if seat is None else [seat.host]
            return seat is not None

        self.until(seated, "a primary")
        return self.hosts[found[0]]

    def secondary(self) -> TestHost:
        [other] = [host for host in self.hosts.values() if host is not self.primary()]
        return other

    def ready(self) -> bool:
        """Whether the secondaries are what the scheme says."""
        for name in self.fragments:
            seats = self.look(name).seats
            member = None if seats.secondary is None else seats.members.get(seats.secondary.host)
            if not self.look(name).ended and (member is None or member.ready is not seats.scheme):
                return False
        return True

    def epoch(self, fragment: str | None = None) -> int:
        return next(iter(self.hosts.values())).meta.last_epoch(fragment or self.fragments[-1])

    def until(self, condition: Callable[[], bool], what: str = "") -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            troubles = {name: host.troubles for name, host in self.hosts.items()}
            assert time.monotonic() < deadline, f"{what} did not happen: {self.look()}, {troubles}"
            time.sleep(0.01)

    def until_end(self) -> None:
        self.until(lambda: all(self.look(name).ended for name in self.fragments), "the end")
        for name in self.fragments:
            assert self.look(name).notes.failed is None, self.look(name).notes


@contextmanager
def pair(
    build: Build,
    spark: SparkSession | None,
    place: Path,
    scheme: Scheme,
    *,
    precise: bool = True,
    late: int = 0,
    **options: Any,
) -> Iterator[Pair]:
    """Without Spark their tasks run in this process. With `late` the second host is started when the first one has
    committed so many epochs."""
    settings = RunOptions(
        store=place / "store", durable=False, tasks=1, partitions=1, overlap=False,
        volatile=place / "volatile", **options,
    )  # fmt: skip
    pipeline = build(hf.sink.parquet(place / "out"))
    hosts = {
        name: TestHost(name, build(hf.sink.parquet(place / "out")), spark, settings, precise) for name in ("one", "two")
    }
    agreement = hosts["one"].member.agreement
    fragments = [fragment.name for fragment in open_cuts(pipeline, hosts["one"].meta).fragments]
    for fragment in fragments:
        agreement.open(fragment, scheme)
    made = Pair(hosts, agreement, fragments)
    try:
        hosts["one"].start()
        made.until(lambda: made.look().seats.primary is not None and made.epoch() >= late)
        hosts["two"].start()
        yield made
    finally:
        for host in hosts.values():
            host.close()
        for host in hosts.values():
            host.meta.close()
