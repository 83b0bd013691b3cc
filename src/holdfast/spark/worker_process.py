"""The process of a worker, where it is on this machine: whether it is stopped, and how it is killed."""

from __future__ import annotations

import platform

import psutil

from holdfast.epoch.crew_messages import Enrol

__all__ = ["is_stopped", "kill_worker"]

_DAEMON = "holdfast.spark.worker_daemon"


def is_stopped(enrolment: Enrol) -> bool | None:
    """Whether the process was stopped; None if it is not on this machine. One that only waits for a core is
    not stopped, however long it is silent."""
    process = _here(enrolment)
    try:
        return None if process is None else process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.NoSuchProcess:
        return None


def kill_worker(enrolment: Enrol) -> bool:
    """Kill the process, also if it is stopped. False if it is not on this machine."""
    process = _here(enrolment)
    if process is None:
        return False
    try:
        process.kill()
    except psutil.NoSuchProcess:
        pass
    except psutil.AccessDenied:
        return False
    return True


def _here(enrolment: Enrol) -> psutil.Process | None:
    """The name of a machine is not unique, nor is a process id in containers: it must be one of Spark's workers."""
    if enrolment.machine != platform.node():
        return None
    try:
        process = psutil.Process(enrolment.pid)
        return process if _DAEMON in process.cmdline() else None
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None
