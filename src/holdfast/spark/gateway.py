"""The Java process behind a session: started beside the program, and ended with all it has started.

PySpark starts Java and waits for it. A signal in the middle of that would leave a Java behind that nobody knows: its
handshake is gone, and so it never sees that its driver is. So Java is started in a thread of its own, where signals
raise nothing, while the program waits and stays free to give up.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import psutil
from pyspark import SparkContext
from pyspark.sql import SparkSession

from holdfast.signals import undisturbed

__all__ = ["end_java", "is_java_lost", "kill_python_workers", "open_beside"]

_SECONDS_TO_END = 10.0
_LOOK_EVERY = 0.1
_LAUNCHED_BY_US = "_PYSPARK_DRIVER_CONN_INFO_PATH"  # in the environment of what PySpark launches, and of nothing else


def open_beside(build: Callable[[], SparkSession], waiting: Callable[[], None]) -> SparkSession:
    """The session that `build` makes, in a thread of its own; `waiting` is called again and again meanwhile.

    Whatever `waiting` or a signal raises ends the Java that is being started, and is raised on.
    """
    outcome: list[SparkSession | BaseException] = []

    def work() -> None:
        try:
            outcome.append(build())
        except BaseException as error:  # noqa: BLE001 - carried to the thread that waits, which raises it
            outcome.append(error)

    # What py4j logs of a connection that breaks is a traceback on the terminal of who has not asked for a log.
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
    """Whether the Java process has died, as far as can be told."""
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


def end_java(patience: float = _SECONDS_TO_END) -> None:
    """End the Java process, which `SparkSession.stop` leaves running, and everything it started: after `patience`
    seconds by force."""
    gateway = SparkContext._gateway
    SparkContext._gateway = None
    SparkContext._jvm = None
    java: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if gateway is None or java is None:
        return
    started = _descendants(java.pid)
    with contextlib.suppress(Exception):  # the other side may be gone already
        gateway.shutdown()
    if java.stdin is not None:
        java.stdin.close()  # the sign to exit that Java also gets when this process is killed
    try:
        java.wait(patience)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()
    _, left = psutil.wait_procs(started, timeout=_SECONDS_TO_END)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


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
