"""The commit of a task: its results, reported once at its end. The commits of all tasks make up an epoch's record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.connect.base import Receipt
from holdfast.epoch.digest import OutputDigest
from holdfast.operators.footprint_messages import FootprintsLeft
from holdfast.pstream import PUnit
from holdfast.state.key_load import KeyLoad
from holdfast.state.manifest import Manifest
from holdfast.stored_json import Natural
from holdfast.versioned_message import VersionedMessage

__all__ = ["PartitionWork", "StreamReceipt", "TaskCommit", "TaskTime"]


@dataclass(frozen=True, slots=True)
class PartitionWork:
    """What one partition of an operator, or one reading task, did in an epoch. Where rows have no key, and where they
    are read, there is no load of key positions."""

    cpu: float
    rows: int
    load: KeyLoad | None = None


@dataclass(frozen=True, slots=True)
class TaskTime:
    """How long a task of an epoch worked, in seconds, and how long of that it waited for the disk. Stage 0 reads. The
    worker of number t, modulo the size of the crew, runs task t of every stage."""

    stage: int
    task: int
    seconds: float
    syncing: float


@dataclass(frozen=True, slots=True)
class StreamReceipt:
    """A p-unit that was written for a p-stream. `sender` (stage, task, source and number) puts them in order."""

    sender: tuple[int, int, int, int]
    unit: PUnit


class TaskCommit(VersionedMessage, frozen=True, kw_only=True, tag="commit", tag_field="kind", omit_defaults=True):
    """By source, what was `read` and was `bad`, and the `greatest` event time; by operator, the `state` of its
    partition where that has changed, the `late` rows, the `footprints` and the `work`; by sink, what is prepared."""

    host: str
    stage: int
    task: int
    read: Mapping[str, Natural] = {}
    bad: Mapping[str, Natural] = {}
    greatest: Mapping[str, int] = {}
    late: Mapping[str, Natural] = {}
    receipts: Mapping[str, tuple[Receipt, ...]] = {}
    """What task sinks say about the output that is prepared."""
    streamed: Mapping[str, tuple[StreamReceipt, ...]] = {}
    """The p-units of p-streams."""
    digest: Mapping[str, OutputDigest] = {}
    state: Mapping[str, Manifest] = {}
    footprints: Mapping[str, FootprintsLeft] = {}
    work: Mapping[str, PartitionWork] = {}
    written: Natural = 0
    """Bytes of state."""
    seconds: float = 0.0
    """How long it worked, by the clock: reading, or from the hand-over on."""
    syncing: float = 0.0
    """How long of that it waited for the disk."""
    fetching: float = 0.0
    """How long it waited for its sources, in seconds."""
    cpu: float = 0.0
