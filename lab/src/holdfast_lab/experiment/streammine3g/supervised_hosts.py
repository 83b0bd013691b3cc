"""Real hosts for experiments: two processes under a supervisor, killed on purpose, and what they tell.

The supervisor is that of `holdfast up`, in a thread. Hosts append what happens to files of JSON lines, which outlive
them; `FragmentTimeline` is made of these alone, so that it can be tested without a process.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from holdfast.cli.pipeline_file import load_pipeline
from holdfast.engine.options import RunOptions
from holdfast.epoch.record_change import record_of
from holdfast.errors import EpochFailedError
from holdfast.meta import MetaStore
from holdfast.meta.lease_holder import this_process
from holdfast.replica.deployment import deploy, deployment_of
from holdfast.replica.scheme_change import is_reached, turn_to
from holdfast.replica.schemes import Scheme
from holdfast.replica.seat_store import Agreed, Agreement
from holdfast.replica.supervisor import HostProcess, Supervisor
from holdfast.store import default_volatile
from holdfast_lab.chaos.run_events import events_since

__all__ = [
    "FragmentTimeline",
    "HostUsage",
    "SupervisedHosts",
    "SupervisedSettings",
    "ToldTakeover",
    "supervised",
    "usages",
]

_POLL = 0.05
_PATIENCE = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedSettings:
    """`scheme` None leaves it to the controller, which takes a slower one after `calm` seconds of safety."""

    pipeline: Path
    work: Path
    scheme: Scheme | None
    checkpoint: str
    detection: float
    beat: float = 0.25
    calm: float | None = None


@dataclass(frozen=True, slots=True)
class ToldTakeover:
    """`seconds` is the recovery, from when the failure was noticed; it ended `at`."""

    host: str
    scheme: str
    at: float
    seconds: float
    replayed: int


@dataclass(slots=True)
class FragmentTimeline:
    """What hosts told of one fragment, in the order of the clock they share."""

    commits: list[float] = field(default_factory=list)
    epochs: list[tuple[float, float]] = field(default_factory=list)
    """When each was committed, and how long it took."""
    takeovers: list[ToldTakeover] = field(default_factory=list)

    def add(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "commit":
            self.commits.append(event["committed"])
            self.commits.sort()
            self.epochs.append((event["committed"], event["committed"] - event["started"]))
        elif event["event"] == "takeover":
            facts = (event[name] for name in ("host", "scheme", "at", "seconds", "replayed"))
            self.takeovers.append(ToldTakeover(*facts))

    def usual(self, before: float, within: float = 15.0) -> float | None:
        """The median time between two commits in the last seconds before a moment."""
        seen = [at for at in self.commits if before - within <= at <= before]
        gaps = [later - earlier for earlier, later in pairwise(seen)]
        return median(gaps) if gaps else None

    def epoch(self, before: float, within: float = 15.0) -> float | None:
        """The median time that an epoch took in the last seconds before a moment."""
        seen = [took for at, took in self.epochs if before - within <= at <= before]
        return median(seen) if seen else None

    def gap(self, killed: float, until: float) -> float | None:
        """The longest time between two commits from the last before a kill to the moment `until`."""
        before = [at for at in self.commits if at <= killed]
        after = [at for at in self.commits if killed < at <= until]
        if not before or not after:
            return None
        seen = [before[-1], *after]
        return max(later - earlier for earlier, later in pairwise(seen))

    def takeover_after(self, killed: float) -> ToldTakeover | None:
        return next((takeover for takeover in self.takeovers if takeover.at > killed), None)

    def commits_after(self, moment: float) -> int:
        return sum(at > moment for at in self.commits)


@dataclass(frozen=True, slots=True)
class HostUsage:
    """What a host takes by the second, with all processes it has started: CPUs, bytes of memory, bytes read and
    written by system calls, and bytes that went to a disk."""

    cpus: float = 0.0
    memory: float = 0.0
    read: float = 0.0
    written: float = 0.0
    to_disk: float = 0.0


@dataclass(slots=True)
class SupervisedHosts:
    """Two hosts of one pipeline of one fragment."""

    fragment: str
    agreement: Agreement
    hosts: dict[str, HostProcess]
    events: Path
    volatile: Path
    meta: MetaStore
    store: Path
    tale: FragmentTimeline = field(default_factory=FragmentTimeline)
    _read: dict[str, int] = field(default_factory=dict)

    def look(self) -> Agreed:
        return self.agreement.look([self.fragment])[self.fragment]

    def primary(self) -> HostProcess:
        seat = self.look().seats.primary
        if seat is None:
            raise EpochFailedError("there is no primary", cure="run it again; the machine may be too busy")
        return self.hosts[seat.host]

    def secondary(self) -> HostProcess:
        first = self.primary()
        return next(host for host in self.hosts.values() if host is not first)

    def turn(self, scheme: Scheme) -> None:
        turn_to(self.agreement, self.fragment, scheme)

    def hear(self) -> FragmentTimeline:
        """All that was told until now."""
        for path in self.events.glob("*.events"):
            found, self._read[path.name] = events_since(path, self._read.get(path.name, 0))
            for event in found:
                self.tale.add(event)
        return self.tale

    def until(self, condition: Callable[[], bool], what: str, *, often: bool = False) -> None:
        patience = _PATIENCE
        deadline = time.monotonic() + patience
        while not condition():
            if time.monotonic() > deadline:
                raise EpochFailedError(
                    f"{what} has not happened within {patience:.0f} s: {self.look()}\n{self._log()}",
                    cure="run it again; the machine may be too busy",
                )
            time.sleep(_POLL / 5 if often else _POLL)

    def settled(self, scheme: Scheme) -> bool:
        """Whether the secondary is what the scheme says, and no more than that."""
        if self.look().seats.primary is None or not is_reached(self.agreement, [self.fragment], scheme):
            return False
        return scheme.needs_secondary or self.secondary().pid() is None

    def kill_primary(self) -> float:
        """kill -9 of the primary with all it has started, and the loss of its memory; when. Like a machine that failed
        it does not come back by itself: `bring_back` says when."""
        host = self.primary()
        host.not_before = math.inf
        at = time.time()
        host.kill()
        shutil.rmtree(self.volatile / f"host-{host.name}", ignore_errors=True)
        _let_go_of(self.store / self.fragment / "state")
        return at

    def bring_back(self) -> None:
        for host in self.hosts.values():
            host.not_before = 0.0

    def behind(self) -> int | None:
        """How many epochs the last checkpoint is behind, while an epoch is in flight; None while none is."""
        commits, planned = self.meta.history(self.fragment)
        if not planned or not commits:
            return None
        base = record_of(commits[0]).base
        return 0 if base is None else commits[0].epoch - base.epoch

    def _log(self) -> str:
        lines = []
        for name, host in self.hosts.items():
            path = host.store / "hosts" / f"{name}.log"
            if path.exists():
                lines += [f"  {name}: {line}" for line in path.read_text(errors="replace").splitlines()[-6:]]
        return "\n".join(lines)


def _let_go_of(place: Path) -> None:
    """Have the files in a directory read from the disk the next time. What one host has written lies in the memory of
    its machine, and the other one has none of it: that both are one machine here must not make a difference."""
    for path in place.rglob("*"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def usages(hosts: Sequence[HostProcess], seconds: float) -> list[HostUsage]:
    """Watch hosts for a while; one that has no process takes nothing."""
    began = [(time.monotonic(), _reading(host)) for host in hosts]
    time.sleep(seconds)
    return [_usage(*early, time.monotonic(), _reading(host)) for early, host in zip(began, hosts, strict=True)]


def _usage(began: float, before: Sequence[float], ended: float, after: Sequence[float]) -> HostUsage:
    grown = [max(0.0, late - early) / (ended - began) for early, late in zip(before[1:], after[1:], strict=True)]
    return HostUsage(grown[0], (before[0] + after[0]) / 2, *grown[1:])


def _reading(host: HostProcess) -> tuple[float, float, float, float, float]:
    """Memory, CPU seconds, bytes read, written, and written to a disk, of the whole tree."""
    pid = host.pid()
    found = [0.0] * 5
    if pid is None:
        return (0.0, 0.0, 0.0, 0.0, 0.0)
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                times, moved = process.cpu_times(), process.io_counters()
                # Children that have ended are in the times of who has waited for them.
                spent = times.user + times.system + times.children_user + times.children_system
                memory = getattr(process.memory_full_info(), "pss", process.memory_info().rss)
                chars = getattr(moved, "read_chars", moved.read_bytes), getattr(moved, "write_chars", moved.write_bytes)
                for place, value in enumerate((memory, spent, *chars, moved.write_bytes)):
                    found[place] += value
    return (found[0], found[1], found[2], found[3], found[4])


@contextlib.contextmanager
def supervised(asked: SupervisedSettings, tell: Callable[[str], None]) -> Iterator[SupervisedHosts]:
    """Hosts that are started, started again when they are killed, and ended with the block, whatever happens."""
    pipeline = load_pipeline(str(asked.pipeline))
    store, events = asked.work / "store", asked.work / "events"
    names = ("a", "b")
    meta = MetaStore(store, sync=True)
    try:
        options = RunOptions(store=store)
        target = str(asked.pipeline)
        deployment = deployment_of(pipeline, target, options, meta, asked.scheme, asked.checkpoint, names, asked.calm)
        agreement = Agreement(meta, this_process(), time.time)
        deploy(deployment, agreement, meta)
        [fragment] = deployment.fragments
        with _temporary(asked.work / "t"), _in_memory() as volatile:
            arguments = [
                "--store", str(store), "--volatile", str(volatile),
                "--beat", str(asked.beat), "--detection", str(asked.detection),
            ]  # fmt: skip
            hosts = {
                name: HostProcess(name, store, [*arguments, "--events", str(events / f"{name}.events")])
                for name in names
            }
            supervisor = Supervisor(deployment, agreement, hosts, asked.detection, tell)
            thread = threading.Thread(target=supervisor.run, name="supervisor", daemon=True)
            thread.start()
            try:
                yield SupervisedHosts(fragment, agreement, hosts, events, volatile, meta, store)
            finally:
                supervisor.stop()
                _kill(hosts.values())
                thread.join()
                _kill(hosts.values())  # one may have been started meanwhile
    finally:
        meta.close()


def _kill(hosts: Iterable[HostProcess]) -> None:
    for host in hosts:
        host.not_before = math.inf
        host.kill()


@contextlib.contextmanager
def _in_memory() -> Iterator[Path]:
    """A place for the memory of the hosts, of which each has a directory."""
    base = default_volatile()
    base.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="experiment-", dir=base))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def _temporary(place: Path) -> Iterator[None]:
    """What processes that are killed leave in the directory for temporary files goes with the experiment's own."""
    place.mkdir(parents=True, exist_ok=True)
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(place)
    try:
        yield
    finally:
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before
