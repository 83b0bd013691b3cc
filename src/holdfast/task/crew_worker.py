"""A standing worker: runs its part of the tasks of epoch after epoch, as the driver's messages come.

The driver gives each worker a number, or keeps it as a spare. Task t of every stage is run by the worker of number t
modulo the size of the crew. A task of stage 0 runs when its
epoch begins; one of a later stage when all tasks of the stage before have delivered and the epoch before is committed.
What was begun before a worker was lost is dropped: the driver begins it again, under a new generation.

One thread runs tasks, one for each channel puts what arrives into a queue: a worker that is busy still takes in what
its fellows send.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast.epoch.crew_messages import (
    CrewHead,
    Die,
    End,
    FellowLost,
    ForgetEpoch,
    HandedOver,
    Hello,
    Parcel,
    ParcelsTaken,
    Roster,
    RunEpoch,
    SliceRead,
    TaskEnded,
)
from holdfast.epoch.handover import HandOver
from holdfast.epoch.messages import Message, error_message, packed, unpacked, with_syncing
from holdfast.epoch.plan import EpochPlan, TaskSettings
from holdfast.errors import HoldfastError
from holdfast.plan.program import Program
from holdfast.state.resident_cache import RESIDENT
from holdfast.store import Tiers, syncing_seconds
from holdfast.task.assembly_task import AssemblyTask
from holdfast.task.channel import Channel, ChannelClosedError, accept, connect, shut
from holdfast.task.fragment_task import FragmentTask
from holdfast.task.lacking_memory import lacked_memory
from holdfast.task.parcel_credits import ParcelCredits
from holdfast.task.work_directory import decode_plan

__all__ = ["CrewWorker"]

_SECONDS_TO_REACH = 3.0
"""A fellow has a thread that answers, also while it works."""
_SECONDS_TO_CONNECT = 0.75
_LOOK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class _CrewArrival:
    head: CrewHead
    body: bytes


@dataclass(frozen=True, slots=True)
class _ChannelGone:
    """A channel was closed: the driver's, or that of the fellow worker that has said hello."""

    hello: Hello | None
    why: str


@dataclass(slots=True)
class _WorkerEpoch:
    plan: EpochPlan
    settings: TaskSettings
    to_read: list[int]
    to_assemble: list[tuple[int, int]]
    """Stage and task of what is still to be run here, in the order of stages."""
    handover: HandOver | None = None
    arrived: dict[tuple[int, int], dict[int, bytes]] = field(default_factory=dict)
    """By stage and task: what each task of the stage before has sent."""


class CrewWorker:
    """`driver` is its channel to the driver, `door` where fellows connect."""

    def __init__(self, program: Program, tiers: Tiers, driver: Channel, door: socket.socket, secret: bytes) -> None:
        self._number = 0
        self._program = program
        self._tiers = tiers
        self._driver = driver
        self._door = door
        self._secret = secret
        self._size = 0
        self._generation = 0
        self._fellows: tuple[tuple[str, int], ...] = ()
        self._channels: dict[int, Channel] = {}
        self._incoming: set[Channel] = set()
        self._epochs: dict[int, _WorkerEpoch] = {}
        self._early: list[_CrewArrival] = []
        """What came for a generation, or an epoch, that this worker does not know of yet."""
        self._segments = tiers.open_segments()
        self._credits = ParcelCredits()
        self._queue: queue.SimpleQueue[_CrewArrival | _ChannelGone] = queue.SimpleQueue()

    # as the driver link of the tasks

    def read_plan(self, epoch: int) -> tuple[EpochPlan, TaskSettings]:
        found = self._epochs[epoch]
        return found.plan, found.settings

    def wait_handover(self, epoch: int) -> HandOver:
        handover = self._epochs[epoch].handover
        assert handover is not None, "it is there before a task of a later stage runs"
        return handover

    def mark_fragment(self, epoch: int, task: int) -> None:
        self._driver.send(SliceRead(self._generation, epoch, task))

    # the loop

    def run(self) -> None:
        """Until the driver ends it. Raises ChannelClosedError if the driver is gone, or has sent it away."""
        threading.Thread(target=self._receive, args=(self._driver,), name="driver", daemon=True).start()
        threading.Thread(target=self._open_door, name="door", daemon=True).start()
        try:
            while self._take_in(wait=True):
                while (work := self._next_work()) is not None:
                    self._do(*work)
                    if not self._take_in(wait=False):
                        return
        finally:
            RESIDENT.clear()
            shut(self._door)
            self._segments.close()
            for channel in (*self._channels.values(), *tuple(self._incoming)):
                channel.close()

    def _take_in(self, *, wait: bool) -> bool:
        """Take in what has arrived; with `wait`, wait for something to arrive. False if it is the end."""
        while True:
            try:
                arrived = self._queue.get(block=wait)
            except queue.Empty:
                return True
            wait = False
            if isinstance(arrived, _ChannelGone):
                if arrived.hello is None:
                    raise ChannelClosedError(f"the driver is gone: {arrived.why}")
                self._lost(arrived.hello.generation, arrived.hello.number, arrived.why)
            elif isinstance(arrived.head, End):
                return False
            else:
                self._hear(arrived)

    def _hear(self, arrived: _CrewArrival) -> None:
        match arrived.head:
            case Roster(generation, number, fellows):
                self._regroup(generation, number, fellows)
            case ForgetEpoch(epoch):
                self._epochs.pop(epoch, None)
                self._early = [early for early in self._early if getattr(early.head, "epoch", epoch + 1) > epoch]
            case RunEpoch(generation, epoch) if generation == self._generation:
                self._begin(epoch, arrived.body)
            case HandedOver(generation, epoch) if generation == self._generation:
                if epoch in self._epochs:
                    self._epochs[epoch].handover = HandOver.decode(arrived.body)
                else:
                    self._early.append(arrived)
            case Parcel(generation, epoch, stage, task, sender) if generation == self._generation:
                if epoch in self._epochs:
                    self._epochs[epoch].arrived.setdefault((stage, task), {})[sender] = arrived.body
                else:
                    self._early.append(arrived)
            case Parcel(generation, _, _, _, _) if generation > self._generation:
                self._early.append(arrived)
            case ParcelsTaken(generation, number, size) if generation == self._generation:
                self._credits.returned(number, size)
            case _:
                pass  # of a generation that is over

    def _regroup(self, generation: int, number: int, fellows: tuple[tuple[str, int], ...]) -> None:
        """New channels are made: nothing of a generation before is on its way in them."""
        self._generation, self._number, self._size = generation, number, len(fellows)
        self._epochs.clear()
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        self._credits.clear()
        self._fellows = fellows
        early, self._early = self._early, []
        for arrived in early:
            self._hear(arrived)

    def _begin(self, epoch: int, body: bytes) -> None:
        plan, settings = decode_plan(body)
        mine = [[task for task in range(count) if task % self._size == self._number] for count in plan.tasks]
        later = [(stage, task) for stage, tasks in enumerate(mine) if stage for task in tasks]
        self._epochs[epoch] = _WorkerEpoch(plan, settings, mine[0], later)
        early, self._early = self._early, []
        for arrived in early:
            self._hear(arrived)

    # work

    def _next_work(self) -> tuple[int, int, int] | None:
        """What can run now: epoch, stage and task; what is nearest to a commit first."""
        for epoch in sorted(self._epochs):
            at = self._epochs[epoch]
            if at.handover is not None:
                for stage, task in at.to_assemble:
                    if len(at.arrived.get((stage, task), {})) == at.plan.tasks[stage - 1]:
                        return epoch, stage, task
            if at.to_read and (self._credits.left or epoch == min(self._epochs)):
                return epoch, 0, at.to_read[0]
        return None

    def _do(self, epoch: int, stage: int, task: int) -> None:
        at = self._epochs[epoch]
        try:
            if stage == 0:
                at.to_read.remove(task)
                said = list(FragmentTask(self, epoch, self._segments).run(self._program, task))
            else:
                at.to_assemble.remove((stage, task))
                bodies = at.arrived.pop((stage, task))
                assembly = AssemblyTask(self, epoch, stage, self._tiers, self._segments)
                said = list(assembly.run(self._program, task, _in_order(bodies)))
                self._give_back(bodies)
            if not at.to_read and not at.to_assemble:  # nothing is committed before all workers have sent their last
                before = syncing_seconds()
                self._segments.sync()
                said = with_syncing(said, stage, task, syncing_seconds() - before)
        except HoldfastError as error:
            if lacked_memory(error):
                raise  # another process tries it, with nothing in its memory yet
            ended = TaskEnded(self._generation, epoch, stage, task)
            self._driver.send(ended, packed([error_message(error)]))
            return
        if stage + 1 == len(at.plan.tasks):
            self._driver.send(TaskEnded(self._generation, epoch, stage, task), packed(said))
            return
        width = at.plan.tasks[stage + 1]
        parts: list[list[Message]] = [[] for _ in range(width)]
        for message in said:
            parts[message.part % width].append(message)
        for part, messages in enumerate(parts):
            self._deliver(Parcel(self._generation, epoch, stage + 1, part, task), packed(messages))

    def _deliver(self, head: Parcel, body: bytes) -> None:
        """The worker that the task belongs to. If it cannot be reached, the driver says how to continue."""
        fellow = head.task % self._size
        self._credits.sent(fellow, len(body))
        if fellow == self._number:
            self._hear(_CrewArrival(head, body))
            return
        self._send(fellow, head, body)

    def _give_back(self, bodies: dict[int, bytes]) -> None:
        """What was assembled takes no memory any more: those that have sent it may send more."""
        for sender, body in bodies.items():
            fellow = sender % self._size
            if fellow == self._number:
                self._credits.returned(fellow, len(body))
            elif size := self._credits.taken(fellow, len(body)):
                self._send(fellow, ParcelsTaken(self._generation, self._number, size))

    def _send(self, fellow: int, head: CrewHead, body: bytes = b"") -> None:
        """If a fellow cannot be reached, the driver says how it goes on."""
        try:
            if fellow not in self._channels:
                channel = connect(*self._fellows[fellow], self._secret, _SECONDS_TO_REACH, reach=_SECONDS_TO_CONNECT)
                channel.send(Hello(self._generation, self._number))
                self._channels[fellow] = channel
                watched = (channel, Hello(self._generation, fellow))
                threading.Thread(target=self._watch, args=watched, name="fellow", daemon=True).start()
            self._channels[fellow].send(head, body)
        except (OSError, ChannelClosedError) as error:
            failed = self._channels.pop(fellow, None)
            if failed is not None:
                failed.close()
            self._lost(self._generation, fellow, str(error))

    def _lost(self, generation: int, fellow: int, why: str) -> None:
        if generation >= self._generation:  # a fellow may have heard of the next one first
            self._driver.send(FellowLost(generation, fellow, why, self._number))

    # what arrives

    def _receive(self, channel: Channel, hello: Hello | None = None) -> None:
        try:
            while True:
                head, body = channel.receive()
                if isinstance(head, Die) and hello is None:  # here, since the thread that works may be busy
                    os.kill(os.getpid(), signal.SIGKILL)
                self._queue.put(_CrewArrival(head, body))
        except ChannelClosedError as error:
            channel.close()
            if hello is not None:
                self._incoming.discard(channel)
            self._queue.put(_ChannelGone(hello, str(error)))

    def _watch(self, channel: Channel, fellow: Hello) -> None:
        """Nothing comes back on it but the end, which is also that nothing of what was sent arrives."""
        try:
            while not channel.wait(_LOOK_SECONDS):
                if channel.unanswered:
                    raise ChannelClosedError("nothing that is sent arrives")
            why = "the other side has closed the connection"
        except ChannelClosedError as error:
            why = str(error)
        channel.close()
        self._queue.put(_ChannelGone(fellow, why))

    def _open_door(self) -> None:
        while True:
            try:
                link, _ = self._door.accept()
            except OSError:
                return
            threading.Thread(target=self._meet, args=(link,), name="fellow", daemon=True).start()

    def _meet(self, link: socket.socket) -> None:
        try:
            channel = accept(link, self._secret)
            head, _ = channel.receive()
        except ChannelClosedError:
            return
        if isinstance(head, Hello):
            self._incoming.add(channel)
            self._receive(channel, head)
        else:
            channel.close()


def _in_order(bodies: dict[int, bytes]) -> Iterator[Message]:
    for _, body in sorted(bodies.items()):
        yield from unpacked(body)
