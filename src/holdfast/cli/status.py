"""`holdfast status`: the pipelines of a store, how far they are, and who runs them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.options import json_option, meta_option, store_option

if TYPE_CHECKING:
    from holdfast.connect.base import Position
    from holdfast.epoch.repair_messages import RepairOutcome, Replan, Skip
    from holdfast.meta import MetaStore, Repair
    from holdfast.replica.fragment_notes import ConfigurationNote, Decision, Divergence, RecoveryNote

__all__ = ["status"]


@dataclass(frozen=True, slots=True)
class OperatorStatus:
    """The state of one operator after the last commit."""

    partitions: int
    rows: int
    bytes: int


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
    """The hosts of a fragment: who they are, how the secondary is kept and why, and what recoveries took."""

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
    """What a person has had done, and what came of it."""

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
    totals: dict[str, int]
    state: dict[str, OperatorStatus]
    checkpoint: str | None = None
    reason: str | None = None
    replay_from: int | None = None
    footprints: dict[str, OperatorFootprints] = field(default_factory=dict)
    replicas: ReplicaStatus | None = None
    """Where hosts run it."""
    notices: list[str] = field(default_factory=list)
    """What its sources have to tell."""
    repairs: list[RepairStatus] = field(default_factory=list)
    """What people have had planned again or passed over, oldest first; without an outcome until the next start."""


@click.command(cls=HoldfastCommand)
@click.argument("pipeline", required=False)
@store_option
@meta_option
@json_option
def status(pipeline: str | None, store: Path, meta: str | None, as_json: bool) -> None:
    """Show all pipelines of the store, or everything about one PIPELINE."""
    from holdfast.errors import UnknownStateError
    from holdfast.meta import opened_meta
    from holdfast.stored_json import encode_json

    with opened_meta(store, meta) as opened:
        known = _known(opened)
        chosen = [name for name in known if pipeline in (None, name)]
        chosen = chosen or [name for name in known if name.startswith(f"{pipeline}.")]  # the fragments of a pipeline
        if pipeline is not None and not chosen:
            raise UnknownStateError(
                f"there is no pipeline '{pipeline}' in {store}", cure=f"it has: {', '.join(known) or 'none'}"
            )
        found = [read_status(opened, name, time.time()) for name in chosen]
    if as_json:
        click.echo(encode_json(found[0] if pipeline in known else found))
    elif pipeline is not None:
        for shown in found:
            _show_one(shown)
    else:
        _show_all(found, store)


def _known(meta: MetaStore) -> list[str]:
    """The pipelines that have run, and those that hosts are told to run."""
    from holdfast.replica.seat_store import deployed_fragments

    return sorted({*meta.pipelines(), *(name for names in deployed_fragments(meta).values() for name in names)})


def read_status(meta: MetaStore, pipeline: str, now: float) -> PipelineStatus:
    """What the meta store says about a pipeline."""
    from holdfast.engine.lease import is_dead
    from holdfast.epoch.record import EpochRecord
    from holdfast.meta import Repairs
    from holdfast.state.manifest import seen_rows_and_bytes

    lease = meta.owner_of(pipeline)
    running = lease is not None and lease[1] > now and not is_dead(lease[0])
    commits = meta.commits(pipeline)
    record = EpochRecord.decode(commits[0].record) if commits else None
    return PipelineStatus(
        pipeline=pipeline,
        running=running,
        owner=lease[0] if lease is not None and running else None,
        epoch=commits[0].epoch if commits else 0,
        committed_at=commits[0].committed_at if commits else None,
        retained=(commits[-1].epoch, commits[0].epoch) if commits else None,
        planned=[plan.epoch for plan in meta.planned(pipeline)],
        finished=record is not None and all(record.done.values()),
        positions=dict(record.positions) if record else {},
        greatest=dict(record.greatest) if record else {},
        totals=dict(record.totals) if record else {},
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
            name: OperatorStatus(len(parts), *seen_rows_and_bytes(parts))
            for name, parts in (record.state.items() if record else ())
        },
        replicas=_replicas(meta, pipeline, running),
        notices=Repairs(meta).noticed(pipeline),
        repairs=[_read_repair(repair) for repair in Repairs(meta).known(pipeline)],
    )


def _read_repair(repair: Repair) -> RepairStatus:
    from holdfast.epoch.repair_messages import RepairOutcome, asked_repair

    outcome = None if repair.outcome is None else RepairOutcome.decode(repair.outcome)
    return RepairStatus(
        repair.number, asked_repair(repair.what), repair.reason, repair.asked_at, outcome, repair.done_at
    )


def _replicas(meta: MetaStore, fragment: str, running: bool) -> ReplicaStatus | None:
    from holdfast.meta import ReplicaMeta
    from holdfast.replica.seat_store import agreed_of
    from holdfast.replica.supervisor import described

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


def _condition(shown: PipelineStatus) -> str:
    if shown.running:
        return f"running ({shown.owner})"
    if shown.replicas is not None and not shown.epoch and not shown.replicas.ended:
        return "not started yet"
    return "finished" if shown.finished else "stopped"


def _when(shown: PipelineStatus) -> str:
    from holdfast.ui.figures import wall_time

    return "-" if shown.committed_at is None else wall_time(shown.committed_at)


def _show_all(found: list[PipelineStatus], store: Path) -> None:
    from rich.table import Table

    from holdfast.ui.figures import amount, size

    if not found:
        click.echo(f"no pipeline has run in {store} yet")
        return
    table = Table(
        "pipeline", "condition", "last epoch", "committed", "rows in", "rows out", "late", "bad", "state", box=None
    )
    for shown in found:
        table.add_row(
            shown.pipeline,
            _condition(shown),
            str(shown.epoch),
            _when(shown),
            f"{shown.totals.get('read', 0):,}",
            f"{shown.totals.get('output', 0):,}",
            f"{shown.totals.get('late', 0):,}",
            f"{shown.totals.get('bad', 0):,}",
            f"{amount(sum(s.rows for s in shown.state.values()))} rows, "
            f"{size(sum(s.bytes for s in shown.state.values()))}",
        )
    _printer()(table)


def _show_one(shown: PipelineStatus) -> None:
    from rich.table import Table

    from holdfast.plurals import counted
    from holdfast.ui.figures import duration, size, wall_time

    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column()
    facts.add_row("pipeline", shown.pipeline)
    facts.add_row("condition", _condition(shown))
    facts.add_row("last epoch", f"{shown.epoch}, committed {_when(shown)}")
    if shown.retained is not None:
        facts.add_row("retained epochs", f"{shown.retained[0]} to {shown.retained[1]}")
    if shown.planned:
        facts.add_row("planned, not committed", ", ".join(str(epoch) for epoch in shown.planned))
    if shown.checkpoint is not None:
        facts.add_row("checkpoints", shown.checkpoint + (f": {shown.reason}" if shown.reason else ""))
    if shown.replay_from is not None:
        facts.add_row("if the host is lost", f"replays from epoch {shown.replay_from + 1}")
    names = {"read": "rows in", "output": "rows out", "late": "late rows", "bad": "bad rows"}
    for key, count in shown.totals.items():
        facts.add_row(names.get(key, key), f"{count:,}")
    for source, position in shown.positions.items():
        greatest = shown.greatest.get(source)
        time_seen = "" if greatest is None else f", greatest event time {greatest}"
        facts.add_row(f"source {source}", f"{_place(position)}{time_seen}")
    for text in shown.notices:
        facts.add_row("notice", text)
    for repair in shown.repairs:
        facts.add_row("by hand", f"{wall_time(repair.asked_at)} {_repair(repair)}")
    for operator, left in shown.footprints.items():
        predicted = "" if left.predicted is None else f", in about {duration(left.predicted)}"
        facts.add_row(
            f"footprints of {operator}",
            f"{counted(left.open_windows, 'open window')} in p-stream {left.stream}; a recovery reads"
            f" {counted(left.extent, 'record')} and replays {counted(left.replay, 'row')}{predicted}"
            + (f"; {left.why}" if left.why else ""),
        )
    if shown.replicas is not None:
        for name, text in _about_replicas(shown.replicas):
            facts.add_row(name, text)
    for operator, state in shown.state.items():
        facts.add_row(
            f"state of {operator}",
            f"{counted(state.rows, 'row')}, {size(state.bytes)} in {counted(state.partitions, 'partition')}",
        )
    _printer()(facts)


def _place(position: Position) -> str:
    """Where a source stands, in a few words; of files only how many they are, however long the source has run."""
    from holdfast.plurals import counted

    if "recent" not in position:
        return f"at {json.dumps(position)}"
    count = position.get("count", 0) or len(position["recent"] or ())
    last = f", the last one {position['last']}" if position["last"] else ""
    begun = f"; {position['file']['name']} is read up to {position['at']:,}" if position["file"] else ""
    left_out = f"; {counted(len(position['skipped']), 'file')} skipped" if position.get("skipped") else ""
    return f"{counted(count, 'file')} taken{last}{begun}{left_out}"


def _repair(repair: RepairStatus) -> str:
    """What was asked for and what came of it, in a sentence."""
    from holdfast.epoch.repair_messages import Replan
    from holdfast.plurals import counted

    what, outcome = repair.what, repair.outcome
    if isinstance(what, Replan):
        numbers = ", ".join(str(epoch) for epoch in what.epochs)
        told = f"plan again: {counted(len(what.epochs), 'epoch')}" + (f" ({numbers})" if numbers else "")
    else:
        told = f"skip {what.file}" if what.epoch is None else f"skip epoch {what.epoch}"
    if outcome is None:
        came = "to be done at the next start"
    elif outcome.problem is not None:
        came = f"not done: {outcome.problem}"
    else:
        came = "done" + _passed(outcome)
    return f"{told}; {came}; reason: {repair.reason}"


def _passed(outcome: RepairOutcome) -> str:
    from holdfast.plurals import counted

    if outcome.rows is None:
        return f", from {outcome.since:,} on" if outcome.since else ""
    rows = ", ".join(f"about {counted(count, 'row')} of {source}" for source, count in outcome.rows.items())
    files = [f"{part.file} from {part.low:,} to {part.high:,}" for part in outcome.files or ()]
    files += [f"{outcome.more_files:,} more"] if outcome.more_files else []
    return f", {rows}" + (f": {'; '.join(files)}" if files else "")


def _about_replicas(replicas: ReplicaStatus) -> Iterator[tuple[str, str]]:
    from holdfast.ui.figures import duration, wall_time

    yield "hosts", replicas.text
    if replicas.active is not None:
        yield "active", ", ".join(replicas.active)
    if replicas.configuration is not None:
        yield "input configuration", replicas.configuration.name
        for decision in replicas.configuration.decisions[-3:]:
            yield "decided", f"{wall_time(decision.at)} {decision.reason}"
    if replicas.predicted:
        yield (
            "predicted gap in the output",
            ", ".join(f"{name} {duration(s)}" for name, s in replicas.predicted.items()),
        )
    for decision in replicas.decisions[-3:]:
        step = f"to {decision.to}: " if decision.to else ""
        yield "decided", f"{wall_time(decision.at)} {step}{decision.reason}"
    for recovery in replicas.recoveries[-3:]:
        predicted = "" if recovery.predicted is None else f", predicted {duration(recovery.predicted)}"
        parts = ""
        if recovery.noticed is not None and recovery.steps is not None:
            parts = f" ({duration(recovery.noticed)} to notice, {duration(recovery.steps)} to recover)"
        gap = f"{recovery.scheme}: no output for {duration(recovery.seconds)}{parts}{predicted}"
        yield "recovered", f"{wall_time(recovery.at)} {gap}"


def _printer() -> Callable[[object], None]:
    from rich.console import Console

    from holdfast.cli.output import console

    made: Console = console()
    return made.print
