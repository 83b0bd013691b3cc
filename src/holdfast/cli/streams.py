"""`holdfast streams`: the p-streams of a store, what they hold, and how far their readers are."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.shared_options import json_option, meta_option, store_option
from holdfast.errors import AlreadyRunningError, UnknownStreamError
from holdfast.plurals import counted

if TYPE_CHECKING:
    from holdfast.meta import MetaStore, StreamMeta
    from holdfast.pstream import Place
    from holdfast.ui.stream_status import StreamStatus

__all__ = ["streams"]


@click.command(cls=HoldfastCommand)
@store_option
@meta_option
@click.option(
    "--forget", nargs=2, metavar="STREAM READER",
    help="Remove a reader that will not come back, so that its rows can be released.",
)  # fmt: skip
@json_option
def streams(store: Path, meta: str | None, forget: tuple[str, str] | None, as_json: bool) -> None:
    """Show all p-streams of the store: what they retain, their readers, and where each cuts its pipeline."""
    from holdfast.meta import StreamMeta, opened_meta
    from holdfast.ui.stream_status import read_stream

    with opened_meta(store, meta, writes=forget is not None) as opened:
        known = StreamMeta(opened)
        if forget is not None:
            _check_ended(opened, forget[1].partition("/")[0])
            _forget(known, *forget)
        found = [read_stream(known, name) for name in known.streams()]
    if as_json:
        click.echo(json.dumps([asdict(stream) for stream in found]))
    else:
        _show(found, store)


def _check_ended(meta: MetaStore, reader: str) -> None:

    runner = meta.runner_of(reader, time.time())
    if runner is not None:
        raise AlreadyRunningError(
            f"'{reader}' is being run by {runner.owner}", cure="stop it first: it cannot continue without its rows"
        )


def _forget(meta: StreamMeta, stream: str, reader: str) -> None:

    meta.state(stream)
    readers = sorted({marker.by for marker in meta.markers(stream)})
    if reader not in readers:
        raise UnknownStreamError(
            f"p-stream '{stream}' has no reader '{reader}'",
            cure=f"its readers are: {', '.join(readers) or 'none'}",
        )
    meta.unsubscribe(stream, reader)


def _show(found: list[StreamStatus], store: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from holdfast.ui.figures import size

    if not found:
        click.echo(f"no p-stream has been declared in {store} yet")
        return
    table = Table("p-stream", "placed after", "rows written", "held", "reader", "released", "behind", box=None)
    for stream in found:
        readers = [marker for marker in stream.markers if marker.is_of_reader]
        where = "-" if stream.placement is None else _where(stream.placement.place)
        held = f"{counted(stream.rows, 'row')}, {size(stream.bytes)}"
        own = [stream.stream, where, f"{stream.offset:,}" + (", ended" if stream.ended else ""), held]
        shown = [[marker.by, f"{marker.offset:,}", counted(stream.offset - marker.offset, "row")] for marker in readers]
        for number, reader in enumerate(shown or [["nobody", "-", "-"]]):
            table.add_row(*(own if number == 0 else [""] * len(own)), *reader)
    Console(width=140).print(table)


def _where(place: Place) -> str:
    return f"{place.after}, partials of {place.window}" if place.window else place.after
