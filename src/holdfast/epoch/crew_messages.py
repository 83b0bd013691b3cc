"""The messages between a driver and the workers of its crew, and between workers.

A message is a typed head and a body of bytes: the sealed program, an encoded plan, an encoded hand-over, or Arrow
batches. Heads are sent as JSON. Every message about an epoch carries the generation of the crew: messages from before
the loss of a worker are ignored.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from holdfast.errors import CorruptRecordError
from holdfast.formats import MESSAGE_VERSION
from holdfast.versioned_message import VersionedMessage, check_version_in

__all__ = [
    "CrewHead",
    "Die",
    "End",
    "Enrol",
    "FellowLost",
    "ForgetEpoch",
    "HandedOver",
    "Hello",
    "Parcel",
    "ParcelsTaken",
    "Roster",
    "RunEpoch",
    "SliceRead",
    "TaskEnded",
    "Welcome",
    "WorkerBeat",
    "decode_head",
    "encode_head",
]


class _CrewMessage(VersionedMessage, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    pass


class Enrol(_CrewMessage, frozen=True, tag="enrol"):
    """The worker of a Spark job is there, for the first time or again, and listens for its fellows at that address."""

    job: int
    attempt: int
    host: str
    port: int
    machine: str
    pid: int


class Welcome(_CrewMessage, frozen=True, tag="welcome"):
    """The answer to an enrolment. The body has the sealed program."""


class Roster(_CrewMessage, frozen=True, tag="roster"):
    """The number that a worker has from now on, and where each of its fellows listens, by number. All that ran before
    is dropped."""

    generation: int
    number: int
    fellows: tuple[tuple[str, int], ...]


class RunEpoch(_CrewMessage, frozen=True, tag="run"):
    """Begin an epoch. The body has its plan and settings."""

    generation: int
    epoch: int


class HandedOver(_CrewMessage, frozen=True, tag="handed-over"):
    """The epoch before is committed. The body has the hand-over."""

    generation: int
    epoch: int


class ForgetEpoch(_CrewMessage, frozen=True, tag="forget"):
    """The epoch is committed, and nothing of it is needed any more."""

    epoch: int


class End(_CrewMessage, frozen=True, tag="end"):
    """The run is over: a worker ends."""


class Die(_CrewMessage, frozen=True, tag="die"):
    """For a drill: a worker kills its process, whatever it is doing."""


class WorkerBeat(_CrewMessage, frozen=True, tag="beat"):
    """A sign of life, with the CPU seconds that the worker has spent."""

    spent: float


class SliceRead(_CrewMessage, frozen=True, tag="read"):
    """A task of stage 0 has read its input."""

    generation: int
    epoch: int
    task: int


class TaskEnded(_CrewMessage, frozen=True, tag="ended"):
    """A task of the last stage has ended, or any task with an error. The body has what it said."""

    generation: int
    epoch: int
    stage: int
    task: int


class Hello(_CrewMessage, frozen=True, tag="hello"):
    """Who has connected to a fellow, as the first message of a channel between two workers."""

    generation: int
    number: int


class FellowLost(_CrewMessage, frozen=True, tag="lost"):
    """The channel to or from a fellow has failed, as `number` says: what was on its way may be lost."""

    generation: int
    fellow: int
    why: str
    number: int


class Parcel(_CrewMessage, frozen=True, tag="delivery"):
    """What task `sender` of the stage before has for task `task` of this one; the body may hold no message at all."""

    generation: int
    epoch: int
    stage: int
    task: int
    sender: int


class ParcelsTaken(_CrewMessage, frozen=True, tag="taken"):
    """Worker `number` has assembled so many bytes of what it was sent by the worker that is told."""

    generation: int
    number: int
    size: int


CrewHead: TypeAlias = (
    Enrol
    | Welcome
    | Roster
    | RunEpoch
    | HandedOver
    | ForgetEpoch
    | End
    | Die
    | WorkerBeat
    | SliceRead
    | TaskEnded
    | Hello
    | FellowLost
    | Parcel
    | ParcelsTaken
)

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(CrewHead)


def encode_head(head: CrewHead) -> bytes:
    return _encoder.encode(head)


def decode_head(data: bytes) -> CrewHead:
    try:
        head: CrewHead = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        check_version_in("a message between workers", data, MESSAGE_VERSION)
        raise CorruptRecordError(
            f"a message between workers cannot be read: {error}",
            cure="check whether another program connects to the ports of the run, then start the pipeline again",
        ) from error
    return head
