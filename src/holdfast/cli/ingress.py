"""`holdfast ingress`: receive rows in a separate process, so that clients are served while the pipeline is down."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.shared_options import SecondsRange, meta_option, store_option
from holdfast.plurals import counted
from holdfast.signals import stop_on_signals

if TYPE_CHECKING:
    from holdfast.ingress.target import Totals

__all__ = ["ingress"]


@click.command(cls=HoldfastCommand)
@click.argument("target", metavar="FILE[:NAME]")
@store_option
@meta_option
@click.option(
    "--every", type=SecondsRange(min=0, min_open=True), default=5.0, show_default=True, metavar="DURATION",
    help="How often to print the accepted rows.",
)  # fmt: skip
def ingress(target: str, store: Path, meta: str | None, every: float) -> None:
    """Run the receivers of the push sources of pipeline NAME in FILE, until Ctrl-C or SIGTERM.

    Rows from clients are acknowledged when they are durable in STORE; the pipeline reads them from there when it runs.
    Before it stops, it finishes and acknowledges the requests in flight.
    """
    from holdfast.cli.pipeline_file import load_pipeline
    from holdfast.ingress.receivers import open_receivers
    from holdfast.meta import MetaStore

    pipeline = load_pipeline(target)
    stop = threading.Event()
    with closing(MetaStore(meta or store)) as opened, stop_on_signals(stop.set, _stopping):
        with open_receivers(pipeline, opened, store) as receivers:
            for name, ways in receivers.server.addresses.items():
                for protocol, where in ways.items():
                    click.echo(f"{name}: {protocol} on {where}")
            said = Said(receivers.server.totals(), time.monotonic())
            while not stop.wait(every):
                receivers.check()
                for line in said.lines(receivers.server.totals(), time.monotonic()):
                    click.echo(line)
        for line in said.lines(receivers.server.totals(), time.monotonic()):
            click.echo(line)


def _stopping() -> None:
    click.echo("stopping: finishing requests in flight")


class Said:
    """What was last printed, to print what came since."""

    def __init__(self, totals: Mapping[str, Totals], now: float) -> None:
        self._totals = totals
        self._at = now

    def lines(self, totals: Mapping[str, Totals], now: float) -> list[str]:
        """A line for each source that took or refused something."""
        seconds = max(now - self._at, 1e-9)
        lines = []
        for name, total in totals.items():
            before = self._totals[name]
            if total == before:
                continue
            rate = (total.rows - before.rows) / seconds
            parts = [
                f"{rate:,.0f} rows/s",
                f"{counted(total.rows, 'row')} in {counted(total.batches, 'batch')}",
            ]
            rare = {"duplicates": total.duplicates, "skipped": total.skipped, "refused": total.refused}
            parts += [f"{count:,} {what}" for what, count in rare.items() if count]
            lines.append(f"{name}: {', '.join(parts)}")
        self._totals, self._at = totals, now
        return lines
