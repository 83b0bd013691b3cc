"""The protocol against a simulated world: store, network, disks, clocks, processes, a supervisor and a reader.

Everything that happens follows from the seed. The world stops at the first violation of an invariant, and after a calm
time at the end it must have gone on: committed, delivered, and with a secondary that is what the scheme says.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from holdfast.replica.faults import Fault, FaultKind, Scenario, Weather
from holdfast.replica.invariants import Checker, ViolationError, slice_value
from holdfast.replica.keeper import Timing
from holdfast.replica.ledger import Answer, Ledger, Request
from holdfast.replica.messages import (
    Acked,
    Action,
    Answered,
    Ask,
    Begins,
    Begun,
    Event,
    Exit,
    Fetch,
    Fetched,
    LoadProgram,
    Local,
    OpenSession,
    ProgramLoaded,
    Publish,
    Ran,
    Release,
    Rows,
    Run,
    Save,
    Saved,
    SessionOpened,
    Subscribe,
    Sweep,
    Tick,
    Unsubscribe,
    Write,
    Written,
)
from holdfast.replica.progress import check_progress
from holdfast.replica.protocol import Replica
from holdfast.replica.queues import Receiver
from holdfast.replica.schemes import Scheme
from holdfast.replica.seating import Turn
from holdfast.replica.watch import Watch, supervise

__all__ = ["Parts", "World"]

UPSTREAMS = 2
_CALM_SECONDS = 6.0
_ANSWER_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Parts:
    """The machines to run. A test puts a broken one in, to see that it is found out."""

    ledger: Callable[..., Ledger] = Ledger
    replica: Callable[..., Replica] = Replica
    receiver: Callable[[], Receiver] = Receiver


@dataclass(slots=True)
class Process:
    replica: Replica
    incarnation: int
    rate: float
    offset: float
    paused_until: float = 0.0


@dataclass(slots=True)
class World:
    scenario: Scenario
    parts: Parts = field(default_factory=Parts)
    history: list[str] | None = None
    now: float = 0.0
    events: int = 0
    processes: dict[str, Process] = field(default_factory=dict)
    starting: dict[str, float] = field(default_factory=dict)
    outputs: dict[tuple[int, int], int] = field(default_factory=dict)
    checkpoints: dict[tuple[int, int], Local] = field(default_factory=dict)
    heads: list[int] = field(default_factory=lambda: [0] * UPSTREAMS)
    trimmed: list[int] = field(default_factory=lambda: [0] * UPSTREAMS)
    subscribers: dict[str, int] = field(default_factory=dict)
    weather: Weather = field(default_factory=Weather)
    watch: Watch = field(default_factory=Watch)
    incarnations: int = 0
    committed_at: list[float] = field(default_factory=list)
    odd_runs: dict[tuple[int, int], tuple[int, float]] = field(default_factory=dict)
    """By incarnation and epoch, what the odd host made of it, and when."""
    timing: Timing = field(default_factory=Timing)
    _heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = field(default_factory=list)
    _serial: int = 0
    draw: random.Random = field(init=False)
    ledger: Ledger = field(init=False)
    receiver: Receiver = field(init=False)
    checker: Checker = field(init=False)

    def __post_init__(self) -> None:
        made = self.scenario
        self.draw = random.Random(made.seed * 2 + 1)
        self.ledger = self.parts.ledger(upstreams=UPSTREAMS, precise=made.precise, scheme=made.scheme)
        self.receiver = self.parts.receiver()
        self.checker = Checker(
            UPSTREAMS, made.precise, made.scheme, self.outputs, self.checkpoints, same=made.odd is None
        )
        for fault in made.faults:
            self._at(fault.at, self._strike, fault)
        for at, to in made.turns:
            self._at(at, self._turn, to)
        self._at(0.0, self._produce)
        self._at(0.0, self._supervise)

    def run(self) -> None:
        end = self.scenario.calm_at + _CALM_SECONDS
        self.run_until(end)
        check_progress(self, end)

    def run_until(self, end: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= end:
            self.now, _, act, given = heapq.heappop(heap)
            self.events += 1
            act(*given)

    # time

    def _at(self, time: float, act: Callable[..., None], *given: Any) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (time, self._serial, act, given))

    def _later(self, low: float, high: float, act: Callable[..., None], *given: Any) -> None:
        self._at(self.now + low + (high - low) * self.draw.random(), act, *given)

    def _is_on(self, kind: FaultKind, host: str = "") -> bool:
        return self.now < self.weather.clear_at and self.weather.is_on(kind, host, self.now)

    def _tell(self, who: str, what: object) -> None:
        if self.history is not None:
            self.history.append(f"{self.now:8.4f} {who:10} {what}")

    # processes

    def _deliver(self, host: str, incarnation: int, event: Event) -> None:
        process = self.processes.get(host)
        if process is None or process.incarnation != incarnation:
            return
        if process.paused_until > self.now:
            self._at(process.paused_until, self._deliver, host, incarnation, event)
            return
        if self.history is not None:
            self._tell(host, _shown(event))
        for action in process.replica.on(event, self.now * process.rate + process.offset):
            self._do(host, process, action)

    def _tick(self, host: str, incarnation: int) -> None:
        process = self.processes.get(host)
        if process is not None and process.incarnation == incarnation:
            self._deliver(host, incarnation, Tick())
            self._at(
                max(self.now, process.paused_until) + self.timing.beat / process.rate, self._tick, host, incarnation
            )

    def _start(self, host: str) -> None:
        self.starting.pop(host, None)
        if host in self.processes:
            return
        self.incarnations += 1
        replica = self.parts.replica(host, self.incarnations, UPSTREAMS, self.timing, self.scenario.precise)
        process = Process(replica, self.incarnations, self.draw.uniform(0.98, 1.02), self.draw.uniform(-100, 100))
        self.processes[host] = process
        self._deliver(host, process.incarnation, Begun())
        self._at(self.now + self.timing.beat, self._tick, host, process.incarnation)

    def _end(self, host: str) -> None:
        self.processes.pop(host, None)
        self.subscribers.pop(host, None)

    def _supervise(self) -> None:
        self._later(0.25, 0.35, self._supervise)
        if self._is_on(FaultKind.SUPERVISOR_DOWN):
            self.watch = Watch()
            return
        view = None if self._is_on(FaultKind.STORE_DOWN) else self.ledger.view()
        if view is not None:
            self.watch.look(view.primary, view, self.now, 0.5)
        running = (*self.processes, *self.starting)
        for host in supervise(view, self.watch, self.timing.detection, self.scenario.hosts, running):
            self.starting[host] = self.now
            self._later(0.1, 0.4, self._start, host)

    def _turn(self, to: Scheme | int) -> None:
        if isinstance(to, int):
            ranks = list(Scheme)
            to = ranks[max(0, min(len(ranks) - 1, self.ledger.scheme.rank + to))]
        self._apply(Turn(self.ledger.turns, to))

    # faults

    def _strike(self, fault: Fault) -> None:
        self._tell("fault", fault)
        kind, host = fault.kind, fault.host
        if kind is FaultKind.CRASH:
            self._end(host)
        elif kind is FaultKind.CRASH_ALL:
            for each in self.scenario.hosts:
                self._end(each)
        elif kind is FaultKind.PAUSE:
            if host in self.processes:
                self.processes[host].paused_until = self.now + fault.seconds
        elif kind is FaultKind.CLOCK_JUMP:
            if host in self.processes:
                self.processes[host].offset += fault.amount
        else:
            self.weather.begin(fault, self.now)

    def _copies(self, host: str) -> tuple[float, ...]:
        return self.weather.copies(host, self.now, self.draw)

    # store

    def _ask(self, host: str, incarnation: int, request: Request) -> None:
        patience = self.now + _ANSWER_SECONDS
        # A transaction is not sent twice by the network.
        arrivals = () if self._is_on(FaultKind.PARTITION, host) else self._copies(host)[:1]
        if not arrivals or arrivals[0] >= patience:
            self._at(patience, self._deliver, host, incarnation, Answered(request, None))
        for at in arrivals:
            self._at(at, self._transact, host, incarnation, request, patience)

    def _transact(self, host: str, incarnation: int, request: Request, patience: float) -> None:
        answer: Answer | None = None
        arrivals: tuple[float, ...] = ()
        if not self._is_on(FaultKind.STORE_DOWN):
            answer = self._apply(request)
            lost = self._is_on(FaultKind.LOST_REPLIES) and self.draw.random() < 0.5
            arrivals = () if lost or self._is_on(FaultKind.PARTITION, host) else self._copies(host)[:1]
        if self.now < patience:
            at = min((*arrivals, patience))
            self._at(at, self._deliver, host, incarnation, Answered(request, answer if at < patience else None))

    def _apply(self, request: Request) -> Answer:
        answer = self.ledger.apply(request)
        if self.history is not None:
            self._tell("ledger", f"{'done' if answer.done else 'no  '} {request}")
        before = self.checker.committed
        self.checker.on_answer(request, answer)
        if self.checker.committed > before:
            self.committed_at.append(self.now)
        return answer

    # inputs

    def _produce(self) -> None:
        self._later(0.15, 0.3, self._produce)
        for number in range(UPSTREAMS):
            first = self.heads[number]
            self.heads[number] = end = first + self.draw.randint(0, 5)
            if end > first:
                for host, incarnation in self.subscribers.items():
                    self._send_rows(host, incarnation, Rows(number, first, end))

    def _send_rows(self, host: str, incarnation: int, rows: Rows) -> None:
        for at in self._copies(host):
            self._at(at, self._deliver, host, incarnation, rows)

    def _subscribed(self, host: str, incarnation: int, vector: tuple[int, ...] | None) -> None:
        process = self.processes.get(host)
        if process is None or process.incarnation != incarnation:
            return
        self.subscribers[host] = incarnation
        if vector is None:
            vector = tuple(self.heads)
            if process.replica.seat is not None:
                self.checker.begins[process.replica.seat.token] = vector
            for at in self._copies(host):
                self._at(at, self._deliver, host, incarnation, Begins(vector))
        for number, position in enumerate(vector):
            first = max(position, self.trimmed[number])
            if first < self.heads[number]:
                self._send_rows(host, incarnation, Rows(number, first, self.heads[number]))

    def _unsubscribed(self, host: str, incarnation: int) -> None:
        if self.subscribers.get(host) == incarnation:
            del self.subscribers[host]

    # actions

    def _do(self, host: str, process: Process, action: Action) -> None:
        if self.history is not None:
            self._tell(host, f"  → {action}")
        incarnation = process.incarnation
        mine = (host, incarnation)
        if isinstance(action, Ask):
            self._ask(host, incarnation, action.request)
        elif isinstance(action, Run):
            self._later(0.03, 0.12, self._ran, host, incarnation, action)
        elif isinstance(action, Write):
            self._later(0.01, 0.03, self._wrote, host, incarnation, action)
        elif isinstance(action, Save):
            self._later(0.02, 0.05, self._save, host, incarnation, action)
        elif isinstance(action, Publish):
            for at in self._copies(host):
                self._at(at, self._received, host, incarnation, action, self._output(action))
        elif isinstance(action, Subscribe):
            for at in self._copies(host):
                self._at(at, self._subscribed, *mine, action.vector)
        elif isinstance(action, Fetch):
            self._later(0.05, 0.2, self._fetched, host, incarnation, action)
        elif isinstance(action, Release):
            self.trimmed = [max(pair) for pair in zip(self.trimmed, action.vector, strict=True)]
            self.checker.on_released(self.trimmed)
        elif isinstance(action, Sweep):
            self._sweep(action)
        elif isinstance(action, OpenSession):
            self._later(0.3, 0.6, self._deliver, *mine, SessionOpened())
        elif isinstance(action, LoadProgram):
            self._later(0.02, 0.06, self._deliver, *mine, ProgramLoaded())
        elif isinstance(action, Unsubscribe):
            self._unsubscribed(*mine)
        elif isinstance(action, Exit) and self.processes.get(host) is process:
            self._end(host)

    def _ran(self, host: str, incarnation: int, run: Run) -> None:
        value = run.state.value + sum(slice_value(*piece) for piece in run.pieces)
        odd = self.scenario.odd
        if odd is not None and odd[0] == host and run.epoch >= odd[1]:
            value += incarnation
            self.odd_runs[incarnation, run.epoch] = value, self.now
        ends = tuple(end for _, end in run.slices)
        self._deliver(host, incarnation, Ran(Local(run.state.lineage, run.epoch, value, ends)))

    def _has_room(self, host: str, incarnation: int) -> bool | None:
        """None if the process is gone; one that is stopped has its write in the system's hands already."""
        process = self.processes.get(host)
        if process is None or process.incarnation != incarnation:
            return None
        return not self._is_on(FaultKind.DISK_FULL)

    def _wrote(self, host: str, incarnation: int, write: Write) -> None:
        room = self._has_room(host, incarnation)
        if room:
            self.outputs[write.epoch, write.token] = write.value
        if room is not None:
            self._deliver(host, incarnation, Written(write.epoch, write.token, room))

    def _save(self, host: str, incarnation: int, save: Save) -> None:
        room = self._has_room(host, incarnation)
        if room:
            self.checkpoints[save.state.epoch, save.token] = save.state
        if room is not None:
            self._deliver(host, incarnation, Saved(save.state, save.token, room))

    def _fetched(self, host: str, incarnation: int, fetch: Fetch) -> None:
        self._deliver(host, incarnation, Fetched(self.checkpoints.get((fetch.epoch, fetch.token))))

    def _output(self, publish: Publish) -> int | None:
        """What is sent; a reader that has the epoch already does not mind that it is gone."""
        if publish.skipped:
            return None
        value = self.outputs.get((publish.epoch, publish.token))
        if value is None and publish.epoch > self.checker.taken:
            raise ViolationError(f"the output of epoch {publish.epoch} is to be sent and is not there")
        return value

    def _received(self, host: str, incarnation: int, publish: Publish, value: int | None) -> None:
        for epoch, taken in self.receiver.take(publish.epoch, value):
            self.checker.on_taken(epoch, taken)
            self._tell("reader", f"epoch {epoch}: {taken}")
        for at in self._copies(host):
            self._at(at, self._deliver, host, incarnation, Acked(self.receiver.seen))

    def _sweep(self, sweep: Sweep) -> None:
        for epoch, token in list(self.outputs):
            if epoch <= sweep.delivered or (token < sweep.oldest and (epoch, token) not in sweep.named):
                del self.outputs[epoch, token]
        for epoch, token in list(self.checkpoints):
            if epoch < sweep.checkpoint or (token < sweep.oldest and (epoch, token) not in sweep.named):
                del self.checkpoints[epoch, token]
        self.checker.on_swept()


def _shown(event: Event) -> object:
    """An answer without all that it saw."""
    if not isinstance(event, Answered):
        return event
    known = "no answer" if event.answer is None else f"done={event.answer.done}"
    return f"{known} to {event.request}"
