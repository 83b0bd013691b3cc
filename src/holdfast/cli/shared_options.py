"""Options that several commands have."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.connect.extra_library import require_library
from holdfast.errors import DeclarationError, WrongTypeError
from holdfast.spans import parse_duration
from holdfast.store.location import local_path

if TYPE_CHECKING:
    from holdfast.dashboard.store_watch import StoreWatch

__all__ = [
    "CONF_VARIABLE",
    "META_VARIABLE",
    "TOKEN_VARIABLE",
    "ListenAddress",
    "LocalPath",
    "SecondsRange",
    "conf_option",
    "deadline_option",
    "json_option",
    "meta_option",
    "reason_option",
    "retain_option",
    "store_option",
    "telling",
    "telling_options",
    "watch_options",
    "watched",
]


class LocalPath(click.Path):
    """A path of this machine, as a `Path`; the address of something else is wrong usage."""

    def __init__(self, **given: Any) -> None:
        super().__init__(path_type=Path, **given)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:

        try:
            path = local_path(value, "here")
        except DeclarationError as error:
            self.fail(f"{error.problem.removeprefix('here: ')}; {error.cure}", param, ctx)
        return super().convert(path, param, ctx)


class SecondsRange(click.FloatRange):
    """A number of seconds, or a duration in words such as 20ms or "1 min"."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:

        try:
            value = float(value)
        except ValueError:
            try:
                value = parse_duration(value) / 1e9
            except WrongTypeError as error:
                self.fail(f"{value!r} is not a duration; {error.cure}", param, ctx)
        return super().convert(value, param, ctx)


def _settings(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    pairs = {key.strip(): value for key, equals, value in (setting.partition("=") for setting in given) if equals}
    if len(pairs) < len(given) or "" in pairs:
        raise click.BadParameter("give each key once, as KEY=VALUE, e.g. spark.executor.memory=2g", context, parameter)
    said = os.environ.get(CONF_VARIABLE)
    return {**(json.loads(said) if said else {}), **pairs}


def _epochs_or_time(context: click.Context, parameter: click.Parameter, given: str) -> int | str:
    return int(given) if given.isdecimal() else given


retain_option = click.option(
    "--retain", metavar="TIME", default="10s", show_default=True, callback=_epochs_or_time,
    help="How long to keep epochs for `state`, e.g. 1h; or how many.",
)  # fmt: skip
store_option = click.option(
    "--store",
    type=LocalPath(file_okay=False),
    default=Path(".holdfast"),
    show_default=True,
    help="Directory for state and commits.",
)
META_VARIABLE = "HOLDFAST_META"
CONF_VARIABLE = "HOLDFAST_CONF"
"""Settings of Spark as JSON: how they reach hosts without being arguments, which everybody on the machine can read."""
meta_option = click.option(
    "--meta", metavar="URL", envvar=META_VARIABLE,
    help=f"postgresql:// URL of the meta store. Put a URL with a password into {META_VARIABLE}: arguments are visible"
    " to everyone on the machine.  [default: SQLite in the store]",
)  # fmt: skip
conf_option = click.option(
    "--conf", multiple=True, metavar="KEY=VALUE", callback=_settings,
    help="Spark setting, overrides Holdfast's own; repeatable.",
)  # fmt: skip
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
deadline_option = click.option(
    "--deadline", metavar="DURATION",
    help="How long an epoch, a source or a sink may make no progress, e.g. 1min.  [default: ten times as long as usual,"
    " at least 30 s]",
)  # fmt: skip
TOKEN_VARIABLE = "HOLDFAST_UI_TOKEN"


class ListenAddress(click.ParamType[tuple[str, int]]):
    """A port of 127.0.0.1, or ADDRESS:PORT."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        host, colon, port = str(value).rpartition(":")
        if not port.isdecimal() or int(port) > 65535 or (colon and not host):
            self.fail(f"{value!r} is neither a port nor ADDRESS:PORT, e.g. 9350 or 0.0.0.0:9350", param, ctx)
        return host.strip("[]") or "127.0.0.1", int(port)


def watch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Serve what the store says while the command runs."""
    ui = click.option(
        "--ui", "ui_address", type=ListenAddress(), metavar="[ADDRESS:]PORT",
        help="Serve the dashboard on this port of 127.0.0.1, 0 for any; or on another address, with a token.",
    )  # fmt: skip
    metrics = click.option(
        "--metrics", "metrics_address", type=ListenAddress(), metavar="[ADDRESS:]PORT",
        help="Serve metrics for Prometheus on this port of 127.0.0.1, at /metrics; or on another address, with the"
        f" token of {TOKEN_VARIABLE}.",
    )  # fmt: skip
    return ui(metrics(telling_options(command)))


def telling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Send the events of the store to others."""
    otlp = click.option(
        "--otlp", metavar="URL",
        help="Send traces, metrics and logs to this OpenTelemetry receiver (OTLP over HTTP), e.g."
        " http://127.0.0.1:4318.",
    )  # fmt: skip
    lineage = click.option(
        "--openlineage", metavar="URL|FILE",
        help="Send what is read and written to the OpenLineage receiver at this address, or to a file.",
    )  # fmt: skip
    return otlp(lineage(command))


@contextlib.contextmanager
def telling(watch: StoreWatch, otlp: str | None, openlineage: str | None) -> Iterator[None]:
    """What `telling_options` ask for."""
    with contextlib.ExitStack() as stack:
        if otlp is not None:
            require_library("opentelemetry.exporter.otlp.proto.http", "otel", "--otlp")
            from holdfast.dashboard.telemetry_export import TelemetryExport

            stack.enter_context(TelemetryExport(watch, otlp))
        if openlineage is not None:
            from holdfast.dashboard.lineage_export import LineageExport

            stack.enter_context(LineageExport(watch, openlineage))
        yield


@contextlib.contextmanager
def watched(
    store: Path,
    meta: str | None,
    ui_address: tuple[str, int] | None,
    metrics_address: tuple[str, int] | None,
    otlp: str | None = None,
    openlineage: str | None = None,
) -> Iterator[None]:
    """What `watch_options` ask for."""
    with contextlib.ExitStack() as stack:
        if any(asked is not None for asked in (ui_address, metrics_address, otlp, openlineage)):
            from holdfast.dashboard.dashboard_server import served_dashboard, served_metrics
            from holdfast.dashboard.store_watch import StoreWatch

            watch, token = StoreWatch(store.resolve(), meta), os.environ.get(TOKEN_VARIABLE)
            if ui_address is not None:
                served = stack.enter_context(served_dashboard(watch, *ui_address, token))
                click.echo(f"dashboard: {served.link}")
            if metrics_address is not None:
                served = stack.enter_context(served_metrics(watch, *metrics_address, token))
                secret = "" if served.is_open or token else f", with the token {served.token}"
                click.echo(f"metrics: {served.url}metrics{secret}")
            stack.enter_context(telling(watch, otlp, openlineage))
        yield


reason_option = click.option(
    "--reason", default="no reason given", metavar="TEXT", help="The reason, recorded for `holdfast status`."
)
