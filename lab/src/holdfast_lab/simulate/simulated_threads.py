"""What a simulated process is given in place of the system's clock and threads (`holdfast.threads`)."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from holdfast.threads import Calls, Condition, Event, Lock, Thread, ThreadPool
from holdfast_lab.simulate.scheduler import Process, Scheduler, Task

__all__ = ["SimulatedThreads", "await_answer"]

_EPOCH = 1_750_000_000.0
"""The time of day at which every simulation begins."""
_UP_SECONDS = 5_000.0
"""How long machines have been running then."""


class SimulatedThreads:
    """Those of one process, with its own clock."""

    def __init__(self, scheduler: Scheduler, process: Process) -> None:
        self.scheduler = scheduler
        self.process = process

    def now(self) -> float:
        return _EPOCH + self.scheduler.time + self.process.clock_offset

    def monotonic(self) -> float:
        return _UP_SECONDS + self.scheduler.time * self.process.clock_rate

    def sleep(self, seconds: float) -> None:
        self.scheduler.sleep(seconds)

    def lock(self) -> Lock:
        return _Condition(self.scheduler)

    def condition(self) -> Condition:
        return _Condition(self.scheduler)

    def event(self) -> Event:
        return _Event(self.scheduler)

    def calls(self) -> Calls:
        return _Calls(self.scheduler)

    def start(self, work: Callable[[], None], name: str) -> Thread:
        return _Thread(self.scheduler, self.scheduler.spawn(self.process, work, name))

    def pool(self, size: int, name: str) -> ThreadPool:
        return _Pool(self, size, name)


def await_answer(scheduler: Scheduler, answer: Future[Any], seconds: float | None) -> bool:
    """Wait for a future, in a simulated thread; whether it is done in time."""
    if not answer.done():
        task = scheduler.task
        waits = [True]
        answer.add_done_callback(lambda _: scheduler.wake(task) if waits[0] else None)
        scheduler.wait(seconds)
        waits[0] = False
    return answer.done()


class _Condition:
    """A lock that its holder may take again, with threads that wait to be notified."""

    __slots__ = ("_count", "_holder", "_locked_out", "_scheduler", "_waiting")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._holder: Task | None = None
        self._count = 0
        self._locked_out: deque[Task] = deque()
        self._waiting: list[Task] = []

    def __enter__(self) -> bool:
        self._take(1)
        return True

    def _take(self, count: int) -> None:
        scheduler = self._scheduler
        scheduler.step()
        task = scheduler.task
        while self._holder is not None and self._holder is not task:
            self._locked_out.append(task)
            scheduler.wait()
        self._holder = task
        self._count += count

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release(1)

    def _release(self, count: int) -> None:
        self._count -= count
        if self._count == 0:
            self._holder = None
            if self._locked_out and not self._scheduler.closed:
                self._scheduler.wake(self._locked_out.popleft())

    def wait(self, timeout: float | None = None) -> bool:
        task, count = self._scheduler.task, self._count
        self._waiting.append(task)
        self._release(count)
        self._scheduler.wait(timeout)
        notified = task not in self._waiting
        if not notified:
            self._waiting.remove(task)
        self._take(count)
        return notified

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        until = None if timeout is None else self._scheduler.time + timeout
        while not (result := predicate()):
            left = None if until is None else until - self._scheduler.time
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            self._scheduler.wake(task)


class _Event:
    __slots__ = ("_changed", "_set")

    def __init__(self, scheduler: Scheduler) -> None:
        self._changed = _Condition(scheduler)
        self._set = False

    def set(self) -> None:
        with self._changed:
            self._set = True
            self._changed.notify_all()

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        with self._changed:
            return bool(self._changed.wait_for(self.is_set, timeout))


class _Calls:
    __slots__ = ("_changed", "_items", "_scheduler")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._changed = _Condition(scheduler)
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        if self._scheduler.current is None or self._scheduler.closed:
            return  # whoever is collected as garbage has nobody to tell
        self._items.append(item)
        self._changed.notify_all()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        with self._changed:
            if not self._changed.wait_for(lambda: self._items, timeout if block else 0.0):
                raise queue.Empty
            return self._items.popleft()


class _Thread:
    __slots__ = ("_scheduler", "_task")

    def __init__(self, scheduler: Scheduler, task: Task) -> None:
        self._scheduler = scheduler
        self._task = task

    def join(self, timeout: float | None = None) -> None:
        if not self._task.done:
            waiting = self._scheduler.task
            self._task.joined.append(waiting)
            self._scheduler.wait(timeout)
            if not self._task.done:
                self._task.joined.remove(waiting)

    def is_alive(self) -> bool:
        return not self._task.done


class _Answer(Future[Any]):
    """What a pool was asked for: who waits for it lets others run."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler

    def result(self, timeout: float | None = None) -> Any:
        await_answer(self._scheduler, self, timeout)
        return super().result(0)


class _Pool:
    def __init__(self, threads: SimulatedThreads, size: int, name: str) -> None:
        self._threads = threads
        self._name = name
        self._free = size
        self._changed = _Condition(threads.scheduler)
        self._work: deque[tuple[Callable[..., Any], tuple[Any, ...], Future[Any]]] = deque()
        self._running = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        answer = _Answer(self._threads.scheduler)
        self._work.append((fn, args, answer))
        if self._free:
            self._free -= 1
            self._running += 1
            self._threads.start(self._serve, self._name)
        return answer

    def _serve(self) -> None:
        while self._work:
            fn, args, answer = self._work.popleft()
            try:
                answer.set_result(fn(*args))
            except Exception as error:  # noqa: BLE001 - raised where the answer is taken
                answer.set_exception(error)
        self._free += 1  # at once: who hands in work from now on needs another thread
        self._running -= 1
        with self._changed:
            self._changed.notify_all()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if cancel_futures:
            self._work.clear()
        with self._changed:
            self._changed.wait_for(lambda: not self._running)
