"""What can happen to a pipeline, as typed events: one struct for each kind.

An event is one line of JSON. Its tag, `kind`, and the names of its fields are what `holdfast events --json` and
`hf.events` show, so they are part of the format (`EVENT_VERSION`): a field may be added with a default, none is
renamed. Whoever reads skips kinds and fields of a newer version. `text` is the event as a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from holdfast.plurals import counted
from holdfast.spans import duration

__all__ = [
    "ActionAsked",
    "AnyEvent",
    "CheckpointDone",
    "DeadRowsSeen",
    "DecisionMade",
    "DrillDone",
    "EpochTrace",
    "EpochsDone",
    "ErrorSeen",
    "GapMeasured",
    "HostChanged",
    "KeyShare",
    "LateRowsSeen",
    "LoggedEvent",
    "NoticeGiven",
    "PartitionShare",
    "RecoveryDone",
    "RunEnded",
    "RunStarted",
    "ScaleChanged",
    "ShadowTold",
    "StreamWaiting",
    "Subject",
    "TakeoverDone",
    "TaskShare",
]

Subject = Literal["scheme", "policy", "scaling", "activation", "executor"]


class LoggedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", gc=False):
    """What every event has: when it was by the wall clock, of which pipeline, fragment and host, and the epoch, where
    one belongs to it. A run without hosts has no host's name."""

    at: float
    pipeline: str = ""
    fragment: str = ""
    host: str = ""
    epoch: int | None = None

    @property
    def text(self) -> str:
        raise NotImplementedError

    @property
    def kind(self) -> str:
        """The name of its kind."""
        return str(self.__struct_config__.tag)


class RunStarted(LoggedEvent, frozen=True, tag="started"):
    """A run of a pipeline begins. `fragments` are those that run, with the last epoch of each before."""

    fragments: Mapping[str, int] = {}
    process: str = ""
    version: str = ""

    @property
    def text(self) -> str:
        last = max(self.fragments.values(), default=0)
        return "started, " + (f"resuming after epoch {last}" if last else "from the start of its sources")


class RunEnded(LoggedEvent, frozen=True, tag="ended"):
    """A run has ended without an error."""

    state: str = "ended"
    reason: str = ""
    epochs: int = 0
    rows: int = 0
    output_rows: int = 0
    seconds: float = 0.0

    @property
    def text(self) -> str:
        why = f"; {self.reason}" if self.reason else ""
        counts = f"{counted(self.epochs, 'epoch')}, {counted(self.rows, 'row')} in, {counted(self.output_rows, 'row')}"
        return f"{self.state} after {duration(self.seconds)}: {counts} out{why}"


class PartitionShare(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a partition did: CPU seconds and rows."""

    cpu: float
    rows: int


class KeyShare(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A key that stands out, and how many rows it had."""

    key: str
    rows: float


class TaskShare(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How long a task of a stage worked, in seconds, and how long of that it waited for the disk."""

    stage: int
    task: int
    seconds: float
    syncing: float


class EpochTrace(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One epoch by its phases and tasks: `seconds` from its launch, at `started`, to its commit."""

    epoch: int
    started: float
    seconds: float
    phases: Mapping[str, float] = {}
    tasks: tuple[TaskShare, ...] = ()
    rows: int = 0


class EpochsDone(LoggedEvent, frozen=True, tag="epochs"):
    """Epochs that were committed, those of about a second together: the last one is `epoch`, the first one `first`.

    Rows and bytes are sums. `p50`, `p99` and `longest` are seconds from the launch of an epoch to its commit; `phases`
    are seconds of one epoch, in the mean. State, `lag` (rows that wait, by source), `greatest` (event time by source)
    and `watermark` are as after the last one. `work` has the partitions of operators, `reading` the tasks that read."""

    first: int = 0
    count: int = 0
    rows: int = 0
    entered: int = 0
    output_rows: int = 0
    streamed_rows: int = 0
    streamed_bytes: int = 0
    late_rows: int = 0
    bad_rows: int = 0
    written_bytes: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    since: float = 0.0
    """When the first of them was launched."""
    p50: float = 0.0
    p99: float = 0.0
    longest: float = 0.0
    phases: Mapping[str, float] = {}
    read: Mapping[str, int] = {}
    lag: Mapping[str, int] = {}
    greatest: Mapping[str, int] = {}
    watermark: int | None = None
    work: Mapping[str, tuple[PartitionShare, ...]] = {}
    reading: tuple[PartitionShare, ...] = ()
    hot: Mapping[str, tuple[KeyShare, ...]] = {}
    slowest: EpochTrace | None = None
    """The one that took longest."""

    @property
    def text(self) -> str:
        which = f"epoch {self.epoch}" if self.count == 1 else f"epochs {self.first} to {self.epoch}"
        took = f"{duration(self.p50)}" if self.count == 1 else f"p50 {duration(self.p50)}, p99 {duration(self.p99)}"
        return f"{which} committed: {counted(self.rows, 'row')} in, {counted(self.output_rows, 'row')} out, {took}"


class CheckpointDone(LoggedEvent, frozen=True, tag="checkpoint"):
    """A checkpoint was copied to the stable tier and to the backups."""

    bytes: int = 0
    backup_bytes: int = 0
    seconds: float = 0.0

    @property
    def text(self) -> str:
        return f"checkpoint after epoch {self.epoch}: {self.bytes + self.backup_bytes:,} B in {duration(self.seconds)}"


class RecoveryDone(LoggedEvent, frozen=True, tag="recovery"):
    """A fragment is where it was: seconds by phase, what was restored and what was run again."""

    phases: Mapping[str, float] = {}
    seconds: float = 0.0
    units: int = 0
    bytes: int = 0
    replayed: int = 0

    @property
    def text(self) -> str:
        phases = ", ".join(f"{name} {duration(seconds)}" for name, seconds in self.phases.items())
        return (
            f"recovered after epoch {self.epoch} in {duration(self.seconds)}: {phases};"
            f" {counted(self.units, 'p-unit')} checked, {counted(self.replayed, 'epoch')} run again"
        )


class TakeoverDone(LoggedEvent, frozen=True, tag="takeover"):
    """A host has taken over a fragment from another one."""

    replayed: int = 0
    seconds: float | None = None
    scheme: str = ""

    @property
    def text(self) -> str:
        took = "" if self.seconds is None else f" in {duration(self.seconds)}"
        under = f" under {self.scheme}" if self.scheme else ""
        return f"host {self.host} took over{under}{took}, {counted(self.replayed, 'epoch')} run again"


class GapMeasured(LoggedEvent, frozen=True, tag="gap"):
    """For how long readers saw no output in a takeover; `noticed` of it passed until the failure was noticed."""

    scheme: str = ""
    seconds: float = 0.0
    noticed: float = 0.0

    @property
    def text(self) -> str:
        return f"no output for {duration(self.seconds)} ({self.scheme}; {duration(self.noticed)} to notice)"


class DecisionMade(LoggedEvent, frozen=True, tag="decision"):
    """A controller has decided about something, and why. `to` is empty where it only gives notice."""

    about: Subject
    to: str = ""
    reason: str = ""

    @property
    def text(self) -> str:
        return f"{self.about}{f' {self.to}' if self.to else ''}: {self.reason or 'no reason was given'}"


class ScaleChanged(LoggedEvent, frozen=True, tag="scale"):
    """An operator has another number of partitions, or was to have: then there is a `problem`."""

    operator: str = ""
    before: int = 0
    after: int = 0
    reason: str = ""
    problem: str = ""

    @property
    def text(self) -> str:
        end = f" (not done: {self.problem})" if self.problem else f" from epoch {self.epoch} on"
        return f"{self.operator}: {self.before} → {self.after} partitions{end}; {self.reason}"


class LateRowsSeen(LoggedEvent, frozen=True, tag="late"):
    """Rows came when all their windows were closed."""

    rows: int = 0

    @property
    def text(self) -> str:
        return f"{counted(self.rows, 'row')} came too late, up to epoch {self.epoch}"


class DeadRowsSeen(LoggedEvent, frozen=True, tag="dead"):
    """Rows could not be read or processed."""

    rows: int = 0

    @property
    def text(self) -> str:
        return f"{counted(self.rows, 'row')} could not be used, up to epoch {self.epoch}"


class NoticeGiven(LoggedEvent, frozen=True, tag="notice"):
    """A source, or the hosts, have something to tell."""

    message: str = ""

    @property
    def text(self) -> str:
        return self.message


class StreamWaiting(LoggedEvent, frozen=True, tag="waiting"):
    """A fragment waits, because a p-stream that it writes to is full."""

    message: str = ""

    @property
    def text(self) -> str:
        return f"waiting: {self.message}"


class ErrorSeen(LoggedEvent, frozen=True, tag="error"):
    """A run or a replica has failed."""

    message: str = ""

    @property
    def text(self) -> str:
        return self.message


class HostChanged(LoggedEvent, frozen=True, tag="host"):
    """A host has started, is ready, leaves, or has prepared a replica."""

    state: str = ""
    reason: str = ""

    @property
    def text(self) -> str:
        return f"host {self.host} {self.state}" + (f": {self.reason}" if self.reason else "")


class ActionAsked(LoggedEvent, frozen=True, tag="action"):
    """Somebody has asked a running pipeline for something, in the dashboard."""

    what: str = ""
    by: str = ""

    @property
    def text(self) -> str:
        return f"asked for: {self.what}"


class DrillDone(LoggedEvent, frozen=True, tag="drill"):
    """Something was killed on purpose; `passed` says whether the output was what it must be."""

    what: str = ""
    passed: bool = False
    seconds: float = 0.0
    verdict: str = ""
    kill: str = ""
    predicted: float | None = None
    rows: int = 0

    @property
    def text(self) -> str:
        return (
            f"drill, {self.what}: {'passed' if self.passed else 'FAILED'} in {duration(self.seconds)}; {self.verdict}"
        )


class ShadowTold(LoggedEvent, frozen=True, tag="shadow"):
    """New code follows a pipeline as its shadow, has a verdict, or has taken over. `compared` is how many epochs had
    equal output."""

    state: str = ""
    code: str = ""
    compared: int = 0
    verdict: str = ""

    @property
    def text(self) -> str:
        return f"shadow: {self.verdict}"


AnyEvent: TypeAlias = (
    RunStarted
    | RunEnded
    | EpochsDone
    | CheckpointDone
    | RecoveryDone
    | TakeoverDone
    | GapMeasured
    | DecisionMade
    | ScaleChanged
    | LateRowsSeen
    | DeadRowsSeen
    | NoticeGiven
    | StreamWaiting
    | ErrorSeen
    | HostChanged
    | ActionAsked
    | DrillDone
    | ShadowTold
)
