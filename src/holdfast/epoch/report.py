"""The report on a committed epoch, for users and for benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.epoch.epoch_times import EpochTimes
from holdfast.epoch.facts import EpochFacts
from holdfast.epoch.record import EpochRecord, Footing
from holdfast.epoch.task_commit import PartitionWork, TaskTime
from holdfast.operators.footprint_messages import FootprintsLeft
from holdfast.plan.program import Program
from holdfast.plan.watermarks import operator_watermark
from holdfast.pstream.link import StreamSource

__all__ = ["EpochReport", "FootprintWork", "make_report"]


@dataclass(frozen=True, slots=True)
class FootprintWork:
    """The footprints an operator left in an epoch, and how far they reach after it.

    `checked` of the `records` are of windows whose last one was too old, which took a partition at most `seconds`, and
    at most `busy` seconds of CPU time: the rest it waited, for the disk or for others that had the CPU;
    `windows` are those that a recovery would find, `open_windows` those of them that are open, in `extent` records of
    the log, before it replays `replay` rows.
    """

    records: int
    checked: int
    bytes: int
    seconds: float
    busy: float
    windows: int
    open_windows: int
    extent: int
    replay: int
    predicted: float | None


@dataclass(frozen=True, slots=True)
class EpochReport:
    """Times are seconds of the wall clock; `seconds` is how long the Spark job took.

    `rows` is all that was read, `entered` what of it came from outside and not from a p-stream, `received` what of it
    clients had pushed, which each fragment that reads it counts; `output_rows` is what
    went to sinks, `streamed_rows` what went to p-streams; `lag` is how many rows waited behind those of the epoch when
    it was planned, where that is known. `written_bytes` counts p-units of state and of p-streams.
    `work` is what the partitions of each stateful operator did, `reading` what the tasks did that read; `fetching` is
    how long the slowest of them waited for its sources.
    """

    fragment: str
    epoch: int
    rows: int
    entered: int
    started: float
    committed: float
    seconds: float
    output_rows: int
    late_rows: int
    bad_rows: int
    state_rows: int
    state_bytes: int
    written_bytes: int
    streamed_rows: int
    streamed_bytes: int
    greatest: Mapping[str, int | None]
    watermark: int | None
    lag: int | None
    cpu: Mapping[str, float] = field(default_factory=dict)
    received: int = 0
    work: Mapping[str, tuple[PartitionWork, ...]] = field(default_factory=dict)
    reading: tuple[PartitionWork, ...] = ()
    fetching: float = 0.0
    times: EpochTimes | None = None
    """Where its time went, from the plan to the publication; None for a run that did not commit it."""
    footprints: Mapping[str, FootprintWork] = field(default_factory=dict)
    """What operators have left of their windows, under the policy `eventual`."""
    lags: Mapping[str, int] = field(default_factory=dict)
    """`lag` by source."""
    read_by: Mapping[str, int] = field(default_factory=dict)
    """`rows` by source."""
    policy: str | None = None
    """When state is made durable, and why so, where that was not the user's choice."""
    policy_reason: str | None = None
    tasks: tuple[TaskTime, ...] = ()
    """How long each task took."""


def make_report(
    program: Program,
    epoch: int,
    record: EpochRecord,
    facts: EpochFacts,
    *,
    lags: Mapping[str, int],
    times: EpochTimes | None,
    started: float,
    ended: float,
    committed: float,
) -> EpochReport:
    """Put together what the tasks said (`facts`) and what the record shows."""
    watermarks = [
        mark
        for node in program.sinks
        if (mark := operator_watermark(program, node.name, record.greatest, record.done)) is not None
    ]
    sources = [(node, facts.read_by.get(node.name, 0)) for node in program.sources]
    return EpochReport(
        fragment=program.name,
        epoch=epoch,
        rows=facts.read,
        entered=sum(read for node, read in sources if not isinstance(node.source, StreamSource)),
        received=sum(read for node, read in sources if isinstance(node.source, StreamSource) and node.source.pushed),
        started=started,
        committed=committed,
        seconds=max(1e-6, ended - started),
        output_rows=facts.output,
        late_rows=facts.late,
        bad_rows=facts.bad,
        state_rows=record.state_rows(),
        state_bytes=record.state_bytes(),
        written_bytes=facts.written + facts.streamed_bytes,
        streamed_rows=facts.streamed,
        streamed_bytes=facts.streamed_bytes,
        greatest=record.greatest,
        watermark=min(watermarks) if watermarks else None,
        lag=sum(lags.values()) if lags else None,
        lags=lags,
        read_by=facts.read_by,
        policy=record.policy,
        policy_reason=record.reason,
        tasks=facts.tasks,
        cpu=facts.cpu,
        work=facts.work,
        reading=facts.reading,
        fetching=facts.fetching,
        times=times,
        footprints={name: _left(by_task, record.footings[name]) for name, by_task in facts.footprints.items()},
    )


def _left(by_task: Mapping[int, FootprintsLeft], footing: Footing) -> FootprintWork:
    extent = footing.extent
    return FootprintWork(
        records=sum(left.records for left in by_task.values()),
        checked=sum(left.checked for left in by_task.values()),
        bytes=sum(left.bytes for left in by_task.values()),
        seconds=max((left.seconds for left in by_task.values()), default=0.0),
        busy=max((left.busy for left in by_task.values()), default=0.0),
        windows=extent.windows,
        open_windows=extent.open_windows,
        extent=extent.q,
        replay=extent.u,
        predicted=footing.predicted,
    )
