"""Where workers join a crew: each must know the secret of the run, registers, receives the program, and is then
listened to."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.epoch.crew_messages import CrewHead, Enrol, Welcome, WorkerBeat
from holdfast.task.channel import Channel, ChannelClosedError, accept, listen, shut

__all__ = ["CrewDoor", "CrewEvent", "WorkerEnrolled", "WorkerJobEnded", "WorkerLeft", "WorkerSaid"]


@dataclass(frozen=True, slots=True)
class WorkerEnrolled:
    channel: Channel
    enrolment: Enrol


@dataclass(frozen=True, slots=True)
class WorkerSaid:
    head: CrewHead
    body: bytes


@dataclass(frozen=True, slots=True)
class WorkerLeft:
    channel: Channel


@dataclass(frozen=True, slots=True)
class WorkerJobEnded:
    job: int
    error: Exception | None


CrewEvent = WorkerEnrolled | WorkerSaid | WorkerLeft | WorkerJobEnded


class CrewDoor:
    """Listens at an address of the driver that workers reach, and gives them the `program`. What they say goes into
    `events`; beats are given to `beat` at once, because the queue may not be read for long."""

    def __init__(
        self,
        host: str,
        secret: bytes,
        events: queue.SimpleQueue[CrewEvent],
        beat: Callable[[Channel, float], None],
        program: Callable[[], bytes],
    ) -> None:
        self._program = program
        self._beat = beat
        self._secret = secret
        self._events = events
        self._door = listen(host)
        self.host, self.port = self._door.getsockname()[:2]
        threading.Thread(target=self._open, name="crew-door", daemon=True).start()

    def close(self) -> None:
        shut(self._door)

    def _open(self) -> None:
        while True:
            try:
                link, _ = self._door.accept()
            except OSError:
                return
            threading.Thread(target=self._receive, args=(link,), name="crew-worker", daemon=True).start()

    def _receive(self, link: socket.socket) -> None:
        try:
            channel = accept(link, self._secret)
        except ChannelClosedError:
            return
        try:
            head, _ = channel.receive()
            if not isinstance(head, Enrol):
                channel.close()
                return
            channel.send(Welcome(), self._program())  # before anybody knows of it, and sends something else
        except (ChannelClosedError, OSError):
            channel.close()
            return
        self._events.put(WorkerEnrolled(channel, head))
        try:
            while True:
                said, body = channel.receive()
                if isinstance(said, WorkerBeat):
                    self._beat(channel, said.spent)
                else:
                    self._events.put(WorkerSaid(said, body))
        except ChannelClosedError:
            channel.close()
            self._events.put(WorkerLeft(channel))
