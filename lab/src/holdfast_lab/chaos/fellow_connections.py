"""Breaking the network between two processes on this machine: a connection is cut, or all packets to one are dropped.

After a cut both find their connection closed, and neither knows what of the other has arrived. Where packets are
dropped nobody is told anything: what was sent is never acknowledged, and nobody answers who is called.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Iterable, Iterator

import psutil

__all__ = ["cut_between", "drop_all", "make_unreachable"]

_PIDFD_GETFD = 438
"""The number of the system call, on every kind of machine that Linux runs on."""
_SO_ATTACH_FILTER = 26
_RETURN = 0x06
"""Of the packet filter: what follows is how many bytes of a packet are let through."""


def cut_between(pids: Iterable[int], pick: float) -> bool:
    """Cut one of the connections that these processes have to each other; False if there is none now, or if this system
    does not let one process touch another's sockets."""
    between = _between(pids)
    if not between:
        return False
    pid, number = between[int(pick * len(between))]
    with contextlib.suppress(OSError), _copied(pid, number) as link:
        link.shutdown(socket.SHUT_RDWR)
        return True
    return False


def make_unreachable(pids: Iterable[int], pick: float) -> bool:
    """Have one of these processes get no packet any more from the others, on connections that there are and on those
    that they try to make; its other connections stay. False as above."""
    known = list(pids)
    between = _between(known)
    reached = sorted({pid for pid, _ in between})
    if not reached:
        return False
    one = reached[int(pick * len(reached))]
    dropped = 0
    for number in (*_listening(one), *(number for pid, number in between if pid == one)):
        with contextlib.suppress(OSError), _copied(one, number) as link:
            drop_all(link)
            dropped += 1
    return dropped > 0


def _between(pids: Iterable[int]) -> list[tuple[int, int]]:
    """Process and file number of both ends of all connections between these processes."""
    ends: dict[tuple[object, object], tuple[int, int]] = {}
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            for link in psutil.Process(pid).net_connections("tcp"):
                if link.status == psutil.CONN_ESTABLISHED and link.fd >= 0:
                    ends[link.laddr, link.raddr] = pid, link.fd
    return sorted(end for (here, there), end in ends.items() if (there, here) in ends)


def _listening(pid: int) -> list[int]:
    with contextlib.suppress(psutil.Error):
        links = psutil.Process(pid).net_connections("tcp")
        return [link.fd for link in links if link.status == psutil.CONN_LISTEN and link.fd >= 0]
    return []


@contextlib.contextmanager
def _copied(pid: int, number: int) -> Iterator[socket.socket]:
    """The socket of another process; OSError if it cannot be had."""
    if not hasattr(os, "pidfd_open"):
        raise OSError("this system has no file numbers of processes")
    libc = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(pid)
    try:
        copy = libc.syscall(_PIDFD_GETFD, process, number, 0)
        if copy < 0:
            raise OSError(ctypes.get_errno(), "the socket of another process cannot be had")
        with socket.socket(fileno=copy) as link:
            yield link
    finally:
        os.close(process)


def drop_all(link: socket.socket) -> None:
    """A packet filter that lets no byte through."""
    instruction = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN, 0, 0, 0))
    program = struct.pack("@HP", 1, ctypes.addressof(instruction))
    link.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
