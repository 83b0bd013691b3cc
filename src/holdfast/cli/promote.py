"""`holdfast promote`: new code that has followed as a shadow takes over."""

from __future__ import annotations

import time
from pathlib import Path

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.shared_options import json_option, meta_option, store_option
from holdfast.errors import UnknownStateError

__all__ = ["promote"]


@click.command(cls=HoldfastCommand)
@click.argument("pipeline")
@store_option
@meta_option
@click.option("--differing", is_flag=True, help="Promote it even if its output was not equal, or there is no verdict.")
@click.option("--reports", is_flag=True, help="Show the outcome of earlier shadows, newest first; change nothing.")
@json_option
def promote(pipeline: str, store: Path, meta: str | None, differing: bool, reports: bool, as_json: bool) -> None:
    """Have the hosts of PIPELINE run the code of its last shadow.

    They finish the epochs in flight with the old code, and continue with the new code from the committed state. The
    shadow must have had equal output (`holdfast up --shadow`), and its file must not have changed since.
    """
    import msgspec

    from holdfast.cli.pipeline_file import load_pipeline
    from holdfast.cli.shadow_follower import take_the_seat
    from holdfast.meta import MetaStore
    from holdfast.meta.lease_holder import this_process
    from holdfast.replica.seat_store import Agreement
    from holdfast.replica.shadow_report import kept_shadows

    store = store.resolve()
    known = kept_shadows(store).get(pipeline, [])
    if reports:
        lines = [line for report in known for line in (f"{report.file}: {report.verdict}", *report.rows_text())]
        click.echo(msgspec.json.encode(known).decode() if as_json else "\n".join(lines))
        return
    if not known:
        raise UnknownStateError(
            f"no shadow has followed '{pipeline}'", cure="let new code follow first: holdfast up --shadow FILE"
        )
    declared = load_pipeline(known[0].code)
    opened = MetaStore(meta or store)
    try:
        agreement = Agreement(opened, this_process(), time.time)
        take_the_seat(known[0], declared, opened, agreement, store, by="holdfast promote", differing=differing)
    finally:
        opened.close()
