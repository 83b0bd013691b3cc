"""A standing worker: runs its part of the tasks of epoch after epoch, as the driver's messages come.

Task t of every stage is run by the worker of number t modulo the size of the crew. A task of stage 0 runs when its
epoch begins; one of a later stage when all tasks of the stage before have delivered and the epoch before is committed.
What was begun before a worker was lost is dropped: the driver begins it again, under a new generation.

One thread runs tasks, one for each channel puts what arrives into a queue: a worker that is busy still takes in what
its fellows send.
"""

from __future__ import annotations

import io
import queue
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.epoch.crew_messages import (
    CrewHead,
    End,
    ForgetEpoch,
    HandedOver,
    Parcel,
    Roster,
    RunEpoch,
    SliceRead,
    TaskEnded,
)
from holdfast.epoch.handover import HandOver
from holdfast.epoch.messages import Message, error_message, pack, unpack
from holdfast.epoch.plan import EpochPlan, TaskSettings
from holdfast.errors import HoldfastError
from holdfast.plan.program import Program
from holdfast.store import Tiers
from holdfast.task.assembly_task import AssemblyTask
from holdfast.task.channel import Channel, ChannelClosedError, accept, connect, shut
from holdfast.task.fragment_task import FragmentTask
from holdfast.task.work_directory import decode_plan

__all__ = ["CrewWorker", "packed", "unpacked"]


@dataclass(frozen=True, slots=True)
class _CrewArrival:
    head: CrewHead
    body: bytes


@dataclass(frozen=True, slots=True)
class _ChannelGone:
    """A channel was closed: the driver's, or a fellow's. The driver says what comes of the latter."""

    driver: bool


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


def packed(messages: list[Message]) -> bytes:
    sink = io.BytesIO()
    writer: pa.RecordBatchStreamWriter | None = None
    for batch in pack(messages):
        writer = writer or pa.ipc.new_stream(sink, batch.schema)
        writer.write_batch(batch)
    assert writer is not None
    writer.close()
    return sink.getvalue()


def unpacked(body: bytes) -> list[Message]:
    with pa.ipc.open_stream(pa.BufferReader(body)) as reader:
        return list(unpack(reader))


class CrewWorker:
    """Worker `number` of a crew. `driver` is its channel to the driver, `door` where fellows connect."""

    def __init__(
        self, number: int, program: Program, tiers: Tiers, driver: Channel, door: socket.socket, secret: bytes
    ) -> None:
        self._number = number
        self._program = program
        self._tiers = tiers
        self._driver = driver
        self._door = door
        self._secret = secret
        self._size = 0
        self._generation = 0
        self._fellows: dict[int, tuple[str, int]] = {}
        self._channels: dict[int, Channel] = {}
        self._incoming: list[Channel] = []
        self._epochs: dict[int, _WorkerEpoch] = {}
        self._early: list[_CrewArrival] = []
        """What came for a generation, or an epoch, that this worker has not been told of yet."""
        self._queue: queue.SimpleQueue[_CrewArrival | _ChannelGone] = queue.SimpleQueue()

    # papers of the tasks

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
        """Until the driver ends it, or is gone."""
        threading.Thread(target=self._receive, args=(self._driver, True), name="driver", daemon=True).start()
        threading.Thread(target=self._open_door, name="door", daemon=True).start()
        try:
            while self._take_in(wait=True):
                while (work := self._next_work()) is not None:
                    self._do(*work)
                    if not self._take_in(wait=False):
                        return
        except ChannelClosedError:
            pass  # the driver is gone: nobody wants what is made here
        finally:
            shut(self._door)
            for channel in (*self._channels.values(), *self._incoming):
                channel.close()

    def _take_in(self, *, wait: bool) -> bool:
        """What has arrived. With `wait`, for something to arrive. False if it is the end."""
        while True:
            try:
                arrived = self._queue.get(block=wait)
            except queue.Empty:
                return True
            wait = False
            if isinstance(arrived, _ChannelGone):
                if arrived.driver:
                    return False
                continue
            if isinstance(arrived.head, End):
                return False
            self._hear(arrived)

    def _hear(self, arrived: _CrewArrival) -> None:
        match arrived.head:
            case Roster(generation, fellows):
                self._regroup(generation, fellows)
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
            case _:
                pass  # of a generation that is over

    def _regroup(self, generation: int, fellows: tuple[tuple[str, int], ...]) -> None:
        self._generation, self._size = generation, len(fellows)
        self._epochs.clear()
        now = dict(enumerate(fellows))
        for number in [number for number in self._channels if self._fellows.get(number) != now.get(number)]:
            self._channels.pop(number).close()
        self._fellows = now
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
            if at.to_read:
                return epoch, 0, at.to_read[0]
        return None

    def _do(self, epoch: int, stage: int, task: int) -> None:
        at = self._epochs[epoch]
        try:
            if stage == 0:
                at.to_read.remove(task)
                said = list(FragmentTask(self, epoch).run(self._program, task))
            else:
                at.to_assemble.remove((stage, task))
                bodies = at.arrived.pop((stage, task))
                assembly = AssemblyTask(self, epoch, stage, self._tiers)
                said = list(assembly.run(self._program, task, _in_order(bodies)))
        except HoldfastError as error:
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
        """To whom the task belongs. If that one is gone, the driver knows, and says how it goes on."""
        fellow = head.task % self._size
        if fellow == self._number:
            self._hear(_CrewArrival(head, body))
            return
        try:
            if fellow not in self._channels:
                self._channels[fellow] = connect(*self._fellows[fellow], self._secret)
            self._channels[fellow].send(head, body)
        except (OSError, ChannelClosedError):
            channel = self._channels.pop(fellow, None)
            if channel is not None:
                channel.close()

    # what arrives

    def _receive(self, channel: Channel, driver: bool = False) -> None:
        try:
            while True:
                self._queue.put(_CrewArrival(*channel.receive()))
        except ChannelClosedError:
            self._queue.put(_ChannelGone(driver))

    def _open_door(self) -> None:
        while True:
            try:
                link, _ = self._door.accept()
                channel = accept(link, self._secret)
            except ChannelClosedError:
                continue
            except OSError:
                return
            self._incoming.append(channel)
            threading.Thread(target=self._receive, args=(channel,), name="fellow", daemon=True).start()


def _in_order(bodies: dict[int, bytes]) -> Iterator[Message]:
    for _, body in sorted(bodies.items()):
        yield from unpacked(body)
