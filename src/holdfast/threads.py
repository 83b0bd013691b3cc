"""Time and threads: what code that waits, or has work done beside it, is given to do so.

By default these are the system's. A simulation hands in its own, and so decides what runs next and how long everything
takes. Code that uses them in production and in a simulation takes `Threads` as an argument; code that only looks at the
time and sleeps takes a `Clock`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Protocol

__all__ = ["SYSTEM", "Calls", "Clock", "Condition", "Event", "Lock", "SystemThreads", "Thread", "ThreadPool", "Threads"]


class Clock(Protocol):
    def now(self) -> float:
        """The time of day, in seconds. It may be set."""

    def monotonic(self) -> float:
        """Seconds that only go forward."""

    def sleep(self, seconds: float) -> None: ...


class Lock(Protocol):
    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Condition(Lock, Protocol):
    def wait(self, timeout: float | None = None) -> bool: ...

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any: ...

    def notify_all(self) -> None: ...


class Event(Protocol):
    def set(self) -> None: ...

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Thread(Protocol):
    def join(self, timeout: float | None = None) -> None: ...

    def is_alive(self) -> bool: ...


class Calls(Protocol):
    """What one thread hands to another, in order."""

    def put(self, item: Any) -> None: ...

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The next item; `queue.Empty` if there is none in time."""


class ThreadPool(Protocol):
    """A few threads that take work in the order in which it was handed in."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Any: ...

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more, and wait until all is done."""


class Threads(Clock, Protocol):
    def lock(self) -> Lock: ...

    def condition(self) -> Condition: ...

    def event(self) -> Event: ...

    def calls(self) -> Calls: ...

    def start(self, work: Callable[[], None], name: str) -> Thread:
        """Have work done beside what goes on here. It ends with the process at the latest."""

    def pool(self, size: int, name: str) -> ThreadPool: ...


class SystemThreads:
    """Those of the operating system."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)

    def lock(self) -> Lock:
        return threading.Lock()

    def condition(self) -> Condition:
        return threading.Condition()

    def event(self) -> Event:
        return threading.Event()

    def calls(self) -> Calls:
        return queue.SimpleQueue[Any]()

    def start(self, work: Callable[[], None], name: str) -> Thread:
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        return thread

    def pool(self, size: int, name: str) -> ThreadPool:
        return ThreadPoolExecutor(size, thread_name_prefix=name)


SYSTEM: Threads = SystemThreads()
