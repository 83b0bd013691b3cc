"""`holdfast status`: the pipelines of a store, how far they are, and who runs them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.options import json_option, meta_option, store_option

if TYPE_CHECKING:
    from holdfast.meta import MetaStore

__all__ = ["status"]


@dataclass(frozen=True, slots=True)
class OperatorState:
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
    decisions: list[dict[str, Any]]
    recoveries: list[dict[str, Any]]
    predicted: dict[str, float]
    diverged: dict[str, Any] | None
    failed: str | None
    ended: bool
    active: list[str] | None = None
    """The hosts that are to process, where completeness is guaranteed."""
    configuration: dict[str, Any] | None = None
    """The input configuration that is reckoned with, with the primary that decides it."""


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
    positions: dict[str, Any]
    greatest: dict[str, int | None]
    totals: dict[str, int]
    state: dict[str, OperatorState]
    checkpoint: str | None = None
    reason: str | None = None
    replay_from: int | None = None
    footprints: dict[str, OperatorFootprints] = field(default_factory=dict)
    replicas: ReplicaStatus | None = None
    """Where hosts run it."""


@click.command(cls=HoldfastCommand)
@click.argument("pipeline", required=False)
@store_option
@meta_option
@json_option
def status(pipeline: str | None, store: Path, meta: str | None, as_json: bool) -> None:
    """Show all pipelines of the store, or everything about one PIPELINE."""
    from holdfast.errors import UnknownStateError
    from holdfast.meta import opened_meta

    with opened_meta(store, meta) as opened:
        known = opened.pipelines()
        chosen = [name for name in known if pipeline in (None, name)]
        chosen = chosen or [name for name in known if name.startswith(f"{pipeline}.")]  # the fragments of a pipeline
        if pipeline is not None and not chosen:
            raise UnknownStateError(
                f"there is no pipeline '{pipeline}' in {store}", cure=f"it has: {', '.join(known) or 'none'}"
            )
        found = [read_status(opened, name, time.time()) for name in chosen]
    if as_json:
        values = [asdict(each) for each in found]
        click.echo(json.dumps(values[0] if pipeline in known else values))
    elif pipeline is not None:
        for each in found:
            _show_one(each)
    else:
        _show_all(found, store)


def read_status(meta: MetaStore, pipeline: str, now: float) -> PipelineStatus:
    """What the meta store says about a pipeline."""
    from holdfast.epoch.lease import is_dead
    from holdfast.epoch.record import EpochRecord

    lease = meta.owner_of(pipeline)
    running = lease is not None and lease[1] > now and not is_dead(lease[0])
    commits = meta.commits(pipeline)
    record = EpochRecord.from_json(commits[0].record) if commits else None
    return PipelineStatus(
        pipeline=pipeline,
        running=running,
        owner=lease[0] if lease is not None and running else None,
        epoch=commits[0].epoch if commits else 0,
        committed_at=commits[0].committed_at if commits else None,
        retained=(commits[-1].epoch, commits[0].epoch) if commits else None,
        planned=[each.epoch for each in meta.planned(pipeline)],
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
            name: OperatorState(len(parts), sum(each.rows for each in parts), sum(each.bytes for each in parts))
            for name, parts in (record.state.items() if record else ())
        },
        replicas=_replicas(meta, pipeline),
    )


def _replicas(meta: MetaStore, fragment: str) -> ReplicaStatus | None:
    from holdfast.meta import ReplicaMeta
    from holdfast.replica.agreement import agreed_of
    from holdfast.replica.supervisor import described

    row = ReplicaMeta(meta).rows([fragment]).get(fragment)
    if row is None:
        return None
    agreed = agreed_of(row)
    seats, notes = agreed.seats, agreed.notes
    first, second = (None if each is None else each.host for each in (seats.primary, seats.secondary))
    member = None if second is None else seats.members.get(second)
    return ReplicaStatus(
        scheme=seats.scheme.value,
        primary=first,
        secondary=second,
        ready=member is not None and member.ready is seats.scheme,
        text=described(agreed),
        decisions=notes.get("decisions", []),
        recoveries=notes.get("recoveries", []),
        predicted=notes.get("predicted", {}),
        diverged=notes.get("diverged"),
        failed=notes.get("failed"),
        ended=agreed.ended,
        active=None if seats.active is None else list(seats.active),
        configuration=notes.get("configuration"),
    )


def _condition(each: PipelineStatus) -> str:
    if each.running:
        return f"running ({each.owner})"
    return "finished" if each.finished else "stopped"


def _when(each: PipelineStatus) -> str:
    from holdfast.ui.figures import wall_time

    return "-" if each.committed_at is None else wall_time(each.committed_at)


def _show_all(found: list[PipelineStatus], store: Path) -> None:
    from rich.table import Table

    from holdfast.ui.figures import amount, size

    if not found:
        click.echo(f"no pipeline has run in {store} yet")
        return
    table = Table("pipeline", "condition", "last epoch", "committed", "rows in", "rows out", "state", box=None)
    for each in found:
        table.add_row(
            each.pipeline,
            _condition(each),
            str(each.epoch),
            _when(each),
            f"{each.totals.get('read', 0):,}",
            f"{each.totals.get('output', 0):,}",
            f"{amount(sum(s.rows for s in each.state.values()))} rows, "
            f"{size(sum(s.bytes for s in each.state.values()))}",
        )
    _printer()(table)


def _show_one(each: PipelineStatus) -> None:
    from rich.table import Table

    from holdfast.ui.figures import duration, size

    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column()
    facts.add_row("pipeline", each.pipeline)
    facts.add_row("condition", _condition(each))
    facts.add_row("last epoch", f"{each.epoch}, committed {_when(each)}")
    if each.retained is not None:
        facts.add_row("retained epochs", f"{each.retained[0]} to {each.retained[1]}")
    if each.planned:
        facts.add_row("planned, not committed", ", ".join(str(epoch) for epoch in each.planned))
    if each.checkpoint is not None:
        facts.add_row("checkpoints", each.checkpoint + (f": {each.reason}" if each.reason else ""))
    if each.replay_from is not None:
        facts.add_row("if the host is lost", f"replays from epoch {each.replay_from + 1}")
    names = {"read": "rows in", "output": "rows out", "late": "late rows", "bad": "bad rows"}
    for key, count in each.totals.items():
        facts.add_row(names.get(key, key), f"{count:,}")
    for source, position in each.positions.items():
        greatest = each.greatest.get(source)
        time_seen = "" if greatest is None else f", greatest event time {greatest}"
        facts.add_row(f"source {source}", f"at {json.dumps(position)}{time_seen}")
    for operator, left in each.footprints.items():
        predicted = "" if left.predicted is None else f", in about {duration(left.predicted)}"
        facts.add_row(
            f"footprints of {operator}",
            f"{left.open_windows:,} open windows in p-stream {left.stream}; a recovery reads {left.extent:,} records"
            f" and replays {left.replay:,} rows{predicted}" + (f"; {left.why}" if left.why else ""),
        )
    if each.replicas is not None:
        for name, text in _about_replicas(each.replicas):
            facts.add_row(name, text)
    for operator, state in each.state.items():
        facts.add_row(
            f"state of {operator}", f"{state.rows:,} rows, {size(state.bytes)} in {state.partitions} partitions"
        )
    _printer()(facts)


def _about_replicas(replicas: ReplicaStatus) -> Iterator[tuple[str, str]]:
    from holdfast.ui.figures import duration, wall_time

    yield "hosts", replicas.text
    if replicas.active is not None:
        yield "active", ", ".join(replicas.active)
    if replicas.configuration is not None:
        yield "input configuration", replicas.configuration["name"]
        for each in replicas.configuration["decisions"][-3:]:
            yield "decided", f"{wall_time(each['at'])} {each['reason']}"
    if replicas.predicted:
        yield "predicted recovery", ", ".join(f"{name} {duration(s)}" for name, s in replicas.predicted.items())
    for each in replicas.decisions[-3:]:
        step = f"to {each['to']}: " if each["to"] else ""
        yield "decided", f"{wall_time(each['at'])} {step}{each['reason']}"
    for each in replicas.recoveries[-3:]:
        predicted = "" if each["predicted"] is None else f", predicted {duration(each['predicted'])}"
        yield "recovered", f"{wall_time(each['at'])} {each['scheme']}: {duration(each['seconds'])}{predicted}"


def _printer() -> Callable[[object], None]:
    from rich.console import Console

    from holdfast.cli.output import console

    made: Console = console()
    return made.print
