"""Whether a pipeline or a host is running: one rule, in one place, that everybody asks."""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import holdfast
from holdfast.meta import MetaStore
from holdfast.meta.lease_holder import is_dead, pid_here, this_process
from holdfast.replica.process_file import host_pid, process_file, running_hosts
from holdfast.replica.schemes.active_standby import ACTIVE_STANDBY
from holdfast.replica.seat_store import Agreement
from holdfast.replica.seats import Beat, Enlist, Resign, Seize
from holdfast.ui.pipeline_status import read_status

ROOT = Path(holdfast.__file__).parent
ELSEWHERE = "another-host:7:1.00"
HOST = socket.gethostname()


@pytest.fixture
def meta(tmp_path: Path) -> Iterator[MetaStore]:
    made = MetaStore(tmp_path, sync=False)
    yield made
    made.close()


def owner(pid: int, started: float) -> str:
    return f"{HOST}:{pid}:{started:.2f}"


def test_who_is_dead() -> None:
    me = psutil.Process()
    assert not is_dead(owner(me.pid, me.create_time()))
    assert is_dead(owner(me.pid, me.create_time() - 3600)), "the number went to another process"
    assert not is_dead(f"another-host:{me.pid}:1.00"), "of other machines we know nothing"
    child = subprocess.Popen([sys.executable, "-c", ""])
    name = owner(child.pid, psutil.Process(child.pid).create_time())
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_dead(name), "a zombie"
    child.wait()
    assert is_dead(name)


def test_a_process_of_another_machine_has_no_pid_here() -> None:
    me = psutil.Process()
    assert pid_here(owner(me.pid, me.create_time())) == me.pid
    assert pid_here(owner(me.pid, me.create_time() - 3600)) is None
    assert pid_here(f"another-host:{me.pid}:{me.create_time():.2f}") is None


@pytest.mark.parametrize("step", [-2.0, 2.0])
def test_a_clock_that_was_set_does_not_kill_a_living_owner(step: float) -> None:
    me = psutil.Process()
    assert not is_dead(owner(me.pid, me.create_time() + step))


# A pipeline


def assert_running(meta: MetaStore, now: float, runner: str | None) -> None:
    """What the store says, and with it `holdfast status` and the dashboard."""
    found = meta.runner_of("p", now)
    assert (None if found is None else found.owner) == runner
    status = read_status(meta, "p", now)
    assert (status.running, status.owner) == (runner is not None, runner)


def test_a_pipeline_that_nobody_has_started_does_not_run(meta: MetaStore) -> None:
    assert_running(meta, 100.0, None)


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_whoever_holds_the_lease_runs_the_pipeline_until_it_expires(meta: MetaStore, where: str) -> None:
    """A process whose clock stands still, because it is stopped or its machine sleeps, does not renew its lease."""
    me = this_process() if where == "here" else ELSEWHERE
    lease = meta.acquire("p", me, now=100.0, seconds=30.0)
    assert_running(meta, 129.9, me)
    assert_running(meta, 130.0, None)
    meta.renew(lease, 150.0, 30.0)
    assert_running(meta, 170.0, me)


def test_a_lease_that_was_given_back_is_held_by_nobody(meta: MetaStore) -> None:
    meta.release(meta.acquire("p", this_process(), now=100.0, seconds=30.0))
    assert_running(meta, 101.0, None)


def test_a_dead_process_of_this_machine_runs_nothing_though_its_lease_holds(meta: MetaStore) -> None:
    meta.acquire("p", owner(os.getpid(), 1.0), now=100.0, seconds=30.0)
    assert_running(meta, 101.0, None)


def test_of_a_process_on_another_machine_only_the_lease_is_known(meta: MetaStore) -> None:
    meta.acquire("p", ELSEWHERE, now=100.0, seconds=30.0)
    assert_running(meta, 101.0, ELSEWHERE)


def test_a_clock_that_was_set_back_ends_no_run(meta: MetaStore) -> None:
    meta.acquire("p", ELSEWHERE, now=5_000.0, seconds=30.0)
    assert_running(meta, 100.0, ELSEWHERE)


# Hosts


def test_hosts_run_a_fragment_while_somebody_is_in_the_first_seat(meta: MetaStore) -> None:
    now = [100.0]
    agreement = Agreement(meta, this_process(), lambda: now[0])
    agreement.open("p", ACTIVE_STANDBY)
    assert_running(meta, now[0], None)
    agreement.ask({"p": [Beat("a", 1, 0, None), Beat("b", 1, 0, None)]})
    assert_running(meta, now[0], None)
    agreement.ask({"p": [Seize("a", 1, None, None), Enlist("b", 1, None, None)]})
    assert_running(meta, now[0], this_process())
    now[0] += 1_000.0
    assert_running(meta, now[0], None)
    agreement.ask({"p": [Beat("b", 1, 0, None)]})
    assert_running(meta, now[0], None)
    agreed = agreement.ask({"p": [Beat("a", 1, 0, None)]})
    assert_running(meta, now[0], this_process())
    seat = agreed["p"].seats.primary
    assert seat is not None
    agreement.ask({"p": [Resign(seat.token)]})
    assert_running(meta, now[0], None)


def test_a_host_does_not_take_a_fragment_that_a_process_runs_alone(meta: MetaStore) -> None:
    agreement = Agreement(meta, this_process(), lambda: 101.0)
    agreement.open("p", ACTIVE_STANDBY)
    lease = meta.acquire("p", ELSEWHERE, now=100.0, seconds=30.0)
    assert agreement.ask({"p": [Beat("a", 1, 0, None), Seize("a", 1, None, None)]})["p"].seats.primary is None
    assert_running(meta, 101.0, ELSEWHERE)
    meta.release(lease)
    assert agreement.ask({"p": [Beat("a", 1, 0, None), Seize("a", 1, None, None)]})["p"].seats.primary is not None


def test_a_host_runs_as_long_as_the_process_that_it_has_written_down(tmp_path: Path) -> None:
    written = {"here": this_process(), "dead": owner(os.getpid(), 1.0), "elsewhere": ELSEWHERE, "starting": ""}
    (tmp_path / "hosts").mkdir()
    for host, process in written.items():
        process_file(tmp_path, host).write_text(process)
    assert running_hosts(tmp_path) == {"here": this_process(), "elsewhere": ELSEWHERE}
    assert {host: host_pid(tmp_path, host) for host in (*written, "unknown")} == {
        "here": os.getpid(), "dead": None, "elsewhere": None, "starting": None, "unknown": None,
    }  # fmt: skip


# Nobody else decides it.

_TAKES_OVER = {"engine/lease.py", "replica/process_file.py", "replica/shadow_report.py"}
"""Who asks for a process: a start that need not wait for the lease of a dead one, the files of hosts, and a shadow's
report, which names its process."""


def test_no_other_module_decides_whether_something_runs() -> None:
    found: dict[str, set[str]] = {"is_dead": set(), "expires": set()}
    for path in sorted(ROOT.rglob("*.py")):
        where = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Name | ast.Attribute):
                name = node.id if isinstance(node, ast.Name) else node.attr
                compares = name == "is_dead"
            elif isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                name, compares = "expires", any(isinstance(s, ast.Attribute) and s.attr == "expires" for s in sides)
            else:
                continue
            if compares:
                found[name].add(where)
    assert found["is_dead"] == {"meta/lease_holder.py", *_TAKES_OVER}
    # The transaction that takes a lease looks at what it has locked.
    assert found["expires"] == {"meta/lease_holder.py", "meta/leases.py"}
