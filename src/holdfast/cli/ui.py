"""`holdfast ui`: the dashboard of a store, in a browser."""

from __future__ import annotations

import threading
from pathlib import Path

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.shared_options import TOKEN_VARIABLE, meta_option, store_option, telling, telling_options
from holdfast.signals import stop_on_signals

__all__ = ["ui"]


@click.command(cls=HoldfastCommand)
@store_option
@meta_option
@click.option("--port", type=click.IntRange(min=0, max=65535), default=8350, show_default=True, metavar="N",
              help="Port to listen on; 0 for any.")  # fmt: skip
@click.option("--listen", "address", default="127.0.0.1", show_default=True, metavar="ADDRESS",
              help="Address to listen on. Other than on loopback, reading needs the token, too.")  # fmt: skip
@click.option("--token", envvar=TOKEN_VARIABLE, metavar="TOKEN",
              help=f"The token for actions, better given by {TOKEN_VARIABLE}.  [default: a new one]")  # fmt: skip
@telling_options
def ui(
    store: Path,
    meta: str | None,
    port: int,
    address: str,
    token: str | None,
    otlp: str | None,
    openlineage: str | None,
) -> None:
    """Serve the dashboard of the store until Ctrl-C: pages in a browser, and metrics for Prometheus at /metrics.

    It reads the store and its events; the pipelines may be running or not.
    """
    from holdfast.dashboard.dashboard_server import served_dashboard
    from holdfast.dashboard.store_watch import StoreWatch

    over, watch = threading.Event(), StoreWatch(store.resolve(), meta)
    with (
        stop_on_signals(over.set, lambda: None),
        telling(watch, otlp, openlineage),
        served_dashboard(watch, address, port, token) as served,
    ):
        click.echo(f"dashboard: {served.link}")
        click.echo(f"metrics:   {served.url}metrics")
        while not over.wait(0.5):
            pass
