"""A world of hosts that run one pipeline together: the output is that of a run without faults.

Each host is a process with its membership, its replica and its runs, as they ship; epochs run in the process. The hosts
share a directory and a meta store behind a network. They are killed, paused and cut off, the power fails, and somebody
changes the scheme. What the sinks show at the end must be what plain arithmetic says; where a recovery may leave a gap,
it may lack rows and have none too many.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl
from sqlalchemy.exc import SQLAlchemyError

import holdfast as hf
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.engine.options import RunOptions, hosted
from holdfast.errors import HoldfastError
from holdfast.meta import MetaStore
from holdfast.pstream.punit import close_all
from holdfast.replica.keeper import Timing
from holdfast.replica.membership import Membership
from holdfast.replica.replica import FragmentReplica, SeatAuthority
from holdfast.replica.schemes import Scheme
from holdfast.replica.schemes.active_replication import ACTIVE_REPLICATION
from holdfast.replica.schemes.wheel import SCHEMES, path
from holdfast.replica.seat_store import Agreed, Agreement
from holdfast.replica.seats import Turn
from holdfast.replica.supervision import Watch, supervise
from holdfast.store import Private, make_directories, remove_tree
from holdfast.task.in_process import Attempt
from holdfast_lab.simulate.arriving_rows import ArrivingRows
from holdfast_lab.simulate.commit_account import CommitAccount
from holdfast_lab.simulate.remote_database import RemoteDatabase
from holdfast_lab.simulate.scheduler import Process
from holdfast_lab.simulate.simulated_threads import SimulatedThreads
from holdfast_lab.simulate.world import Program, World

__all__ = ["HostsWorld"]

_NAME = "p"
_SIZE = 10
_TIMING = Timing(beat=0.4, detection=1.6)
_TASK_SECONDS = 0.05
_PAUSE_SECONDS = 0.05
"""How often a host looks for what others have done: as often as it ships, most steps would be looks in vain."""
_STEPS_TO_START = 400
_STEPS_OF_EPOCHS = 150
_GONE = Private("the memory of a machine that was switched off")

Window = tuple[int, int]


@dataclass(slots=True)
class Slot:
    """A place where a process of a host runs."""

    name: str
    process: Process | None = None

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.alive


class HostsWorld(World):
    calm = 6.0
    end = 90.0

    def begin(self) -> None:
        draw = self.draw
        self.slots = [Slot(name) for name in ("a", "b", "c")[: draw.choice((2, 2, 3))]]
        self.scheme = draw.choice((*SCHEMES, ACTIVE_REPLICATION))  # where two commit, most can go wrong
        self.precise = draw.random() < 0.65
        self.policy = draw.choice((hf.checkpoint.delta(), hf.checkpoint.interval("2s")))
        self.retain = 3 if self.policy == hf.checkpoint.delta() else 1  # copies are what must stay then
        self.poll = 0.05 if self.scheme.both_commit else 0.2  # so that both often plan at the same time
        self.partitions = draw.choice((1, 2))
        self.every = draw.choice(("0s", "1s"))
        self.lost_tasks = draw.choice((0.0, 0.0, 0.1))
        self.frames = self._input()
        self.sink_database = RemoteDatabase(self.scheduler)
        self.url = self.sink_database.serve_sinks()
        self.out = self.root / "out"
        self.ended = False
        self.watch = Watch()
        self.troubles: list[str] = []
        self.taken = self.root / "taken"
        self.account = CommitAccount(
            self.database.connection, self.disk, self.root / "store" / _NAME / "state", self.retain, self.violate
        )
        self.database.on_commit = self.account.look
        self.restless = draw.choice((0.0, 0.0, 0.3))
        """How many hosts something befalls while they start."""
        self.start("supervisor", "elsewhere", self._supervise, skew=False)
        if draw.random() < 0.5:
            self.start("reader", "elsewhere", self._read)
        self.lossy_network()
        faults = (
            self._kill_host, self._kill_host, self._pause_host, self._pause_host, self._cut_off_host, self._lose_power,
            self.store_goes_away, self.disk_is_full, self.disk_is_slow, self._turn_wheel, self._turn_wheel,
        )  # fmt: skip
        for _ in range(draw.randrange(5)):
            draw.choice(faults)()

    def _input(self) -> list[tuple[float, pl.DataFrame]]:
        """Rows in the order of their times, so that none of them is late, and when they come. Some come at short
        intervals: hosts that plan side by side then find different input."""
        frames, ts, at = [], 0, 0.0
        for _ in range(self.draw.randrange(6, 11)):
            at += self.draw.uniform(0.0, self.draw.choice((1.4, 1.4, 0.006)))
            rows = []
            for _ in range(self.draw.randrange(4)):
                ts += self.draw.randrange(5)
                rows.append((self.draw.randrange(2), ts, self.draw.randrange(1, 100)))
            frames.append((at, pl.DataFrame(rows, schema=ArrivingRows.schema, orient="row")))
        return frames

    def is_over(self) -> bool:
        return self.ended

    # the pipeline

    def _pipeline(self) -> hf.Pipeline:
        pipeline = hf.Pipeline(_NAME)
        source = ArrivingRows(self.frames, lambda: self.scheduler.time)
        rows = pipeline.source("rows", source, event_time="ts", time_unit="s")
        sums = rows.key_by("k").window(hf.window.tumbling(_SIZE)).agg(total=hf.sum("v"), n=hf.count())
        sums.sink("files", hf.sink.ndjson(self.out, every=self.every))
        sums.sink("table", hf.sink.database(self.url, "sums"))
        return pipeline

    # hosts

    def _run_host(self, slot: Slot, program: Program) -> None:
        threads = program.threads
        left: list[str] = []
        agreement = self._agreement(program)
        member = Membership(
            slot.name, program.process.number, agreement, _TIMING, left.append, clock=threads.monotonic, threads=threads
        )
        member.sessions = True
        member.serve(_NAME)
        member.start()

        def build(authority: SeatAuthority) -> FragmentRun:
            run = FragmentRun(
                self._pipeline(), self._platform(program), self._options(slot), authority=authority,
                meta=_meta(program), threads=threads,
            )  # fmt: skip
            run.loop.pause = run.loop.patience = _PAUSE_SECONDS
            return run

        replica = FragmentReplica(_NAME, member, build, self.precise, self._on_trouble, threads)
        replica.start(lambda target, name, daemon: _Thread(threads, target, name))
        while not left and not replica.ended:
            threads.sleep(0.5)
        replica.stop()
        member.close()
        self.scheduler.tell(f"leaves: {left}")
        self.scheduler.kill(program.process)

    def _agreement(self, program: Program) -> Agreement:
        """Tries until the store answers."""
        while True:
            try:
                agreement = Agreement(program.meta, f"{program.process.name}:0:0.0", program.threads.now)
                if _NAME not in agreement.look([_NAME]):
                    agreement.open(_NAME, self.scheme)
                return agreement
            except (HoldfastError, SQLAlchemyError):
                program.threads.sleep(0.5)

    def _platform(self, program: Program) -> InProcessPlatform:
        draw, scheduler = self.draw, self.scheduler

        def choose(attempts: list[Attempt]) -> Attempt:
            chosen = draw.choice(attempts)
            scheduler.step(f"task {chosen.epoch}.{chosen.stage}.{chosen.task}", draw.random() * _TASK_SECONDS)
            return chosen

        return InProcessPlatform(choose, lambda attempt: draw.random() < self.lost_tasks)

    def _options(self, slot: Slot) -> RunOptions:
        options = RunOptions(
            store=self.root / "store", partitions=self.partitions, tasks=1, retain=self.retain, checkpoint=self.policy,
            volatile=self.root / "memory" / slot.name, poll=self.poll,
        )  # fmt: skip
        return hosted(options, slot.name)

    def _on_trouble(self, what: str) -> None:
        self.troubles.append(what)
        self.scheduler.tell(f"trouble: {what}")
        if "a fault in the program" in what:
            self.violate(what)

    # the supervisor

    def _supervise(self, program: Program) -> None:
        agreement = self._agreement(program)
        while not self.ended:
            view = self._view(agreement)
            if view is not None and view.ended:
                self.ended = True
                if view.notes.failed is not None:
                    self.violate(f"the pipeline was given up: {view.notes.failed}")
                if view.notes.diverged is not None:
                    self.violate(f"replicas differ: {view.notes.diverged}")
                return
            seats = None if view is None else view.seats
            if seats is not None:
                self.watch.look(seats.primary, seats, program.threads.monotonic(), 2 * _TIMING.beat)
            running = tuple(slot.name for slot in self.slots if slot.running)
            for name in supervise(seats, self.watch, _TIMING.detection, tuple(s.name for s in self.slots), running):
                slot = next(slot for slot in self.slots if slot.name == name)
                slot.process = self.start(name, name, partial(self._run_host, slot)).process
                if self.scheduler.time < self.calm and self.draw.random() < self.restless:
                    act = self.draw.choice((self.scheduler.kill, self._put_to_sleep))
                    self.befall(slot.process, _STEPS_TO_START, act)
            program.threads.sleep(0.5)

    def _view(self, agreement: Agreement) -> Agreed | None:
        try:
            return agreement.look([_NAME]).get(_NAME)
        except (HoldfastError, SQLAlchemyError):
            return None

    # a reader

    def _read(self, program: Program) -> None:
        """Takes the files away as they appear, as readers may."""
        make_directories(self.taken)
        for number in itertools.count():
            program.threads.sleep(0.7)
            for place in sorted(self.out.glob("epoch=*")) if self.out.is_dir() else ():
                os.rename(place, self.taken / f"{number}-{place.name}")

    # faults

    def _strike(self, what: str, act: Callable[[Process], None]) -> None:
        """Something befalls a host that runs, most often the one that leads."""

        def strike() -> None:
            running = [slot.process for slot in self.slots if slot.process is not None and slot.process.alive]
            leads = [process for process in running if process.host == self._leader()]
            victims = leads if leads and self.draw.random() < 0.7 else running
            if victims:
                victim = self.draw.choice(victims)
                self.scheduler.tell(f"it is {victim.name}")
                self.befall(victim, self.draw.choice((0, _STEPS_OF_EPOCHS)), act)

        self.fault(self.moment(), what, strike)

    def _leader(self) -> str | None:
        """As the store says, without its code."""
        row = self.database.connection.execute("SELECT seats FROM replicas").fetchone()
        seat = None if row is None else json.loads(row[0])["primary"]
        return None if seat is None else str(seat[0])

    def _kill_host(self) -> None:
        self._strike("a host is killed", self.scheduler.kill)

    def _pause_host(self) -> None:
        seconds = self.draw.uniform(0.3, 6.0)
        self._strike(f"a host sleeps for {seconds:.1f} s", lambda process: self.pause(process, seconds))

    def _put_to_sleep(self, process: Process) -> None:
        self.pause(process, self.draw.uniform(1.0, 6.0))

    def _cut_off_host(self) -> None:
        seconds = self.draw.uniform(0.3, 6.0)

        def act(process: Process) -> None:
            self.database.cut_off[process.host] = self.scheduler.time + seconds

        self._strike(f"a host is cut off for {seconds:.1f} s", act)

    def _lose_power(self) -> None:
        def act() -> None:
            for slot in self.slots:
                for process in self.processes_of(slot.name):
                    self.scheduler.kill(process)
            close_all()
            remove_tree(self.root / "memory", _GONE)
            self.disk.lose_power()

        self.fault(self.moment(), "power loss", act)

    def _turn_wheel(self) -> None:
        to = self.draw.choice(SCHEMES)
        at = self.moment()
        self.scheduler.at(at, lambda: self._start_turning(to))

    def _start_turning(self, to: Scheme) -> None:
        self.start("person", "elsewhere", lambda program: self._turn(program, to))

    def _turn(self, program: Program, to: Scheme) -> None:
        agreement = self._agreement(program)
        for _ in range(40):
            view = self._view(agreement)
            if view is not None:
                steps = path(view.seats.scheme, to)
                if not steps:
                    return
                with contextlib.suppress(HoldfastError, SQLAlchemyError):
                    agreement.ask({_NAME: [Turn(view.seats.turns, steps[0])]})
            program.threads.sleep(0.4)

    # judgement

    def check(self) -> None:
        if not self.ended:
            raise self.violated(f"the pipeline did not come to its end; troubles: {self.troubles[-1:]}")
        self.account.look(None)
        self.scheduler.raise_failure()
        expected = self._expected()
        self._compare("the files", self._files(), expected)
        self._compare("the table", self._table(), expected)

    def _expected(self) -> dict[Window, tuple[int, int]]:
        sums: dict[Window, tuple[int, int]] = {}
        for _, frame in self.frames:
            for k, ts, v in frame.rows():
                total, n = sums.get((k, ts // _SIZE), (0, 0))
                sums[k, ts // _SIZE] = (total + v, n + 1)
        return sums

    def _files(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for place in sorted([*self.out.glob("epoch=*/*.ndjson"), *self.taken.glob("*/*.ndjson")]):
            found += pl.read_ndjson(place.read_bytes()).to_dicts()
        return found

    def _table(self) -> list[dict[str, Any]]:
        cursor = self.sink_database.connection.execute("SELECT * FROM sums")
        names = [each[0] for each in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def _compare(self, where: str, rows: list[dict[str, Any]], expected: dict[Window, tuple[int, int]]) -> None:
        found = Counter((row["k"], row["window_start"] // _SIZE) for row in rows)
        for window, times in found.items():
            if window not in expected or times > 1:
                raise self.violated(f"{where}: window {window} is there {times} times")
        for row in rows:
            window = row["k"], row["window_start"] // _SIZE
            total, n = expected[window]
            if (row["total"], row["n"]) != (total, n) and (self.precise or row["total"] > total or row["n"] > n):
                found_here = f"{row['total']} of {row['n']} rows"
                raise self.violated(f"{where}: window {window} has {found_here}, and should have {total} of {n}")
        missing = expected.keys() - found.keys()
        if missing and self.precise:
            raise self.violated(f"{where}: windows {sorted(missing)} are missing")


def _meta(program: Program) -> MetaStore:
    """A run closes the store that it is given."""
    return program.world.database.meta(program.threads)


class _Thread:
    """As `threading.Thread`, for who starts one by itself."""

    def __init__(self, threads: SimulatedThreads, target: Callable[[], None], name: str) -> None:
        self._threads, self._target, self._name = threads, target, name
        self._task: Any = None

    def start(self) -> None:
        self._task = self._threads.scheduler.spawn(self._threads.process, self._target, self._name)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done

    def join(self, timeout: float | None = None) -> None:
        while self.is_alive() and (timeout is None or timeout > 0):
            self._threads.sleep(0.05)
            timeout = None if timeout is None else timeout - 0.05
