"""What chaos does to single processes: connections are cut, packets are dropped, memory is refused."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from holdfast_lab.chaos.fellow_connections import cut_between, make_unreachable
from holdfast_lab.chaos.victim_process import take_memory

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")

FELLOW = """
import socket, sys
door = socket.create_server(("127.0.0.1", 0))
print(door.getsockname()[1], flush=True)
link, _ = door.accept()
print(link.recv(1).decode(), flush=True)
sys.stdin.readline()
try:
    print("got", len(link.recv(1)), flush=True)
except OSError as error:
    print(error, flush=True)
"""


@contextlib.contextmanager
def fellow(program: str = FELLOW) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@contextlib.contextmanager
def connected() -> Iterator[tuple[subprocess.Popen[str], socket.socket, int]]:
    with fellow() as other:
        port = int(line(other))
        with socket.create_connection(("127.0.0.1", port), timeout=5) as link:
            link.sendall(b"a")
            assert line(other) == "a"
            yield other, link, port


def test_both_ends_of_a_connection_that_is_cut_find_it_closed() -> None:
    with connected() as (other, link, _):
        assert cut_between([os.getpid(), other.pid], 0.0)
        assert link.recv(1) == b""
        assert other.stdin is not None
        other.stdin.write("\n")
        assert line(other) == "got 0"


def test_who_is_unreachable_gets_nothing_and_is_told_nothing() -> None:
    with connected() as (other, link, port):
        pids = sorted([os.getpid(), other.pid])
        assert make_unreachable(pids, 0.5 * pids.index(other.pid))
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 300)
        link.sendall(b"b")  # into the void
        with pytest.raises(TimeoutError):
            link.recv(1)
        with pytest.raises(TimeoutError):
            socket.create_connection(("127.0.0.1", port), timeout=0.3)
        assert psutil.pid_exists(other.pid)


def test_who_has_no_fellow_cannot_be_cut_off() -> None:
    with fellow("input()") as other:
        assert not cut_between([other.pid], 0.0)
        assert not make_unreachable([other.pid], 0.0)


def test_a_process_whose_memory_is_taken_gets_no_more() -> None:
    program = """
print("here", flush=True)
input()
try:
    bytearray(200_000_000)
except MemoryError:
    print("no memory", flush=True)
"""
    with fellow(program) as other:
        assert line(other) == "here"
        assert take_memory(psutil.Process(other.pid))
        assert other.stdin is not None
        other.stdin.write("\n")
        assert line(other) == "no memory"
