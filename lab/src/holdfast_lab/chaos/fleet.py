"""The processes of `holdfast up` as chaos sees them: the supervisor, and the hosts with all that they have started.

Every process that is started here inherits a mark in its environment. By this mark they are found, whoever their
parent is by then, and nothing without it is ever signalled. A host is the leader of a session of its own; its Java
process and its workers stay in that session.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import psutil

from holdfast.errors import EpochFailedError
from holdfast_lab.chaos import hosted_pipeline
from holdfast_lab.chaos.victim import VictimSettings
from holdfast_lab.chaos.victim_process import is_worker

__all__ = ["Fleet"]

_MARK = "HOLDFAST_CHAOS_MARK"
_SECONDS_TO_DIE = 15.0
_LOG_LINES = 25
_BYTES_WHEN_FULL = 64


class Fleet:
    """One deployment: `arguments` are those of `holdfast up` beside the pipeline, the store and the volatile tier. The
    pipeline is the one of the settings, or that of another file."""

    def __init__(
        self,
        settings: VictimSettings,
        volatile: Path,
        temporary: Path,
        arguments: Sequence[str],
        target: str = f"{Path(hosted_pipeline.__file__).resolve()}:build",
    ) -> None:
        self.settings = settings
        self._target = target
        self.volatile = volatile
        self._arguments = list(arguments)
        self._mark = uuid.uuid4().hex
        self._temporary = temporary
        self._log = Path(settings.home) / "up.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._said = 0
        for place in (Path(settings.home), temporary, volatile):
            place.mkdir(parents=True, exist_ok=True)

    def start(self, scheme: str | None) -> None:
        """Start the supervisor, which starts the hosts that do not live. Without a scheme the controller chooses."""
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")},
            "TMPDIR": str(self._temporary),
            hosted_pipeline.SETTINGS: self.settings.to_json(),
            _MARK: self._mark,
        }
        command = [sys.executable, "-m", "holdfast", "up", self._target, "--store", str(self.settings.store)]
        command += ["--volatile", str(self.volatile), *([] if scheme is None else ["--scheme", scheme])]
        command += self._arguments
        with self._log.open("ab") as log:
            self._said = log.tell()
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def ended(self) -> bool:
        """Whether the supervisor has ended well; an error if it has ended by itself and badly."""
        if self._process is None or (code := self._process.poll()) is None:
            return False
        if code != 0:
            raise EpochFailedError(
                f"the hosts were given up, with code {code}:\n{self.log_tail()}",
                cure="a fault was not survived; run again with the same seed, and see the log above",
            )
        return True

    def looks_after(self) -> bool:
        """Whether the supervisor has found the hosts: then it says how they are."""
        return self._log.stat().st_size > self._said

    def kill_supervisor(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    # hosts

    def running(self) -> list[str]:
        """The names of the hosts that live, also while they start."""
        return sorted(self._leaders())

    def kill(self, hosts: Sequence[str], *, lose: bool) -> list[str]:
        """kill -9 of hosts with their Java and workers, all at the same time; with `lose` what only they had goes, too.
        Returns those that lived."""
        leaders = self._leaders()
        sessions = {leaders[name].pid for name in hosts if name in leaders}
        deadline = time.monotonic() + _SECONDS_TO_DIE
        while (left := list(self._members(sessions))) and time.monotonic() < deadline:
            for process in left:
                _send(process, signal.SIGKILL)
            time.sleep(0.005)
        for name in hosts if lose else ():
            shutil.rmtree(self.volatile / f"host-{name}", ignore_errors=True)
        return [name for name in hosts if name in leaders]

    def kill_one(self, host: str, kind: Literal["java", "worker"], pick: float) -> bool:
        """kill -9 of one of a host's processes; False if there is none now."""
        leader = self._leaders().get(host)
        found = [] if leader is None else sorted(self._members({leader.pid}), key=lambda process: process.pid)
        with contextlib.suppress(psutil.NoSuchProcess):
            found = [
                process for process in found if (is_worker(process) if kind == "worker" else process.name() == "java")
            ]
        if found:
            _send(found[int(pick * len(found))], signal.SIGKILL)
        return bool(found)

    def signal(self, host: str, number: signal.Signals) -> bool:
        """Send a signal to every process of a host, its leader first."""
        leader = self._leaders().get(host)
        if leader is None:
            return False
        for process in sorted(self._members({leader.pid}), key=lambda member: member.pid != leader.pid):
            _send(process, number)
        return True

    def limit(self, hosts: Sequence[str], *, full: bool) -> list[str]:
        """Have the kernel refuse what the processes of hosts write to files, as a used up quota does, or no longer.
        Returns the hosts it was done to."""
        leaders = self._leaders()
        done = [name for name in hosts if name in leaders]
        for name in done:
            for _ in range(2):  # again for those that were started meanwhile
                for process in self._members({leaders[name].pid}):
                    with contextlib.suppress(psutil.Error, OSError):
                        _, hard = process.rlimit(psutil.RLIMIT_FSIZE)
                        process.rlimit(psutil.RLIMIT_FSIZE, (_BYTES_WHEN_FULL if full else hard, hard))
        return done

    def _leaders(self) -> dict[str, psutil.Process]:
        """The first process of each host, by its name; the newest if there are two."""
        found: dict[str, psutil.Process] = {}
        for process in self._marked():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                words = process.cmdline()
                if "host" in words[:5] and os.getsid(process.pid) == process.pid:
                    name = words[words.index("host") + 1]
                    if name not in found or found[name].create_time() < process.create_time():
                        found[name] = process
        return found

    def _members(self, sessions: set[int]) -> Iterator[psutil.Process]:
        """The living processes of sessions."""
        for process in self._marked():
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(process.pid) in sessions:
                    yield process

    def _marked(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError, PermissionError):
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(_MARK) == self._mark:
                    yield process

    # the end

    def log_tail(self) -> str:
        """The end of what the supervisor and the hosts have printed."""
        lines = []
        for path in (self._log, *sorted((self.settings.store / "hosts").glob("*.log"))):
            if path.exists():
                said = path.read_text(errors="replace").splitlines()
                lines += [f"  {path.name}: {line}" for line in said[-_LOG_LINES:]]
        return "\n".join(lines)

    def kill_all(self) -> None:
        """Leave nothing behind: neither processes nor what is in memory."""
        self.kill_supervisor()
        deadline = time.monotonic() + _SECONDS_TO_DIE
        while (left := list(self._marked())) and time.monotonic() < deadline:
            for process in left:
                _send(process, signal.SIGKILL)
            time.sleep(0.02)
        shutil.rmtree(self.volatile, ignore_errors=True)


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
        process.send_signal(number)
