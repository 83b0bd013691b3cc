"""Starts the hosts of a pipeline, and restarts them when they end: on this machine as processes.

Hosts also run without a supervisor. One that is started later finds the live hosts by what they have written about
themselves in the store, and supervises them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil
from sqlalchemy.exc import SQLAlchemyError

from holdfast.errors import HoldfastError
from holdfast.replica.deployment import Deployment
from holdfast.replica.host_log import log_file, rotate
from holdfast.replica.process_file import host_pid
from holdfast.replica.seat_store import Agreed, Agreement
from holdfast.replica.supervision import Watch, supervise
from holdfast.threads import SYSTEM, Clock

__all__ = ["HostProcess", "SupervisedHost", "Supervisor", "described"]

_LOOK_SECONDS = 0.2
_SECONDS_TO_END = 90.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_LIVED_WELL = 20.0


class SupervisedHost(Protocol):
    """What a supervisor asks of a host: a process of this machine, or one that is simulated."""

    def pid(self) -> int | None:
        """Of its process, if it lives."""

    def may_start(self) -> bool:
        """Whether it may be started now."""

    def start(self) -> None: ...

    def rotate_log(self) -> None: ...

    def terminate(self) -> None:
        """Ask it to end."""

    def wait(self, seconds: float) -> bool:
        """Whether it has ended within that time."""

    def kill(self) -> None: ...


@dataclass(slots=True)
class HostProcess:
    """A host of this machine: a process that was started here, or found."""

    name: str
    store: Path
    arguments: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What is not for everybody's eyes, as arguments are."""
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    pause: float = _FIRST_PAUSE
    not_before: float = 0.0

    def pid(self) -> int | None:
        """Of the process, if it lives on this machine."""
        if self.process is not None:
            return self.process.pid if self.process.poll() is None else None
        return host_pid(self.store, self.name)

    def may_start(self) -> bool:
        """One that ends again and again is started less and less often."""
        return time.monotonic() >= self.not_before

    def start(self) -> None:
        """In a session of its own: what is typed at the terminal of the supervisor is for the supervisor."""
        path = log_file(self.store, self.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", "host", self.name, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self.variables},
            )
        now = time.monotonic()
        self.pause = _FIRST_PAUSE if now - self.started > _LIVED_WELL else min(2 * self.pause, _LONGEST_PAUSE)
        self.started, self.not_before = now, now + self.pause

    def rotate_log(self) -> None:
        with contextlib.suppress(OSError):  # a full disk must not stop anything
            rotate(log_file(self.store, self.name))

    def terminate(self) -> None:
        pid = self.pid()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def wait(self, seconds: float) -> bool:
        """Whether it has ended within that time."""
        deadline = time.monotonic() + seconds
        while self.pid() is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def kill(self) -> None:
        """kill -9 of the process and all that it has started."""
        pid = self.pid()
        if pid is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(pid).children(recursive=True)
            for process in [psutil.Process(pid), *children]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        if self.process is not None:
            self.process.wait()


@dataclass(slots=True)
class Supervisor:
    """Keeps the hosts of one deployment running until all its fragments have ended. `tell` takes lines for the
    terminal. It looks every `pause` seconds."""

    deployment: Deployment
    agreement: Agreement
    hosts: Mapping[str, SupervisedHost]
    detection: float
    tell: Callable[[str], None]
    on_look: Callable[[Deployment, float], Deployment] | None = None
    """May change the deployment."""
    clock: Clock = SYSTEM
    pause: float = _LOOK_SECONDS
    stopping: bool = False
    agreed: dict[str, Agreed] = field(default_factory=dict)
    _watches: dict[str, Watch] = field(default_factory=dict)
    _said: dict[str, str] = field(default_factory=dict)

    def run(self) -> dict[str, str]:
        """Until the end, or `stop`. Returns what went wrong, by fragment."""
        try:
            while not self.stopping and not self._ended():
                self._look()
                self._start_missing()
                for host in self.hosts.values():
                    host.rotate_log()
                self._plan()
                self.clock.sleep(self.pause)
        finally:
            self._end_hosts()
        return {name: why for name, agreed in self.agreed.items() if (why := agreed.notes.failed) is not None}

    def stop(self) -> None:
        self.stopping = True

    def _ended(self) -> bool:
        return bool(self.agreed) and all(agreed.ended for agreed in self.agreed.values())

    def _look(self) -> None:
        try:
            self.agreed = self.agreement.look(list(self.deployment.fragments))
        except (SQLAlchemyError, HoldfastError) as error:
            self._say("store", f"the meta store does not answer: {error}")
            return
        self._said.pop("store", None)
        for name, agreed in self.agreed.items():
            watch = self._watches.setdefault(name, Watch())
            watch.look(agreed.seats.primary, agreed.seats, self.clock.monotonic(), 2 * self.pause)
            self._say(name, f"{name}: {described(agreed)}")

    def _start_missing(self) -> None:
        running = tuple(name for name, host in self.hosts.items() if host.pid() is not None)
        wanted: set[str] = set()
        for name in self.deployment.fragments:
            agreed = self.agreed.get(name)
            seats = None if agreed is None else agreed.seats
            watch = self._watches.get(name, Watch())
            wanted |= set(supervise(seats, watch, self.detection, tuple(self.hosts), running))
        for name in sorted(wanted):
            if self.hosts[name].may_start():
                self.hosts[name].start()
                self.tell(f"host {name} was started")

    def _plan(self) -> None:
        if self.on_look is not None:
            with contextlib.suppress(SQLAlchemyError, HoldfastError, OSError):  # the store is away: later, then
                self.deployment = self.on_look(self.deployment, self.clock.monotonic())

    def _say(self, key: str, text: str) -> None:
        if self._said.get(key) != text:
            self._said[key] = text
            self.tell(text)

    def _end_hosts(self) -> None:
        for host in self.hosts.values():
            host.terminate()
        for name, host in self.hosts.items():
            if not host.wait(_SECONDS_TO_END):
                self.tell(f"host {name} did not end and was killed")
                host.kill()


def described(agreed: Agreed) -> str:
    """The seats of a fragment, in words."""
    if agreed.ended:
        return "ended" if agreed.notes.failed is None else f"failed: {agreed.notes.failed}"
    seats = agreed.seats
    first = "no primary" if seats.primary is None else f"{seats.primary.host} is the primary"
    if seats.secondary is None:
        second = "no secondary"
    else:
        second = f"{seats.secondary.host} is the secondary{'' if seats.secondary_ready else ', getting ready'}"
    diverged = agreed.notes.diverged
    odd = f"; stopped: {diverged.host}, whose output of epoch {diverged.epoch} differs" if diverged else ""
    return f"{seats.scheme.name}: {first}, {second}{odd}"
