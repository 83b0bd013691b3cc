"""The Java process behind a session: started next to the program, and ended with everything it has started.

PySpark starts Java and waits for it. A signal during that wait would leave an orphaned Java process: its handshake is
lost, so it never notices that its driver is gone. So Java is started in a separate thread, where signals raise nothing,
while the program waits and can still give up.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
from pyspark import SparkContext
from pyspark.sql import SparkSession

from holdfast.signals import undisturbed

__all__ = ["end_java", "is_java_lost", "kill_python_workers", "kill_stopped_workers", "open_in_background"]

_SECONDS_TO_END = 10.0
_LOOK_EVERY = 0.1
_ENDS_EVERY = 0.01
_LAUNCHED_BY_US = "_PYSPARK_DRIVER_CONN_INFO_PATH"  # in the environment of what PySpark launches, and of nothing else


def open_in_background(build: Callable[[], SparkSession], waiting: Callable[[], None]) -> SparkSession:
    """The session that `build` makes, in a thread of its own; `waiting` is called again and again meanwhile.

    Whatever `waiting` or a signal raises ends the Java that is being started, and is raised on.
    """
    outcome: list[SparkSession | BaseException] = []

    def work() -> None:
        try:
            outcome.append(build())
        except BaseException as error:  # noqa: BLE001 - carried to the thread that waits, which raises it
            outcome.append(error)

    # What py4j logs of a connection that breaks is a traceback on the terminal of a user who did not ask for a log.
    logging.getLogger("py4j").addHandler(logging.NullHandler())
    atexit.unregister(end_java)
    atexit.register(end_java)
    thread = threading.Thread(target=work, name="open-session", daemon=True)
    try:
        thread.start()
        while thread.is_alive():
            thread.join(_LOOK_EVERY)
            waiting()
        [opened] = outcome
        if isinstance(opened, BaseException):
            raise opened
        # Java has an active session for each thread.
        sessions: Any = SparkSession._get_j_spark_session_class(opened._jvm)
        sessions.setActiveSession(opened._jsparkSession)
        return opened
    except BaseException:
        with undisturbed():
            while thread.is_alive():
                _kill_launched()
                thread.join(_LOOK_EVERY)
            end_java(patience=0.0)
        raise


def is_java_lost() -> bool:
    """Whether the Java process has died, as far as can be seen."""
    java: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    return java is not None and java.poll() is not None


def kill_python_workers(*, and_their_parent: bool) -> None:
    """Kill the Python workers of a session whose tasks run in its own Java process; Spark starts new ones. The process
    that forks them takes seconds to start again: it is killed if it is stopped itself, or if that is asked for.
    Workers of executors are killed by Spark, which knows where they are."""
    java: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    context = SparkContext._active_spark_context
    if java is None or context is None or not str(context.master).startswith("local"):
        return
    for process in _descendants(java.pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            forks = process.ppid() == java.pid
            if not forks or and_their_parent or process.status() == psutil.STATUS_STOPPED:
                process.kill()


def kill_stopped_workers() -> None:
    """Kill the Python workers of this session that were stopped, also those that wait for a task: Spark would
    give them one."""
    java: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    for process in [] if java is None else _descendants(java.pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() == psutil.STATUS_STOPPED:
                process.kill()


def end_java(patience: float = _SECONDS_TO_END, stop: Callable[[], None] = lambda: None) -> None:
    """End the Java process, which `SparkSession.stop` leaves running, and everything it started: after `patience`
    seconds by force. What is to be stopped in an orderly way before that, `stop` stops."""
    gateway = SparkContext._gateway
    java: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    # Spark ends the process that forks Python workers first: afterwards it could not be seen whose those workers were.
    started = [] if java is None else _descendants(java.pid)
    stop()
    SparkContext._gateway = None
    SparkContext._jvm = None
    if gateway is None or java is None:
        return
    with contextlib.suppress(Exception):  # the other side may be gone already
        gateway.shutdown()
    if java.stdin is not None:
        java.stdin.close()  # the sign to exit that Java also gets when this process is killed
    try:
        java.wait(patience)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()
    left = _still_alive(started, _SECONDS_TO_END)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _still_alive(left, _SECONDS_TO_END)


def _still_alive(processes: list[psutil.Process], patience: float) -> list[psutil.Process]:
    """Those that live when all others have ended, or after `patience` seconds. A process that has ended may keep its
    number: not every container has a process that reaps orphans."""
    until = time.monotonic() + patience
    while (left := [process for process in processes if _is_alive(process)]) and time.monotonic() < until:
        time.sleep(_ENDS_EVERY)
    return left


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _kill_launched() -> None:
    for child in _descendants(os.getpid()):
        with contextlib.suppress(psutil.Error):
            if _LAUNCHED_BY_US in child.environ():
                child.kill()


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
