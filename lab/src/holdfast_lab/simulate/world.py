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
from collections.abc import Callable
from pathlib import Path

from holdfast.meta import MetaStore
from holdfast.store import volatile_parent
from holdfast_lab.simulate.disk import Disk
from holdfast_lab.simulate.remote_database import RemoteDatabase
from holdfast_lab.simulate.scheduler import Process, Scheduler
from holdfast_lab.simulate.simulated_threads import SimulatedThreads
from holdfast_lab.simulate.system_calls import SystemCalls

__all__ = ["Program", "ViolationError", "World"]

_ROOT_NAME = "world"


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
            self._meta = self.world.database.meta(self.threads)
        return self._meta


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
        self.started = 0
        self.processes: list[Process] = []
        self.faults = 0

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
        logging.disable(logging.CRITICAL)
        gc.disable()  # a finaliser must not run at a time that the seed does not decide
        world = cls(seed, root, trace)
        try:
            with SystemCalls(world.scheduler, world.disk).simulated():
                try:
                    world.begin()
                    world.scheduler.at(1.0, world._look)
                    world.scheduler.run(cls.end)
                    world.check()
                finally:
                    world.scheduler.close()
        finally:
            gc.enable()
            logging.disable(logging.NOTSET)
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
            process.clock_offset = self.draw.uniform(-0.2, 0.2)
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

    def processes_of(self, host: str) -> list[Process]:
        """Those that live."""
        return [process for process in self.processes if process.host == host and process.alive]

    # faults

    def fault(self, at: float, what: str, act: Callable[[], None]) -> None:
        def strike() -> None:
            self.faults += 1
            self.scheduler.tell(f"fault: {what}")
            act()

        self.scheduler.at(at, strike)

    def befall(self, process: Process, most_steps: int, act: Callable[[Process], None]) -> None:
        """Something befalls a process after up to so many of its steps, one as likely as the other; with 0 at once."""
        if most_steps:
            self.scheduler.after_steps(process, self.draw.randrange(most_steps), lambda: act(process))
        else:
            act(process)

    def lossy_network(self) -> None:
        """Until it is calm, some requests and answers of the database are lost."""
        draw = self.draw
        self.database.lost_requests = draw.choice((0.0, 0.0, 0.02, 0.1))
        self.database.lost_answers = draw.choice((0.0, 0.02, 0.05, 0.15))

        def calm() -> None:
            self.database.lost_requests = self.database.lost_answers = 0.0

        self.scheduler.at(self.calm, calm)

    def moment(self) -> float:
        """Some time before it is calm."""
        return self.draw.uniform(0.1, self.calm * 0.8)

    def store_goes_away(self) -> None:
        at, seconds = self.moment(), self.draw.uniform(0.2, 4.0)

        def act() -> None:
            self.database.away_until = min(self.calm, at + seconds)

        self.fault(at, f"the store is away for {seconds:.1f} s", act)

    def disk_is_full(self) -> None:
        at, seconds = self.moment(), self.draw.uniform(0.1, 2.0)

        def act() -> None:
            self.disk.full_until = min(self.calm, at + seconds)

        self.fault(at, f"the disk is full for {seconds:.1f} s", act)

    def disk_is_slow(self) -> None:
        at, seconds = self.moment(), self.draw.uniform(0.5, 3.0)

        def act() -> None:
            self.disk.slow_until = min(self.calm, at + seconds)

        self.fault(at, f"the disk is slow for {seconds:.1f} s", act)

    def pause(self, process: Process, seconds: float) -> None:
        """As SIGSTOP does, or a long collection of garbage."""
        process.paused_until = max(process.paused_until, self.scheduler.time + seconds)
