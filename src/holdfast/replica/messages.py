"""What goes into the machine of a host and what comes out of it: events and actions."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.replica.ledger import Answer, Request
from holdfast.replica.queues import Pieces, Slices, Vector

__all__ = [
    "Acked",
    "Action",
    "Answered",
    "Ask",
    "Begins",
    "Begun",
    "Event",
    "Exit",
    "Fetch",
    "Fetched",
    "LoadProgram",
    "Local",
    "OpenSession",
    "ProgramLoaded",
    "Publish",
    "Ran",
    "Release",
    "Rows",
    "Run",
    "Save",
    "Saved",
    "SessionOpened",
    "Subscribe",
    "Sweep",
    "Tick",
    "Unsubscribe",
    "Write",
    "Written",
]


@dataclass(frozen=True, slots=True)
class Local:
    """The state after an epoch, as a host has it. `ends` is how far the inputs are in it. A gap recovery begins a new
    lineage: states of the one before cannot be gone on with."""

    lineage: int
    epoch: int
    value: int
    ends: Vector


# events


@dataclass(frozen=True, slots=True)
class Begun:
    """The process runs."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Comes every heartbeat."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The store's answer; None if it did not come in time, and then nobody knows whether the transaction was done."""

    request: Request
    answer: Answer | None


@dataclass(frozen=True, slots=True)
class SessionOpened:
    pass


@dataclass(frozen=True, slots=True)
class ProgramLoaded:
    pass


@dataclass(frozen=True, slots=True)
class Fetched:
    """A state was read; None if it is not there any more."""

    state: Local | None


@dataclass(frozen=True, slots=True)
class Rows:
    """An upstream sent its events from `first` up to `end`."""

    upstream: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Begins:
    """The upstreams send from here on: the answer to a subscription that named no place."""

    vector: Vector


@dataclass(frozen=True, slots=True)
class Ran:
    """The job of an epoch ended: the state after it, whose value is also the checksum of its output."""

    state: Local


@dataclass(frozen=True, slots=True)
class Written:
    """The output of an epoch is durable under the token, or could not be written."""

    epoch: int
    token: int
    done: bool


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint is durable under the token, or could not be written."""

    state: Local
    token: int
    done: bool


@dataclass(frozen=True, slots=True)
class Acked:
    """The reader has all epochs up to this one."""

    epoch: int


Event = (
    Begun | Tick | Answered | SessionOpened | ProgramLoaded | Fetched | Rows | Begins | Ran | Written | Saved | Acked
)


# actions


@dataclass(frozen=True, slots=True)
class Ask:
    request: Request


@dataclass(frozen=True, slots=True)
class OpenSession:
    pass


@dataclass(frozen=True, slots=True)
class LoadProgram:
    pass


@dataclass(frozen=True, slots=True)
class Fetch:
    """Read the checkpoint of an epoch that was saved under a token."""

    epoch: int
    token: int


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Have the inputs sent from here on; None: from now on."""

    vector: Vector | None


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    pass


@dataclass(frozen=True, slots=True)
class Run:
    """Run the job of an epoch: what was received of its slices, applied to a state."""

    epoch: int
    slices: Slices
    pieces: Pieces
    state: Local


@dataclass(frozen=True, slots=True)
class Write:
    """Make the output of an epoch durable under the token."""

    epoch: int
    token: int
    value: int


@dataclass(frozen=True, slots=True)
class Save:
    """Make a checkpoint durable under the token."""

    state: Local
    token: int


@dataclass(frozen=True, slots=True)
class Publish:
    """Send the output of a committed epoch, which was written under the token, to the reader."""

    epoch: int
    token: int
    skipped: bool


@dataclass(frozen=True, slots=True)
class Release:
    """The upstreams may forget what is before."""

    vector: Vector


@dataclass(frozen=True, slots=True)
class Sweep:
    """Remove outputs that the reader has, checkpoints before `checkpoint`, and what hosts wrote that cannot commit any
    more: whatever has a token below `oldest` and is not in `named`."""

    delivered: int
    checkpoint: int
    oldest: int
    named: frozenset[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Exit:
    """End the process."""

    reason: str


Action = (
    Ask
    | OpenSession
    | LoadProgram
    | Fetch
    | Subscribe
    | Unsubscribe
    | Run
    | Write
    | Save
    | Publish
    | Release
    | Sweep
    | Exit
)
