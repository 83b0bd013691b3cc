"""A program and all that it starts, as one thing that can be killed.

The program is the leader of a session of its own. What it starts (Java, executors, Python workers) stays in that
session, whoever its parent is by then, and nothing outside of the session is ever signalled.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

__all__ = ["ProcessSession", "kill"]

_SECONDS_TO_DIE = 10.0


class ProcessSession:
    """Starts `command`; what it prints is appended to the file `log`."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str], directory: Path | None = None
    ) -> None:
        with log.open("ab") as printed:
            self._leader = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                env=environment,
                cwd=directory,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._leader.pid

    def exit_code(self) -> int | None:
        """Of the program; None while it runs."""
        return self._leader.poll()

    def members(self) -> Iterator[psutil.Process]:
        """The living processes of the session."""
        for pid in psutil.pids():
            with contextlib.suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
                if os.getsid(pid) == self.pid:
                    process = psutil.Process(pid)
                    if process.status() != psutil.STATUS_ZOMBIE:
                        yield process

    def kill(self) -> None:
        """kill -9 of all of them, also of those that are started meanwhile; returns when they are gone."""
        deadline = time.monotonic() + _SECONDS_TO_DIE
        while left := list(self.members()):
            for process in left:
                kill(process)
            if time.monotonic() > deadline:
                break
            time.sleep(0.005)
        # Reaped last: while the leader is a zombie, nobody else can get its number.
        self._leader.wait()


def kill(process: psutil.Process) -> bool:
    """kill -9 of one process; False if it is gone already."""
    try:
        process.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        return False
    return True
