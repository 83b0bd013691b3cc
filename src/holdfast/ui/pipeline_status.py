"""What the store says of a pipeline: how far it is, what runs it, and what its hosts have agreed on. `holdfast status`
prints it, and the dashboard shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.connect.base import Position
from holdfast.epoch.epoch_times import EpochTimes, mean_times
from holdfast.epoch.lookup_version import LookupVersion
from holdfast.epoch.plan import EpochPlan
from holdfast.epoch.record_change import record_of, records_of
from holdfast.epoch.repair_messages import RepairOutcome, Replan, Skip, asked_repair
from holdfast.meta import Commit, MetaStore, Repair, Repairs, ReplicaMeta, RunNotes
from holdfast.replica.fragment_notes import ConfigurationNote, Decision, Divergence, RecoveryNote
from holdfast.replica.seat_store import agreed_of, deployed_fragments
from holdfast.replica.shadow_report import ShadowReport
from holdfast.replica.supervisor import described
from holdfast.state.levels import levels_of, sizes_of
from holdfast.state.manifest import Manifest, seen_rows_and_bytes

__all__ = [
    "OperatorFootprints", "OperatorStatus", "PipelineStatus", "RepairStatus", "ReplicaStatus", "known_pipelines",
    "read_status", "times_of",
]  # fmt: skip

_POSITIONS = 1 << 64


@dataclass(frozen=True, slots=True)
class OperatorStatus:
    """The state of one operator after the last commit."""

    partitions: int
    rows: int
    bytes: int
    parts: tuple[PartitionState, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition: which part of the key space it has, from 0 to 1, and by table the bytes of its levels, oldest
    first. Levels of similar size are merged; a reader looks into each."""

    begin: float
    end: float
    levels: dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class OperatorFootprints:
    """What a recovery of an operator under the policy `eventual` would read and replay; `windows` counts those that
    are closed and keep their number, too."""

    stream: str
    open_windows: int
    windows: int
    extent: int
    replay: int
    predicted: float | None
    why: str | None = None
    """Why windows get new footprints, if they do."""


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """The hosts of a fragment: which they are, how the secondary is kept and why, and what recoveries took."""

    scheme: str
    primary: str | None
    secondary: str | None
    ready: bool
    text: str
    decisions: list[Decision]
    recoveries: list[RecoveryNote]
    predicted: dict[str, float]
    diverged: Divergence | None
    failed: str | None
    ended: bool
    active: list[str] | None = None
    """The hosts that are to process, where completeness is guaranteed."""
    configuration: ConfigurationNote | None = None
    """The input configuration in use, with the primary that decides it."""


@dataclass(frozen=True, slots=True)
class RepairStatus:
    """What a person has asked for, and what came of it."""

    number: int
    what: Replan | Skip
    reason: str
    asked_at: float
    outcome: RepairOutcome | None
    done_at: float | None


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """What the store knows of a pipeline. Event times are in the unit of the source's time column."""

    pipeline: str
    running: bool
    owner: str | None
    epoch: int
    committed_at: float | None
    retained: tuple[int, int] | None
    planned: list[int]
    finished: bool
    positions: dict[str, Position]
    greatest: dict[str, int | None]
    idle: list[str]
    """The sources that windows do not wait for, because they have been silent for long."""
    tables: dict[str, LookupVersion]
    """The versions of lookup tables that the last epoch was joined with, by operator."""
    totals: dict[str, int]
    state: dict[str, OperatorStatus]
    executors: dict[str, str] = field(default_factory=dict)
    """What runs its epochs, and why, by host; without a name where there are no hosts. Of the last run, if none runs
    now."""
    checkpoint: str | None = None
    reason: str | None = None
    replay_from: int | None = None
    footprints: dict[str, OperatorFootprints] = field(default_factory=dict)
    replicas: ReplicaStatus | None = None
    """Where hosts run it."""
    times: EpochTimes | None = None
    """Where the time of an epoch went, in the mean of the retained ones."""
    notices: list[str] = field(default_factory=list)
    """The notices of its sources."""
    repairs: list[RepairStatus] = field(default_factory=list)
    """What people have had planned again or skipped, oldest first; without an outcome until the next start."""
    shadow: ShadowReport | None = None
    """Of the pipeline: what came of the last new code that has followed it."""


def known_pipelines(meta: MetaStore) -> list[str]:
    """The pipelines that have run, and those that hosts are to run."""

    return sorted({*meta.pipelines(), *(name for names in deployed_fragments(meta).values() for name in names)})


def shadow_of(shadows: Mapping[str, Sequence[ShadowReport]], fragment: str) -> ShadowReport | None:
    """The last one of the pipeline that a fragment is of."""
    return next((found[0] for found in shadows.values() if found and fragment in found[0].compared), None)


def read_status(meta: MetaStore, pipeline: str, now: float) -> PipelineStatus:
    """What the meta store says about a pipeline."""

    runner = meta.runner_of(pipeline, now)
    commits = meta.commits(pipeline)
    record = record_of(commits[0]) if commits else None
    return PipelineStatus(
        pipeline=pipeline,
        running=runner is not None,
        owner=None if runner is None else runner.owner,
        epoch=commits[0].epoch if commits else 0,
        committed_at=commits[0].committed_at if commits else None,
        retained=(commits[-1].epoch, commits[0].epoch) if commits else None,
        planned=[plan.epoch for plan in meta.planned(pipeline)],
        finished=record is not None and all(record.done.values()),
        positions=dict(record.positions) if record else {},
        greatest=dict(record.greatest) if record else {},
        idle=list(record.idle) if record else [],
        tables=dict(EpochPlan.decode(commits[0].plan).tables) if commits else {},
        totals=dict(record.totals) if record else {},
        executors=RunNotes(meta).executors(pipeline),
        checkpoint=record.policy if record else None,
        reason=record.reason if record else None,
        replay_from=record.base.epoch if record and record.base else None,
        footprints={
            name: OperatorFootprints(
                footing.stream,
                footing.extent.open_windows,
                footing.extent.windows,
                footing.extent.q,
                footing.extent.u,
                footing.predicted,
                footing.why,
            )
            for name, footing in (record.footings.items() if record else ())
        },
        state={
            name: OperatorStatus(len(parts), *seen_rows_and_bytes(parts), tuple(map(_partition_state, parts)))
            for name, parts in (record.state.items() if record else ())
        },
        replicas=_replicas(meta, pipeline, runner is not None),
        times=times_of(commits),
        notices=Repairs(meta).noticed(pipeline),
        repairs=[_read_repair(repair) for repair in Repairs(meta).known(pipeline)],
    )


def _partition_state(part: Manifest) -> PartitionState:
    tables = dict.fromkeys(piece.table for piece in part.pieces)
    return PartitionState(
        part.interval.lo / _POSITIONS,
        part.interval.hi / _POSITIONS,
        {name: tuple(sizes_of(levels_of(part.table(name)))) for name in tables},
    )


def _read_repair(repair: Repair) -> RepairStatus:

    outcome = None if repair.outcome is None else RepairOutcome.decode(repair.outcome)
    return RepairStatus(
        repair.number, asked_repair(repair.what), repair.reason, repair.asked_at, outcome, repair.done_at
    )


def _replicas(meta: MetaStore, fragment: str, running: bool) -> ReplicaStatus | None:

    row = ReplicaMeta(meta).rows([fragment]).get(fragment)
    if row is None:
        return None
    agreed = agreed_of(row)
    seats, notes = agreed.seats, agreed.notes
    first, second = (None if seat is None else seat.host for seat in (seats.primary, seats.secondary))
    return ReplicaStatus(
        scheme=seats.scheme.name,
        primary=first,
        secondary=second,
        ready=running and seats.secondary_ready,
        text=described(agreed) if running or agreed.ended else f"{seats.scheme.name}: no host runs it now",
        decisions=list(notes.decisions),
        recoveries=list(notes.recoveries),
        predicted=dict(notes.predicted),
        diverged=notes.diverged,
        failed=notes.failed,
        ended=agreed.ended,
        active=None if seats.active is None else list(seats.active),
        configuration=notes.configuration,
    )


def times_of(commits: Sequence[Commit]) -> EpochTimes | None:
    """Where the time of these epochs went, in the mean."""
    return mean_times(record.times for record in records_of(commits).values() if record.times is not None)
