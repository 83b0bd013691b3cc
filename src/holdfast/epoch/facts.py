"""The combined result of an epoch's tasks: its record, and facts for the report and the controllers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from holdfast.epoch.digest import OutputDigest, combined
from holdfast.epoch.messages import Message, RowsHead, commits_of
from holdfast.epoch.plan import EpochPlan
from holdfast.epoch.record import EpochRecord
from holdfast.epoch.task_commit import PartitionWork, StreamReceipt, TaskCommit, TaskTime
from holdfast.operators.footprint_messages import FootprintsLeft
from holdfast.plan.watermarks import greatest_after

__all__ = ["EpochFacts", "merge_commits"]

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class EpochFacts:
    """Rows, unless another unit is named. `output` went to sinks, `streamed` to p-streams. `written` and `left` are
    bytes of state and of footprints. `cpu` is by stage and task; `fetching` is how many seconds the slowest task waited
    for its sources; `work` is what the partitions of each operator did, `reading` what the tasks did that read."""

    read: int
    bad: int
    late: int
    output: int
    streamed: int
    streamed_bytes: int
    written: int
    left: int
    fetching: float
    read_by: Mapping[str, int]
    cpu: Mapping[str, float]
    work: Mapping[str, tuple[PartitionWork, ...]]
    reading: tuple[PartitionWork, ...]
    footprints: Mapping[str, Mapping[int, FootprintsLeft]]
    """By operator and task."""
    late_by: Mapping[str, int] = field(default_factory=dict)
    """Late rows by operator."""
    tasks: tuple[TaskTime, ...] = ()
    """How long each task took, by stage and task."""


def merge_commits(before: EpochRecord, plan: EpochPlan, messages: Sequence[Message]) -> tuple[EpochRecord, EpochFacts]:
    """The record after an epoch, and the facts about it, from what its tasks said and from the record they began with:
    of state they say what has changed."""
    commits = commits_of(messages)
    greatest, pending = greatest_after(
        before.greatest, before.pending, [commit.greatest for commit in commits], plan.open, plan.idle
    )
    state = {name: list(parts) for name, parts in before.routed(plan.routing).state.items()}
    digest: dict[str, OutputDigest] = {}
    for commit in commits:
        for name, manifest in commit.state.items():
            state[name][commit.task] = manifest
        for name, part in commit.digest.items():
            digest[name] = combined(digest.get(name), part)
    receipts = _by_sink(commit.receipts for commit in commits)
    streamed = _by_sink(commit.streamed for commit in commits)
    prepared = sum(int(receipt.get("rows", 0)) for items in receipts.values() for receipt in items)
    delivered = sum(message.head.rows for message in messages if isinstance(message.head, RowsHead))
    facts = _facts(commits, streamed, prepared + delivered)
    counted = {"read": facts.read, "bad": facts.bad, "late": facts.late, "output": facts.output}
    record = EpochRecord(
        plan.positions,
        plan.done,
        greatest,
        plan.routing,
        {name: tuple(parts) for name, parts in state.items()},
        receipts,
        {**before.totals, **{name: before.totals.get(name, 0) + rows for name, rows in counted.items()}},
        digest=digest,
        gaps=before.gaps,
        generation=plan.generation,
        pending=pending,
        streamed=streamed,
        clock=plan.now,
        idle=tuple(plan.idle),
    )
    return record, facts


def _by_sink(parts: Iterable[Mapping[str, tuple[Item, ...]]]) -> dict[str, tuple[Item, ...]]:
    found: dict[str, tuple[Item, ...]] = {}
    for part in parts:
        for name, items in part.items():
            found[name] = (*found.get(name, ()), *items)
    return found


def _facts(commits: Sequence[TaskCommit], streamed: Mapping[str, Sequence[StreamReceipt]], output: int) -> EpochFacts:
    read_by: Counter[str] = Counter()
    late_by: Counter[str] = Counter()
    footprints: dict[str, dict[int, FootprintsLeft]] = {}
    work: dict[str, list[PartitionWork]] = {}
    reading = []
    ordered = sorted(commits, key=lambda commit: (commit.stage, commit.task))
    for commit in ordered:
        read_by.update(commit.read)
        late_by.update(commit.late)
        if commit.stage == 0:
            reading.append(PartitionWork(commit.cpu, sum(commit.read.values())))
        for name, done in commit.work.items():
            work.setdefault(name, []).append(done)
        for name, left in commit.footprints.items():
            footprints.setdefault(name, {})[commit.task] = left
    written = [receipt.unit for receipts in streamed.values() for receipt in receipts]
    return EpochFacts(
        read=read_by.total(),
        bad=sum(sum(commit.bad.values()) for commit in commits),
        late=late_by.total(),
        output=output,
        streamed=sum(unit.rows for unit in written),
        streamed_bytes=sum(unit.bytes for unit in written),
        written=sum(commit.written for commit in commits),
        left=sum(left.bytes for by_task in footprints.values() for left in by_task.values()),
        fetching=max((commit.fetching for commit in commits), default=0.0),
        read_by=read_by,
        cpu={f"{commit.stage}-{commit.task}": commit.cpu for commit in commits},
        work={name: tuple(parts) for name, parts in work.items()},
        reading=tuple(reading),
        footprints=footprints,
        late_by=late_by,
        tasks=tuple(TaskTime(commit.stage, commit.task, commit.seconds, commit.syncing) for commit in ordered),
    )
