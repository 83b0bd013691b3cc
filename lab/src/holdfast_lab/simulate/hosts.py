"""A world of hosts that run one pipeline together: the output is that of a run without faults.

Each host is a process with its membership, its replicas, their runs and its controllers, as they ship; epochs run in
the process. The hosts share a directory and a meta store behind a network. They are killed, paused and cut off, the
power fails, clocks are set, and somebody changes the scheme and the number of partitions.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sqlalchemy.exc import SQLAlchemyError

import holdfast as hf
from holdfast.engine.options import RunOptions
from holdfast.errors import HoldfastError, StoreUnreachableError
from holdfast.pstream.punit import close_all
from holdfast.replica.deployment import Deployment, deploy, deployment_of
from holdfast.replica.host import Host, HostSettings
from holdfast.replica.host_events import HostEvent, ReplicaTrouble, event_text
from holdfast.replica.keeper import Timing
from holdfast.replica.process_meter import ProcessMeter
from holdfast.replica.scheme_change import turn as turn_by_hand
from holdfast.replica.schemes.active_replication import ACTIVE_REPLICATION
from holdfast.replica.schemes.wheel import SCHEMES, path
from holdfast.replica.seat_store import Agreed, Agreement
from holdfast.replica.supervisor import Supervisor
from holdfast.store import Private, remove_tree
from holdfast_lab.simulate.ambushes import (
    BEFORE_COMMIT,
    BEFORE_PUBLISHING,
    BEFORE_SWEEP,
    BEFORE_SYNC_OF_NAMES,
    IN_CLEANING_UP,
    WHEN_FOLLOWED,
)
from holdfast_lab.simulate.commit_account import CommitAccount
from holdfast_lab.simulate.plots import PLOTS
from holdfast_lab.simulate.run_platform import run_platform
from holdfast_lab.simulate.scheduler import Process
from holdfast_lab.simulate.window_sums import WindowSums, ask_to_scale
from holdfast_lab.simulate.world import Program, World

__all__ = ["HostsWorld"]

_TIMING = Timing(beat=0.5, detection=1.8)
_AMBUSHED = (BEFORE_COMMIT, BEFORE_SYNC_OF_NAMES, IN_CLEANING_UP, BEFORE_PUBLISHING, WHEN_FOLLOWED, BEFORE_SWEEP)
_STEPS_TO_START = 400
_STEPS_OF_EPOCHS = 150
_POLICIES = (
    hf.checkpoint.delta(), hf.checkpoint.delta(), hf.checkpoint.interval("2s"), hf.checkpoint.interval("0.5s"),
    hf.checkpoint.none(),
)  # fmt: skip
_GONE = Private("the memory of a machine that was switched off")


class SimulatedMeter(ProcessMeter):
    """The operating system knows nothing of simulated processes."""

    def cpu_seconds(self) -> float:
        return 1.0

    def resident_bytes(self) -> float:
        return 1e8


@dataclass(slots=True, eq=False)
class Slot:
    """A place where a process of a host runs, as its supervisor sees it."""

    name: str
    world: HostsWorld
    process: Process | None = None
    host: Host | None = None
    off_until: float = 0.0

    def pid(self) -> int | None:
        return self.process.number if self.process is not None and self.process.alive else None

    def may_start(self) -> bool:
        return self.world.scheduler.time >= self.off_until

    def start(self) -> None:
        self.host = None
        self.process = self.world.start_host(self)

    def rotate_log(self) -> None:
        """It writes none."""

    def terminate(self) -> None:
        if self.host is not None and self.pid() is not None:
            self.host.stop()

    def wait(self, seconds: float) -> bool:
        until = self.world.scheduler.time + seconds
        while self.pid() is not None and self.world.scheduler.time < until:
            self.world.scheduler.sleep(_TIMING.beat)
        return self.pid() is None

    def kill(self) -> None:
        if self.process is not None:
            self.world.scheduler.kill(self.process)


class HostsWorld(World):
    calm = 6.0
    end = 120.0

    def begin(self) -> None:
        draw = self.draw
        self.slots = [Slot(name, self) for name in ("a", "b", "c")[: draw.choice((2, 2, 3))]]
        self.scheme = draw.choice((*SCHEMES, ACTIVE_REPLICATION, None, None))  # where two commit, most can go wrong
        """None: the controller keeps a guarantee."""
        self.policy = draw.choice(_POLICIES)
        self.retain = 3 if self.policy == hf.checkpoint.delta() else 1  # copies are what must stay then
        self.poll = 0.05 if self.scheme is ACTIVE_REPLICATION else 0.3  # so that both often plan at the same time
        self.partitions = draw.choice((1, 2))
        self.merges = draw.choice(((), (1,), (1, 3)))
        self.lost_tasks = draw.choice((0.0, 0.0, 0.1))
        recovery = draw.choice(("800ms", "3s", "20s")) if self.scheme is None else None
        self.sums = WindowSums(self, recovery=recovery, precise=draw.random() < 0.65, cut=draw.random() < 0.2)
        self.deployment: Deployment | None = None
        self.accounts: list[CommitAccount] = []
        self.incarnations: dict[Process, int] = {}
        self.ended = False
        self.troubles: list[str] = []
        self.restless = draw.choice((0.0, 0.0, 0.3))
        """How many hosts something befalls while they start."""
        self.start("supervisor", "elsewhere", self._supervise, skew=False)
        self.has_reader = draw.random() < 0.5
        plot = PLOTS[self.seed // 3 % len(PLOTS)]
        if plot is None or draw.random() < 0.3:
            self.lossy_network()
        if plot is not None:
            plot(self)
        elif draw.random() < 0.3:
            self._lie_in_wait()
        faults = (
            *(self._kill_host,) * 6, *(self._stall_host,) * 3, *(self._pause_host,) * 3, *(self._cut_off_host,) * 2,
            *(self._lose_power,) * 2, *(self._turn_wheel,) * 4, self._scale, self._set_clock, self.store_goes_away,
            self._table_goes_away, self.network_is_slow, self.disk_is_full, self.disk_is_slow,
        )  # fmt: skip
        for _ in range(draw.randrange(1, 6) if plot is None else draw.randrange(3)):
            draw.choice(faults)()
        if self.has_reader:
            self.start("reader", "elsewhere", self.sums.read)

    def is_over(self) -> bool:
        return self.ended

    # hosts

    def _run_host(self, slot: Slot, program: Program) -> None:
        threads, process = program.threads, program.process
        settings = HostSettings(
            name=slot.name, store=self.root / "store", volatile=self.root / "memory" / slot.name, timing=_TIMING
        )
        meter = SimulatedMeter(f"{process.name}:0:0.0", threads.now())
        with contextlib.suppress(HoldfastError, SQLAlchemyError):  # a process that ends so is started again
            host = Host(settings, lambda target: self.sums.pipeline(), self._hear, threads, meter, program.open_meta)
            slot.host = host
            self.incarnations[process] = host.member.incarnation
            host.beat()
            host.run(run_platform(program, self.merges, self.lost_tasks))
        self.scheduler.kill(process)

    def _hear(self, event: HostEvent) -> None:
        self.scheduler.tell(event_text(event))
        if isinstance(event, ReplicaTrouble):
            self.troubles.append(event.text)
            if "a bug in Holdfast" in event.text:
                self.violate(event.text)

    # the supervisor

    def _supervise(self, program: Program) -> None:
        agreement = self._deploy(program)
        assert self.deployment is not None

        def judge(deployment: Deployment, now: float) -> Deployment:
            self._judge(supervisor.agreed)
            return deployment

        supervisor = Supervisor(
            self.deployment, agreement, {slot.name: slot for slot in self.slots}, _TIMING.detection,
            self.scheduler.tell, judge, program.threads, _TIMING.beat,
        )  # fmt: skip
        supervisor.run()

    def _deploy(self, program: Program) -> Agreement:
        """Hand the pipeline to the hosts: tries until the store answers."""
        options = RunOptions(
            store=self.root / "store", partitions=self.partitions, tasks=1, retain=self.retain, poll=self.poll
        )
        hosts = [slot.name for slot in self.slots]
        while True:
            try:
                agreement = _agreement(program)
                pipeline = self.sums.pipeline()
                made = deployment_of(pipeline, "p", options, program.meta, self.scheme, str(self.policy), hosts)
                deploy(made, agreement, program.meta)
                break
            except (StoreUnreachableError, SQLAlchemyError):
                program.threads.sleep(0.5)
        self.deployment = made
        self.accounts = [
            CommitAccount(
                name, self.database.connection, self.disk, self.root / "store" / name / "state", self.retain,
                self.incarnations.get, self.violate,
            )
            for name in made.fragments
        ]  # fmt: skip
        self.database.on_commit = self._look_at_commits
        return agreement

    def _look_at_commits(self, process: Process | None) -> None:
        for account in self.accounts:
            account.look(process)

    def _judge(self, views: dict[str, Agreed]) -> None:
        for view in views.values():
            if view.notes.failed is not None:
                self.violate(f"the pipeline was given up: {view.notes.failed}")
            if view.notes.diverged is not None:
                self.violate(f"replicas differ: {view.notes.diverged}")
        self.ended = bool(views) and all(view.ended for view in views.values())

    def start_host(self, slot: Slot) -> Process:
        process = self.start(slot.name, slot.name, partial(self._run_host, slot)).process
        if self.scheduler.time < self.calm and self.draw.random() < self.restless:
            act = self.draw.choice((self.scheduler.kill, self._put_to_sleep))
            self.befall(process, _STEPS_TO_START, act)
        return process

    # faults

    def _strike(self, what: str, act: Callable[[Process], None]) -> None:
        """Something befalls a host that runs, most often the one that leads."""

        def strike() -> None:
            running = [slot.process for slot in self.slots if slot.process is not None and slot.process.alive]
            leads = [process for process in running if self.leads(process)]
            victims = leads if leads and self.draw.random() < 0.7 else running
            if victims:
                victim = self.draw.choice(victims)
                self.scheduler.tell(f"it is {victim.name}")
                self.befall(victim, self.draw.choice((0, _STEPS_OF_EPOCHS)), act)

        self.fault(self.moment(), what, strike)

    def leads(self, process: Process) -> bool:
        return process.host == self._leader()

    def _leader(self) -> str | None:
        """As the store says, without its code."""
        row = self.database.connection.execute("SELECT seats FROM replicas ORDER BY fragment DESC").fetchone()
        seat = None if row is None else json.loads(row[0])["primary"]
        return None if seat is None else str(seat[0])

    def _kill_host(self) -> None:
        self._strike("a host is killed", self.scheduler.kill)

    def _pause_host(self) -> None:
        self._strike("a host sleeps", self._put_to_sleep)

    def _stall_host(self) -> None:
        """It keeps its seat, and is behind the others when it goes on."""
        self._strike("a host stalls", self.stall)

    def stall(self, process: Process) -> None:
        self.pause(process, self.draw.uniform(0.2, 1.2))

    def _put_to_sleep(self, process: Process) -> None:
        self.pause(process, self.draw.uniform(1.0, 6.0))

    def switch_off(self, host: str, seconds: float) -> None:
        """What is in its memory is gone, with its processes; it is back after so long."""
        for slot in self.slots:
            if slot.name == host:
                slot.off_until = self.scheduler.time + seconds
        for process in self.processes_of(host):
            self.scheduler.kill(process)
        close_all()
        remove_tree(self.root / "memory" / host, _GONE)

    def switch_off_leader(self) -> None:
        if (leader := self._leader()) is not None:
            self.switch_off(leader, 0.0)

    def _lie_in_wait(self) -> None:
        kind, act = self.draw.choice(
            (("a host is killed", self.scheduler.kill), ("a host sleeps", self._put_to_sleep),
             ("a host stalls", self.stall))
        )  # fmt: skip
        self.lay(self.draw.choice(_AMBUSHED), kind, act, chance=self.draw.choice((0.1, 0.5)))

    def _cut_off_host(self) -> None:
        def act(process: Process) -> None:
            self.database.cut_off[process.host] = self.scheduler.time + self.draw.uniform(0.3, 6.0)

        self._strike("a host is cut off", act)

    def _lose_power(self) -> None:
        def act(_: Process) -> None:
            for slot in self.slots:
                for process in self.processes_of(slot.name):
                    self.scheduler.kill(process)
            close_all()
            remove_tree(self.root / "memory", _GONE)
            self.disk.lose_power()

        self._strike("power loss", act)

    def _table_goes_away(self) -> None:
        database = self.sums.database
        self.for_a_while("the table is away", 0.2, 4.0, lambda until: setattr(database, "away_until", until))

    def _set_clock(self) -> None:
        self.clock_is_set(self.draw.choice(self.slots).name)

    # what people do

    def _scale(self) -> None:
        partitions = self.draw.randrange(1, 4)
        windowed = self.sums.fragments[-1]
        self._person("partitions change", lambda program: ask_to_scale(program, windowed, partitions))

    def _turn_wheel(self) -> None:
        to = self.draw.choice(SCHEMES)

        def turn(program: Program) -> None:
            agreement = _agreement(program)
            while self.deployment is not None:
                program.threads.sleep(0.8)
                seats = agreement.look(self.sums.fragments)
                steps = {name: path(view.seats.scheme, to)[:1] for name, view in seats.items() if not view.ended}
                for name, [*step] in steps.items():
                    for scheme in step:
                        turn_by_hand(agreement, name, scheme)
                if not any(steps.values()):
                    return

        self._person("the scheme changes", turn)

    def _person(self, what: str, work: Callable[[Program], None]) -> None:
        """Gives up when the store does not answer."""

        def try_once(program: Program) -> None:
            with contextlib.suppress(HoldfastError, SQLAlchemyError):
                work(program)

        self.fault(self.moment(), what, lambda: self.start("person", "elsewhere", try_once))

    # judgement

    def check(self) -> None:
        if not self.ended:
            raise self.violated(f"the pipeline did not come to its end; troubles: {self.troubles[-1:]}")
        self._look_at_commits(None)
        self.scheduler.raise_failure()
        self.sums.check()


def _agreement(program: Program) -> Agreement:
    return Agreement(program.meta, f"{program.process.name}:0:0.0", program.threads.now)
