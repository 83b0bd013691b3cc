"""A world of a pipeline that one process runs, and that is started again whenever it ends too early.

The process holds leases of its own, one for each fragment. It is killed and paused, perhaps while its successor starts,
the power fails, the clock is set, and people scale operators and have epochs planned again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from sqlalchemy.exc import SQLAlchemyError

import holdfast as hf
from holdfast.engine.fragment_runs import FragmentsRun
from holdfast.engine.lease import LEASE_SECONDS
from holdfast.engine.options import RunOptions
from holdfast.epoch.repair_messages import Replan
from holdfast.errors import HoldfastError
from holdfast.meta import Repairs
from holdfast.pstream.punit import close_all
from holdfast.store import Private, remove_tree
from holdfast_lab.simulate.ambushes import (
    AFTER_COMMIT,
    BEFORE_COMMIT,
    BEFORE_SWEEP,
    BEFORE_SYNC_OF_DIRECTORIES,
    BEFORE_SYNC_OF_NAMES,
    IN_CLEANING_UP,
)
from holdfast_lab.simulate.commit_account import CommitAccount
from holdfast_lab.simulate.run_platform import run_platform
from holdfast_lab.simulate.scheduler import Process
from holdfast_lab.simulate.window_sums import WindowSums, ask_to_scale
from holdfast_lab.simulate.world import Program, World

__all__ = ["SingleRunWorld"]

_BOX = "box"
_STEPS = 150
_LONG_SECONDS = 2.0
_MOST_DOUBLED = 3
_POLICIES = (
    hf.checkpoint.delta(), hf.checkpoint.interval("0.5s"), hf.checkpoint.interval("2s"), hf.checkpoint.eventual(Q=4),
    hf.checkpoint.eventual(Q=4), hf.checkpoint.none(), None,
)  # fmt: skip
_AMBUSHED = (BEFORE_COMMIT, BEFORE_SYNC_OF_NAMES, IN_CLEANING_UP, BEFORE_SWEEP)
_SEEDS_IN_THE_DARK, _FIRST_IN_THE_DARK = 30, 11
"""Each tenth of the seeds of this world: names that are not synced show only if two things come together."""
_GONE = Private("the memory of a machine that was switched off")


class SingleRunWorld(World):
    calm = 6.0
    end = 150.0

    def begin(self) -> None:
        draw = self.draw
        self.policy = draw.choice(_POLICIES)
        self.retain = draw.choice((1, 3))
        self.partitions = draw.choice((1, 2))
        self.recovery_partitions = draw.choice((None, None, 2))
        self.trigger = draw.choice((None, None, "0.4s"))
        self.merges = draw.choice(((), (1,), (1, 3)))
        self.lost_tasks = draw.choice((0.0, 0.0, 0.1))
        self.sums = WindowSums(self, cut=draw.random() < 0.35)
        self.fragments = self.sums.fragments
        self.accounts = [
            CommitAccount(
                name, self.database.connection, self.disk, self.root / "store" / name / "state", self.retain,
                lambda process: None, self.violate,
            )
            for name in self.fragments
        ]  # fmt: skip
        self.database.on_commit = self._look_at_commits
        self.ended = False
        self.troubles: list[str] = []
        self._running: Process | None = None
        self._in_vain = 0
        """How many runs have ended soon, one after the other."""
        self._start_run()
        if draw.random() < 0.5:
            self.start("reader", "elsewhere", self.sums.read)
        self.lossy_network()
        ambush = draw.choice((None, None, None, self._lie_in_wait, self._outsleep_the_lease))
        if ambush is not None:
            ambush()
        faults = (
            *(self._kill,) * 4, *(self._lose_power,) * 3, *(self._pause,) * 2, self._replan, self._replan,
            self.store_goes_away, self._table_goes_away, self.network_is_slow, self.disk_is_full, self.disk_is_slow,
            self._set_clock, self._scale,
        )  # fmt: skip
        for _ in range(draw.randrange(1, 6)):
            draw.choice(faults)()
        if self.seed % _SEEDS_IN_THE_DARK == _FIRST_IN_THE_DARK:
            self._leave_names_in_the_dark()

    def is_over(self) -> bool:
        return self.ended

    def _look_at_commits(self, process: Process | None) -> None:
        for account in self.accounts:
            account.look(process)

    # the process

    def _start_run(self) -> None:
        if not self.ended:
            self._running = self.start("run", _BOX, self._run).process

    def _start_soon(self) -> None:
        self.scheduler.after(self.draw.uniform(0.05, 1.0), self._start_run)

    def _start_later(self, lived: float) -> None:
        """As supervisors do, wait longer each time that it ends by itself before it has lived for long: another holds
        the lease, perhaps, and runs that find that out again and again show nothing new."""
        self._in_vain = 0 if lived >= _LONG_SECONDS else min(self._in_vain + 1, _MOST_DOUBLED)
        self.scheduler.after(self.draw.uniform(0.05, 1.0) * 2**self._in_vain, self._start_run)

    def _run(self, program: Program) -> None:
        options = RunOptions(
            store=self.root / "store", partitions=self.partitions, tasks=1, retain=self.retain, checkpoint=self.policy,
            volatile=self.root / "memory", poll=0.3, trigger=self.trigger, recovery_partitions=self.recovery_partitions,
        )  # fmt: skip
        mine, begun = program.process, self.scheduler.time
        try:
            platform = run_platform(program, self.merges, self.lost_tasks)
            run = FragmentsRun(
                self.sums.pipeline(), platform, options, open_meta=program.open_meta, threads=program.threads
            )
            run.run()
            self.ended = True
        except (HoldfastError, SQLAlchemyError, OSError) as error:
            self.troubles.append(str(error))
            self.scheduler.tell(f"trouble: {type(error).__name__}: {error}")
            if "a bug in Holdfast" in str(error):
                self.violate(str(error))
        if mine is self._running and not self.ended:
            self._start_later(self.scheduler.time - begun)
        self.scheduler.kill(mine)

    # faults

    def _strike(self, what: str, act: Callable[[Process], None]) -> None:
        def strike() -> None:
            if self._running is not None:
                self.befall(self._running, self.draw.choice((0, _STEPS)), act)

        self.fault(self.moment(), what, strike)

    def _kill(self) -> None:
        self._strike("the process is killed", self._kill_and_replace)

    def _kill_and_replace(self, process: Process) -> None:
        if process.alive:
            self.scheduler.kill(process)
            self._start_soon()

    def _pause(self) -> None:
        """It sleeps, perhaps longer than its leases last; another one is started meanwhile."""

        self._strike("the process sleeps", self._put_to_sleep)

    def _put_to_sleep(self, process: Process) -> None:
        if process.alive:
            self.pause(process, self.draw.choice((2.0, 60.0)) * self.draw.random())
            self._start_soon()

    def _lose_power(self) -> None:
        self._strike("power loss", self._switch_off)

    def _switch_off(self, _: Process) -> None:
        for process in self.processes_of(_BOX):
            self.scheduler.kill(process)
        close_all()
        remove_tree(self.root / "memory", _GONE)
        self.disk.lose_power()
        self._start_soon()

    def _lie_in_wait(self) -> None:
        """Something befalls the process at a place, and not at some time."""
        kind, act = self.draw.choice(
            (("the process is killed", self._kill_and_replace), ("the process sleeps", self._put_to_sleep),
             ("power loss", self._switch_off))
        )  # fmt: skip
        chance = self.draw.choice((0.1, 0.5))
        self.lay(self.draw.choice(_AMBUSHED), kind, act, whom=lambda process: process.host == _BOX, chance=chance)

    def _outsleep_the_lease(self) -> None:
        """The process sleeps before its sweep until its lease is another's, which has committed by then."""

        def act(process: Process) -> None:
            self.pause(process, LEASE_SECONDS + self.draw.uniform(0.5, 8.0))
            self.sums.hold_back(LEASE_SECONDS)
            self._start_soon()

        mine = self.draw.choice((1.0, 0.3))
        self.lay(BEFORE_SWEEP, "the process sleeps", act, whom=lambda process: process.host == _BOX, chance=mine)

    def _leave_names_in_the_dark(self) -> None:
        """The process is killed when it has made a directory and not synced its name; the power fails when the next one
        has committed what it has put there."""
        killed: list[Process] = []

        def act(process: Process) -> None:
            killed.append(process)
            self._kill_and_replace(process)

        mine, then = self.draw.choice((0.2, 0.5)), self.draw.choice((1.0, 0.3))
        self.lay(
            BEFORE_SYNC_OF_DIRECTORIES, "the process is killed", act, whom=lambda process: process.host == _BOX,
            chance=mine,
        )  # fmt: skip
        self.lay(
            AFTER_COMMIT, "power loss", self._switch_off,
            whom=lambda process: bool(killed) and process.host == _BOX, chance=then,
        )  # fmt: skip

    def _table_goes_away(self) -> None:
        database = self.sums.database
        self.for_a_while("the table is away", 0.2, 4.0, lambda until: setattr(database, "away_until", until))

    def _set_clock(self) -> None:
        self.clock_is_set(_BOX)

    # what people do

    def _scale(self) -> None:
        partitions = self.draw.randrange(1, 4)
        self._person("partitions change", lambda program: ask_to_scale(program, self.fragments[-1], partitions))

    def _replan(self) -> None:
        """What was planned and not committed is planned again, when the process starts next."""

        def ask(program: Program) -> None:
            for fragment in self.fragments:
                planned = tuple(plan.epoch for plan in program.meta.history(fragment)[1])
                if planned:
                    Repairs(program.meta).ask(fragment, Replan(planned).encode(), "as a test", program.threads.now())

        def act(process: Process) -> None:
            self._kill_and_replace(process)
            self.start("person", "elsewhere", lambda program: _try(ask, program))

        self._strike("epochs are planned again", act)

    def _person(self, what: str, work: Callable[[Program], None]) -> None:
        self.fault(self.moment(), what, lambda: self.start("person", "elsewhere", lambda program: _try(work, program)))

    # judgement

    def check(self) -> None:
        if not self.ended:
            raise self.violated(f"the pipeline did not come to its end; troubles: {self.troubles[-1:]}")
        self._look_at_commits(None)
        self.scheduler.raise_failure()
        self.sums.check()


def _try(work: Callable[[Program], None], program: Program) -> None:
    """A person gives up when the store does not answer."""
    with contextlib.suppress(HoldfastError, SQLAlchemyError):
        work(program)
