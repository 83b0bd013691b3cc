"""What every simulated world has: a scheduler, a disk, a database behind a network, processes that die, and a seed.

A world runs the product's own code in simulated processes. What is right is judged by an account of its own: what
clients were answered, what readers saw. It never asks the code under test.
"""

from __future__ import annotations

import gc
import logging
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.meta import MetaStore
from holdfast.store import volatile_parent
from holdfast_lab.simulate.ambushes import Ambushes, CodePlace
from holdfast_lab.simulate.disk import Disk
from holdfast_lab.simulate.remote_database import RemoteDatabase
from holdfast_lab.simulate.scheduler import Process, Scheduler
from holdfast_lab.simulate.simulated_threads import SimulatedThreads
from holdfast_lab.simulate.system_calls import SystemCalls

__all__ = ["Program", "ViolationError", "World", "silent_logs"]

_ROOT_NAME = "world"


@contextmanager
def silent_logs() -> Iterator[None]:
    """Inside, nothing is logged. Inside of another it costs nothing: loggers forget what they know when it changes."""
    before = logging.root.manager.disable
    if before < logging.CRITICAL:
        logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        if before < logging.CRITICAL:
            logging.disable(before)


class ViolationError(Exception):
    """Something that must never be has happened."""


class Program:
    """A process as the program that runs in it sees it."""

    def __init__(self, world: World, process: Process) -> None:
        self.world = world
        self.process = process
        self.threads = SimulatedThreads(world.scheduler, process)
        self._meta: MetaStore | None = None

    @property
    def meta(self) -> MetaStore:
        if self._meta is None:
            self._meta = self.open_meta()
        return self._meta

    def open_meta(self) -> MetaStore:
        """The meta store, for somebody who closes it."""
        return self.world.database.meta(self.threads)


class World(ABC):
    """`calm` is when the last fault is over: from then on everything must come to its end before `end`."""

    calm = 12.0
    end = 40.0

    def __init__(self, seed: int, root: Path, trace: list[str] | None = None) -> None:
        self.seed = seed
        self.root = root
        self.scheduler = Scheduler(seed, trace, f"{root}/")
        self.draw = self.scheduler.random
        self.disk = Disk(self.scheduler, root)
        self.database = RemoteDatabase(self.scheduler)
        self.database.empty()
        self.databases = [self.database]
        """All that processes reach by the network."""
        self.started = 0
        self.processes: list[Process] = []
        self.clocks: dict[str, float] = {}
        """By how many seconds the clock of a host was set forwards."""
        self.ambushes = Ambushes(self.scheduler, self.calm)
        self.faults: Counter[str] = Counter()
        """How often each kind of fault has struck."""

    # what a world is

    @abstractmethod
    def begin(self) -> None:
        """Start the processes and plan the faults."""

    @abstractmethod
    def is_over(self) -> bool:
        """Whether all is done that was to be done."""

    @abstractmethod
    def check(self) -> None:
        """At the end: raise ViolationError if something is missing or too much."""

    # running

    @classmethod
    def run(cls, seed: int, trace: list[str] | None = None) -> World:
        """Run one seed to its end; raises ViolationError at the first violation."""
        place = Path(tempfile.mkdtemp(prefix="hf-sim-", dir=volatile_parent()))
        root = place / _ROOT_NAME
        root.mkdir()
        gc.disable()  # a finaliser must not run at a time that the seed does not decide
        world = cls(seed, root, trace)
        try:
            with silent_logs(), SystemCalls(world.scheduler, world.disk, world.process_lives).simulated():
                try:
                    world.begin()
                    world.scheduler.at(1.0, world._look)
                    with world.ambushes.watched():
                        world.scheduler.run(cls.end)
                    world.check()
                finally:
                    world.scheduler.close()
        finally:
            gc.enable()
            world.database.connection.close()
            shutil.rmtree(place, ignore_errors=True)
        return world

    def _look(self) -> None:
        if self.is_over():
            self.scheduler.stop()
        else:
            self.scheduler.after(0.5, self._look)

    def start(self, name: str, host: str, main: Callable[[Program], None], *, skew: bool = True) -> Program:
        """Start a process."""
        self.started += 1
        process = Process(f"{name}-{self.started}", host, self.started)
        if skew:
            process.clock_rate = 1.0 + self.draw.uniform(-0.02, 0.02)
            process.clock_offset = self.clocks.get(host, 0.0) + self.draw.uniform(-0.2, 0.2)
            process.pace = self.draw.choice((1.0, 1.0, 1.0, 3.0))
        program = Program(self, process)
        self.processes.append(process)
        self.scheduler.spawn(process, lambda: main(program), "main")
        return program

    def violated(self, problem: str) -> ViolationError:
        error = ViolationError(self.scheduler.shown(problem))
        self.scheduler.tell(f"VIOLATION {problem}")
        return error

    def violate(self, problem: str) -> None:
        """End the run: this must not be."""
        self.scheduler.fail(self.violated(problem))

    def process_lives(self, number: int) -> bool:
        return any(process.number == number and process.alive for process in self.processes)

    def processes_of(self, host: str) -> list[Process]:
        """Those that live."""
        return [process for process in self.processes if process.host == host and process.alive]

    # faults

    def fault(self, at: float, kind: str, act: Callable[[], object]) -> None:
        def strike() -> None:
            self.struck(kind)
            act()

        self.scheduler.at(at, strike)

    def struck(self, kind: str) -> None:
        self.faults[kind] += 1
        self.scheduler.tell(f"fault: {kind}")

    def befall(self, process: Process, most_steps: int, act: Callable[[Process], None]) -> None:
        """Something befalls a process after up to so many of its steps, one as likely as the other; with 0 at once."""
        if most_steps:
            self.scheduler.after_steps(process, self.draw.randrange(most_steps), lambda: act(process))
        else:
            act(process)

    def lay(
        self,
        place: CodePlace,
        kind: str,
        act: Callable[[Process], None],
        *,
        whom: Callable[[Process], bool] = lambda process: True,
        chance: float = 1.0,
        most: int = 1,
    ) -> None:
        """A fault strikes where a process comes to a place: one of those `whom` it may, so often at most."""

        def strike(process: Process) -> None:
            self.struck(kind)
            self.scheduler.tell(f"it is {process.name}, {place}")
            act(process)

        self.ambushes.lay(place, strike, whom=whom, chance=chance, most=most)

    def lossy_network(self) -> None:
        """Until it is calm, some requests and answers of the databases are lost."""
        draw = self.draw
        for database in self.databases:
            database.lost_requests = draw.choice((0.0, 0.0, 0.02, 0.06))
            database.lost_answers = draw.choice((0.0, 0.02, 0.05, 0.1))
            database.broken = draw.choice((0.0, 0.0, 0.002, 0.01))

        def calm() -> None:
            for database in self.databases:
                database.lost_requests = database.lost_answers = database.broken = 0.0

        self.scheduler.at(self.calm, calm)

    def moment(self) -> float:
        """Some time before it is calm."""
        return self.draw.uniform(0.1, self.calm * 0.8)

    def for_a_while(self, kind: str, least: float, most: float, act: Callable[[float], None]) -> None:
        """`act` is given when it is over, which is when it is calm at the latest."""
        at, seconds = self.moment(), self.draw.uniform(least, most)
        self.fault(at, kind, lambda: act(min(self.calm, at + seconds)))

    def store_goes_away(self) -> None:
        self.for_a_while("the store is away", 0.2, 4.0, lambda until: setattr(self.database, "away_until", until))

    def network_is_slow(self) -> None:
        database = self.draw.choice(self.databases)
        self.for_a_while("the network is slow", 0.5, 4.0, lambda until: setattr(database, "slow_until", until))

    def disk_is_full(self) -> None:
        self.for_a_while("the disk is full", 0.1, 2.0, lambda until: setattr(self.disk, "full_until", until))

    def disk_is_slow(self) -> None:
        self.for_a_while("the disk is slow", 0.5, 3.0, lambda until: setattr(self.disk, "slow_until", until))

    def clock_is_set(self, host: str) -> None:
        """The time of day jumps on a host, forwards or backwards; the monotonic clock does not."""
        seconds = self.draw.choice((2.0, 30.0, 4_000.0)) * self.draw.uniform(-1.0, 1.0)

        def act() -> None:
            self.clocks[host] = self.clocks.get(host, 0.0) + seconds
            for process in self.processes_of(host):
                process.clock_offset += seconds

        self.fault(self.moment(), "a clock is set forwards" if seconds > 0 else "a clock is set backwards", act)

    def pause(self, process: Process, seconds: float) -> None:
        """As SIGSTOP does, or a long collection of garbage."""
        process.paused_until = max(process.paused_until, self.scheduler.time + seconds)
