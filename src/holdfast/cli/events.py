"""`holdfast events`: what has happened to the pipelines of a store, and what is happening."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.shared_options import json_option, store_option
from holdfast.errors import UnknownStateError, WrongTypeError
from holdfast.spans import seconds_of
from holdfast.state.past_moment import seconds_at

if TYPE_CHECKING:
    from holdfast.watch.event_kinds import LoggedEvent

__all__ = ["events"]

_LOOK_SECONDS = 0.5


@click.command(cls=HoldfastCommand)
@click.argument("pipeline", required=False)
@store_option
@click.option("--since", default="1h", show_default=True, metavar="TIME",
              help="Only events since then: a duration, or a time such as '2026-11-18 09:30:00'.")  # fmt: skip
@click.option("--kind", "kinds", multiple=True, metavar="KIND",
              help="Only events of this kind, e.g. recovery; repeatable.")  # fmt: skip
@click.option("--follow", is_flag=True, help="Keep showing new events, until Ctrl-C.")
@json_option
def events(pipeline: str | None, store: Path, since: str, kinds: tuple[str, ...], follow: bool, as_json: bool) -> None:
    """Show the events of the store, or of one PIPELINE, oldest first. With --json each is a line of JSON."""
    from holdfast.watch.event_reader import EventTail
    from holdfast.watch.event_table import check_kinds

    if not store.is_dir():
        raise UnknownStateError(f"there is no store {store}", cure="give the --store of a run")
    check_kinds(kinds)
    try:
        begin = time.time() - seconds_of("since", since)
    except WrongTypeError:
        begin = seconds_at(since, time.time())
    tail = EventTail(store, begin)
    while True:
        _show(
            (
                event
                for event in tail.new()
                if (not kinds or event.kind in kinds) and pipeline in (None, event.pipeline, event.fragment)
            ),
            as_json,
        )
        if not follow:
            return
        time.sleep(_LOOK_SECONDS)


def _show(found: Iterable[LoggedEvent], as_json: bool) -> None:
    import msgspec

    from holdfast.ui.figures import wall_time

    for event in found:
        if as_json:
            click.echo(msgspec.json.encode({**msgspec.to_builtins(event), "text": event.text}).decode())
        else:
            where = event.fragment or event.pipeline or "-"
            host = f" on {event.host}" if event.host else ""
            click.echo(f"{wall_time(event.at)}  {event.kind:<10}  {where}{host}: {event.text}")
