"""The operators of a pipeline as plain values: what a user declared, checked and typed, before any planning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import polars as pl

from holdfast.connect.base import BadRows, DriverSink, Sink, Source
from holdfast.connect.time_range import TimeRange
from holdfast.graph.aggregates.aggregate import BoundAggregate
from holdfast.graph.durations import EventTime, TimeUnit, ticks
from holdfast.graph.policies import CheckpointPolicy
from holdfast.graph.windows import Window
from holdfast.pstream.codecs import Lossy

__all__ = [
    "ClockedProcess",
    "Deduplicate",
    "IntervalJoin",
    "KeyedProcess",
    "Node",
    "Persist",
    "ProcessContext",
    "SideOutput",
    "SinkNode",
    "SourceNode",
    "SparkInput",
    "Stateful",
    "Step",
    "StreamJoin",
    "WindowAggregate",
    "reconnected",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """An operator: its name (unique in the pipeline), its inputs by name, and the rows it emits."""

    name: str
    inputs: tuple[str, ...]
    schema: pl.Schema
    time: EventTime | None
    time_cure: ClassVar[str] = "keep the column of the event time, under its name or another, and unchanged"
    """How what it emits can get an event time, where it has none."""

    @property
    def added_time(self) -> int:
        """By how many ticks the times behind it may exceed those before it, or lie behind them."""
        return 0

    @property
    def held_time(self) -> int:
        """How many ticks it adds to times in its state alone, as a time-to-live does: nothing behind it sees them."""
        return 0

    @property
    def has_late_rows(self) -> bool:
        """Whether the rows that come too late for it can be read, as its `.late`."""
        return False

    @property
    def late_columns(self) -> tuple[pl.Schema, EventTime | None] | None:
        """The columns of those rows, and their event time, where they are not those of its input."""
        return None

    def for_tasks(self) -> Node:
        """The operator without what only the driver needs, and what may not be picklable or may hold passwords."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkInput:
    """A streaming DataFrame as a source: Structured Streaming's batches are the epochs. The partitions of a batch are
    read side by side and have no order."""

    frame: Any
    bad_rows: BadRows = "fail"
    in_order: ClassVar[bool] = False

    def describe(self) -> str:
        return "a Spark streaming DataFrame, no order within a micro-batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceNode(Node):
    """Input. `lateness` is how far, in ticks, a row may lie behind the greatest event time seen before it, `max_ahead`
    how far ahead of the clock. When it was silent for `idle` seconds, windows do not wait for it. `was` is the name it
    had in a store where it was called otherwise."""

    source: Source | SparkInput
    lateness: int = 0
    max_ahead: int | None = None
    idle: float | None = None
    was: str | None = None
    time_cure: ClassVar[str] = "declare event_time=... on the source, and keep that column unchanged up to the window"

    @property
    def added_time(self) -> int:
        return self.lateness

    @property
    def allowed(self) -> TimeRange | None:
        """The event times that its rows may have."""
        if self.time is None:
            return None
        return TimeRange(self.time.column, ticks(1, self.time.unit), self.max_ahead)

    def for_tasks(self) -> SourceNode:
        return replace(self, source=replace(self.source, frame=None)) if isinstance(self.source, SparkInput) else self


@dataclass(frozen=True, slots=True, kw_only=True)
class Persist(Node):
    """A p-stream cuts the pipeline here: what comes before and what comes after run and recover on their own.

    `push_up` lets the cut move behind operators that make the rows fewer or smaller. `budget` is how many bytes the
    stream may hold before its writer waits for its readers.
    """

    push_up: bool
    compress: bool
    lossy: tuple[Lossy, ...]
    budget: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stateful(Node):
    """An operator with processing state, partitioned by the position of `keys`. `was` is the name under which a store
    may know that state."""

    keys: tuple[str, ...]
    partitions: int | None = None
    was: str | None = None
    checkpoint: CheckpointPolicy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowAggregate(Stateful):
    """Aggregates of a key's rows by windows. `state_schema` has the columns of a partial."""

    window: Window
    aggregates: tuple[BoundAggregate, ...]
    state_schema: pl.Schema
    time_cure: ClassVar[str] = (
        "results of a count window have none; window the rows by time, or continue with a keyed process"
    )

    @property
    def added_time(self) -> int:
        return self.window.reach(self.time)

    @property
    def has_late_rows(self) -> bool:
        return self.window.timed


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamJoin(Stateful):
    """Join of two streams within windows. The outputs of a window come when the window closes."""

    window: Window
    how: Literal["inner", "left", "full"]
    suffix: str

    @property
    def added_time(self) -> int:
        return self.window.reach(self.time)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalJoin(Stateful):
    """Join of two streams by how far the time of a right row lies from that of a left one: at least `low` and at most
    `high` ticks after it."""

    low: int
    high: int
    how: Literal["inner", "left", "right", "full"]
    suffix: str

    @property
    def left_wait(self) -> int:
        """For how long after its time a left row may get a result."""
        return max(self.high, 0)

    @property
    def right_wait(self) -> int:
        """The same of a right row."""
        return max(-self.low, 0)

    @property
    def added_time(self) -> int:
        return self.left_wait + self.right_wait

    @property
    def has_late_rows(self) -> bool:
        return True

    @property
    def late_columns(self) -> tuple[pl.Schema, EventTime | None] | None:
        """Those of a result, with nulls for the other side."""
        return self.schema, self.time


@dataclass(frozen=True, slots=True, kw_only=True)
class Deduplicate(Stateful):
    """The first row of each key, and none after it for `within` ticks of event time, or `ttl` microseconds of the
    clock; forever if neither is given."""

    within: int | None
    ttl: int | None

    @property
    def held_time(self) -> int:
        return self.within or 0


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """The context of a call of a keyed process: the epoch, the watermark after it, and the timers that are due.

    `timers` has the key columns and `at`, in the unit of the event time. `clock` is when the epoch was planned, in
    microseconds since 1970, also when it runs again; a process by the clock uses it, and has no other watermark.
    """

    epoch: int
    watermark: int | None
    timers: pl.DataFrame
    clock: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """The result of a keyed process; every part is optional.

    `output` has the declared output columns. `upserts` has the key columns and all state columns. `deletes` has the
    key columns. `timers` has the key columns and `at`, a number in the unit of the event time or a Datetime: each key
    has at most one timer, and a new one replaces it; a null `at` takes it away.
    """

    output: pl.DataFrame | None = None
    upserts: pl.DataFrame | None = None
    deletes: pl.DataFrame | None = None
    timers: pl.DataFrame | None = None


ProcessFunction = Callable[[pl.DataFrame, pl.DataFrame, ProcessContext], Step]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedProcess(Stateful):
    """`function(rows, state, context)` on rows of many keys and the state of these keys.

    A timer lies at least `delay` after the row that sets it. `unit` is that of the input's event time. `defaults` are
    the values that state has in columns which were added after it was written.
    """

    function: ProcessFunction
    state: pl.Schema
    ttl: int | None
    timers: bool
    delay: int = 0
    unit: TimeUnit | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    time_cure: ClassVar[str] = "say which output column has it: .process(..., event_time='...')"

    @property
    def held_time(self) -> int:
        return max(self.ttl or 0, self.delay)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockedProcess(KeyedProcess):
    """A keyed process whose time-to-live and timers follow the clock of the plans, in microseconds."""

    @property
    def held_time(self) -> int:
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SideOutput(Node):
    """Rows an operator did not take: `late` rows of a window, `dead_letter` rows of a source."""

    kind: Literal["late", "dead_letter"]
    time_cure: ClassVar[str] = "dead letters have none; window the rows of the source instead"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkNode(Node):
    sink: Sink

    def for_tasks(self) -> SinkNode:
        return replace(self, sink=DriverSink()) if isinstance(self.sink, DriverSink) else self


def reconnected(node: Node, inputs: tuple[str, ...]) -> Node:
    """The same operator reading from other operators."""
    return replace(node, inputs=inputs)
