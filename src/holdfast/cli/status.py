"""`holdfast status`: the pipelines of a store, how far they are, and what runs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.shared_options import json_option, meta_option, store_option
from holdfast.cli.status_words import repair_in_words, version_in_words
from holdfast.errors import UnknownStateError
from holdfast.plurals import counted

if TYPE_CHECKING:
    from holdfast.ui.pipeline_status import PipelineStatus, ReplicaStatus

__all__ = ["status"]


@click.command(cls=HoldfastCommand)
@click.argument("pipeline", required=False)
@store_option
@meta_option
@json_option
def status(pipeline: str | None, store: Path, meta: str | None, as_json: bool) -> None:
    """Show all pipelines of the store, or everything about one PIPELINE."""
    from holdfast.meta import opened_meta
    from holdfast.replica.shadow_report import kept_shadows
    from holdfast.stored_json import encode_json
    from holdfast.ui.pipeline_status import known_pipelines, read_status, shadow_of

    with opened_meta(store, meta) as opened:
        known = known_pipelines(opened)
        chosen = [name for name in known if pipeline in (None, name)]
        chosen = chosen or [name for name in known if name.startswith(f"{pipeline}.")]  # the fragments of a pipeline
        if pipeline is not None and not chosen:
            raise UnknownStateError(
                f"there is no pipeline '{pipeline}' in {store}", cure=f"it has: {', '.join(known) or 'none'}"
            )
        shadows = kept_shadows(store)
        found = [replace(read_status(opened, name, time.time()), shadow=shadow_of(shadows, name)) for name in chosen]
    if as_json:
        click.echo(encode_json(found[0] if pipeline in known else found))
    elif pipeline is not None:
        for shown in found:
            _show_one(shown)
    else:
        _show_all(found, store)


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

    from holdfast.ui.figures import duration, size, source_place, wall_time

    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column()
    facts.add_row("pipeline", shown.pipeline)
    facts.add_row("condition", _condition(shown))
    facts.add_row("last epoch", f"{shown.epoch}, committed {_when(shown)}")
    if shown.times is not None:
        facts.add_row("an epoch takes", f"{duration(shown.times.total)}: {shown.times}")
    if shown.retained is not None:
        facts.add_row("retained epochs", f"{shown.retained[0]} to {shown.retained[1]}")
    if shown.planned:
        facts.add_row("planned, not committed", ", ".join(str(epoch) for epoch in shown.planned))
    for host, text in shown.executors.items():
        facts.add_row(f"executor on {host}" if host else "executor", text)
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
        silent = ", idle: windows do not wait for it" if source in shown.idle else ""
        facts.add_row(f"source {source}", f"{source_place(position)}{time_seen}{silent}")
    for operator, version in shown.tables.items():
        facts.add_row(f"table of {operator}", version_in_words(version, time.time() if shown.running else None))
    for text in shown.notices:
        facts.add_row("notice", text)
    for repair in shown.repairs:
        facts.add_row("by hand", f"{wall_time(repair.asked_at)} {repair_in_words(repair)}")
    for operator, left in shown.footprints.items():
        predicted = "" if left.predicted is None else f", in about {duration(left.predicted)}"
        facts.add_row(
            f"footprints of {operator}",
            f"{counted(left.open_windows, 'open window')} in p-stream {left.stream}; a recovery reads"
            f" {counted(left.extent, 'record')} and replays {counted(left.replay, 'row')}{predicted}"
            + (f"; {left.why}" if left.why else ""),
        )
    if shown.shadow is not None:
        facts.add_row("shadow", f"{shown.shadow.file} {shown.shadow.verdict}")
    if shown.replicas is not None:
        for name, text in _about_replicas(shown.replicas):
            facts.add_row(name, text)
    for operator, state in shown.state.items():
        facts.add_row(
            f"state of {operator}",
            f"{counted(state.rows, 'row')}, {size(state.bytes)} in {counted(state.partitions, 'partition')}",
        )
    _printer()(facts)


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
