"""One deterministic scheduler for everything that runs in a simulation.

Simulated threads are greenlets, all in one real thread: switching between real ones would take longer than what most
of them do. One runs until it sleeps, waits or takes a step in the world (a file, the network), and the heap of what is
due decides who runs next. Time is virtual and jumps to what is due. All randomness comes from one generator, so a seed
decides everything.

A process that was killed never runs again: its threads stay where they are until the simulation is closed, and then
unwind with every door to the world shut. One that was paused goes on later, as if nothing had been.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from greenlet import getcurrent, greenlet

__all__ = ["KilledError", "Process", "Scheduler", "StuckError", "Task"]

_MOST_EVENTS = 200_000


class KilledError(BaseException):
    """Raised in threads of a process that is no more. Nobody may catch it for long."""


class StuckError(Exception):
    """The simulation does not come to its end."""


@dataclass(slots=True, eq=False)
class Process:
    """A simulated process. `pace` is how many times slower than others it is."""

    name: str
    host: str
    number: int = 0
    alive: bool = True
    paused_until: float = 0.0
    pace: float = 1.0
    clock_offset: float = 0.0
    clock_rate: float = 1.0
    threads: int = 0
    steps: int = 0
    at_step: tuple[int, Callable[[], None]] | None = None
    """What befalls it when it has taken so many steps."""


class Task:
    """A simulated thread."""

    __slots__ = ("busy", "done", "greenlet", "joined", "name", "process", "serial", "work")

    def __init__(self, process: Process, name: str, work: Callable[[], None], greenlet: greenlet) -> None:
        self.process = process
        self.name = name
        self.work = work
        self.greenlet = greenlet
        self.serial = 0
        """What it waits for: a wake-up with another number is of the past."""
        self.done = False
        self.busy = 0
        """Above 0 it is in a transaction, and lets nobody else run."""
        self.joined: list[Task] = []

    def __str__(self) -> str:
        return f"{self.process.name}/{self.name}"


class Scheduler:
    """`trace` collects a line for each thing that happens, where one is wanted; without what is `hidden`, which is not
    the same in every run."""

    def __init__(self, seed: int, trace: list[str] | None = None, hidden: str = "") -> None:
        self.hidden = hidden
        self.random = random.Random(seed)
        self.time = 0.0
        self.trace = trace
        self.events = 0
        self.current: Task | None = None
        self.closed = False
        self._heap: list[tuple[float, int, Task | None, int, Callable[[], None] | None]] = []
        self._count = 0
        self._tasks: list[Task] = []
        self._end = 0.0
        self._thread = threading.get_ident()
        self._main = getcurrent()
        """Who has asked for the run: a thread that ends leaves it to this one to switch to the next."""
        self._failure: BaseException | None = None

    def tell(self, what: str) -> None:
        if self.trace is not None:
            who = "world" if self.current is None else str(self.current)
            self.trace.append(f"{self.time:10.4f} {who:24} {self.shown(what)}")

    def shown(self, text: str) -> str:
        """A text as it is in every run with the same seed, in one line."""
        return (text.replace(self.hidden, "") if self.hidden else text).replace("\n", " ")

    # what happens when

    def at(self, time: float, act: Callable[[], None]) -> None:
        """Have something happen in the world. It must not wait."""
        self._push(max(time, self.time), None, 0, act)

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self._push(self.time + seconds, None, 0, act)

    def after_steps(self, process: Process, steps: int, act: Callable[[], None]) -> None:
        """Have something happen to a process when it has taken so many more steps, if it lives until then."""
        process.at_step = (process.steps + steps, act)

    def _push(self, time: float, task: Task | None, serial: int, act: Callable[[], None] | None) -> None:
        self._count += 1
        heapq.heappush(self._heap, (time, self._count, task, serial, act))

    def run(self, until: float) -> None:
        """Until nothing is due before that time. What a thread did not catch is raised here."""
        self._end = until
        target = self._next()
        while target is not None:
            self.current = target
            target = target.greenlet.switch(target)
        self.current = None
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raise what the run is to end with, if there is something."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def stop(self) -> None:
        """End the run after what happens now."""
        self._end = self.time

    def fail(self, error: BaseException) -> None:
        """End the run with this error."""
        if self._failure is None:
            self._failure = error

    def _pass_on(self, mine: Task) -> None:
        """Do what is due next: return if it is for `mine`, let another thread run if it is another's."""
        target = self.current = self._next()
        if target is not mine:
            if target is None:
                self._main.switch(None)
            else:
                target.greenlet.switch(target)
            if self.closed:
                raise KilledError

    def _next(self) -> Task | None:
        """Who runs next; None: the run is over."""
        while self._heap and self._failure is None and self._heap[0][0] <= self._end:
            time, _, task, serial, act = heapq.heappop(self._heap)
            self.events += 1
            if self.events > _MOST_EVENTS:
                self._failure = StuckError(f"more than {_MOST_EVENTS} events")
                break
            if task is None:
                self.time, self.current = time, None
                assert act is not None
                try:
                    act()
                except Exception as error:  # noqa: BLE001 - raised where the run was asked for
                    self._failure = error
                continue
            if task.done or serial != task.serial or not task.process.alive:
                continue
            if task.process.paused_until > time:
                self._push(task.process.paused_until, task, serial, None)
                continue
            self.time = time
            return task
        return None

    # threads

    def spawn(self, process: Process, work: Callable[[], None], name: str) -> Task:
        self._alive(process)
        process.threads += 1
        task = Task(process, f"{name}.{process.threads}", work, greenlet(self._body, self._main))
        self._tasks.append(task)
        self._push(self.time + self.jitter(process), task, task.serial, None)
        return task

    def _body(self, task: Task) -> Task | None:
        """All that a thread does; who runs next."""
        try:
            if not self.closed:
                task.work()
        except KilledError:
            pass
        except BaseException as error:  # noqa: BLE001 - raised where the run was asked for
            if not self.closed:
                self.fail(error)
        task.done = True
        if self.closed:
            return None
        for waiting in task.joined:
            self.wake(waiting)
        return self._next()

    def is_simulated(self) -> bool:
        """Whether a simulated thread is calling. Others are those that code starts for a moment and waits for, e.g. to
        read files in parallel."""
        return self.current is not None and self._thread == threading.get_ident()

    @property
    def task(self) -> Task:
        assert self.current is not None, "only simulated threads wait"
        return self.current

    def _alive(self, process: Process) -> None:
        if self.closed or not process.alive:
            raise KilledError

    def jitter(self, process: Process) -> float:
        """How long a step takes that takes next to nothing."""
        return self.random.random() * 0.0005 * process.pace

    def step(self, what: str = "", seconds: float = 0.0) -> None:
        """The running thread does something in the world, which takes so long: others run meanwhile."""
        task = self.current
        if task is None:
            return
        self._alive(task.process)
        if what and self.trace is not None:
            self.tell(what)
        if not task.busy:
            self._count_step(task.process)
            self._sleep(task, seconds * task.process.pace + self.jitter(task.process))

    def _count_step(self, process: Process) -> None:
        process.steps += 1
        if process.at_step is not None and process.steps >= process.at_step[0]:
            (_, act), process.at_step = process.at_step, None
            self.at(self.time, act)  # before the step is done

    def sleep(self, seconds: float) -> None:
        task = self.task
        self._alive(task.process)
        assert not task.busy, "nobody sleeps in a transaction"
        self._sleep(task, max(0.0, seconds) / task.process.clock_rate + self.jitter(task.process))

    def _sleep(self, task: Task, seconds: float) -> None:
        task.serial += 1
        time = self.time + seconds
        if self._is_next(task.process, time):
            self._count += 1
            self.events += 1
            self.time = time
            return
        self._push(time, task, task.serial, None)
        self._pass_on(task)
        self._alive(task.process)

    def _is_next(self, process: Process, time: float) -> bool:
        """Whether nothing else happens until the process goes on at that time. Most steps are so short."""
        heap = self._heap
        return (
            (not heap or time < heap[0][0])
            and time <= self._end
            and process.paused_until <= time
            and self.events < _MOST_EVENTS
            and self._failure is None
        )

    def wait(self, seconds: float | None = None) -> None:
        """The running thread waits until it is woken, or so long."""
        task = self.task
        self._alive(task.process)
        assert not task.busy, "nobody waits in a transaction"
        task.serial += 1
        if seconds is not None:
            self._push(self.time + seconds / task.process.clock_rate, task, task.serial, None)
        self._pass_on(task)
        self._alive(task.process)

    def wake(self, task: Task) -> None:
        """Let a thread that waits go on."""
        task.serial += 1
        self._push(self.time + self.jitter(task.process), task, task.serial, None)

    # processes

    def kill(self, process: Process) -> None:
        """As kill -9 does. If it is the running one, this does not return."""
        if not process.alive:
            return
        self.tell(f"kill -9 {process.name}")
        process.alive = False
        if self.current is not None and self.current.process is process:
            self._park(self.current)

    def _park(self, task: Task) -> NoReturn:
        task.serial += 1
        self._pass_on(task)
        raise KilledError

    def close(self) -> None:
        """End all threads that are left, with no effect on anything."""
        self.closed = True
        for task in self._tasks:
            if not task.done:
                self.current = task
                task.greenlet.switch(task)
        self.current = None
