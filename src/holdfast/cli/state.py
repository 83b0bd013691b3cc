"""`holdfast state`: the state of an operator after any retained epoch as a table; export and import it."""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.row_table import shown_rows
from holdfast.cli.shared_options import LocalPath, meta_option, store_option
from holdfast.errors import WrongTypeError
from holdfast.plurals import counted

if TYPE_CHECKING:
    import polars as pl

__all__ = ["state"]

Format = Literal["table", "csv", "json", "parquet"]


@click.command(cls=HoldfastCommand)
@click.argument("pipeline")
@click.argument("operator")
@store_option
@meta_option
@click.option("--epoch", type=click.IntRange(min=1), metavar="N", help="State after epoch N.  [default: the last one]")
@click.option("--at", metavar="TIME", help="State at that time, e.g. '1 h ago' or '2026-11-18 09:30:00'.")
@click.option("--key", "keys", multiple=True, metavar="COL=VALUE", help="Only this key; repeat for each key column.")
@click.option("--diff", type=click.IntRange(min=1), nargs=2, metavar="E1 E2", help="Changes from epoch E1 to E2.")
@click.option("--export", "exported", type=LocalPath(dir_okay=False), metavar="FILE",
              help="Write the whole state to a Parquet or Arrow file, for --import.")  # fmt: skip
@click.option("--import", "imported", type=LocalPath(dir_okay=False), metavar="FILE",
              help="Replace the state of the last epoch with that of a file. The pipeline must not run.")  # fmt: skip
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="At most N rows.  [default: 20 in a table]")
@click.option(
    "--format", "form", type=click.Choice(["table", "csv", "json", "parquet"]), default="table", show_default=True
)
@click.option("--json", "form", flag_value="json", help="The same as --format json.")
@click.option("--output", type=LocalPath(dir_okay=False), help="Write to a file.")
def state(
    pipeline: str,
    operator: str,
    store: Path,
    meta: str | None,
    epoch: int | None,
    at: str | None,
    keys: tuple[str, ...],
    diff: tuple[int, int] | None,
    exported: Path | None,
    imported: Path | None,
    limit: int | None,
    form: Format,
    output: Path | None,
) -> None:
    """Show the state of OPERATOR of PIPELINE after an epoch. The pipeline may be running."""
    from holdfast.engine.transfer import export_state, import_state
    from holdfast.state.reader import state as read_state
    from holdfast.state.reader import state_diff

    _one_of(export=exported, diff=diff or None, **{"import": imported})
    if epoch is not None and at is not None:
        raise click.UsageError("--epoch and --at both say which epoch: choose one")
    if (diff or imported is not None) and (epoch is not None or at is not None):
        raise click.UsageError("--epoch and --at cannot be used with --diff or --import")
    if keys and (diff or imported is not None or exported is not None):
        raise click.UsageError("--key cannot be used with --diff, --import or --export")
    if exported is not None:
        from holdfast.cli.output import long_task

        with long_task(f"exporting {operator}"):
            rows = export_state(store, pipeline, operator, exported, epoch=epoch, at=at, meta=meta)
        click.echo(f"{counted(rows, 'row')} written to {exported}", err=True)
        return
    if imported is not None:
        rows = import_state(store, pipeline, operator, imported, meta=meta)
        click.echo(f"the state of {operator} has {counted(rows, 'row')} now", err=True)
        return
    if form == "parquet" and output is None and sys.stdout.isatty():
        raise click.UsageError("cannot print Parquet to a terminal: give --output FILE")
    if diff:
        frame = state_diff(store, pipeline, operator, *diff, meta=meta)
    else:
        key = _key(keys, store, pipeline, operator, meta) if keys else None
        frame = read_state(store, pipeline, operator, epoch=epoch, at=at, key=key, meta=meta)
    _show(frame, limit, form, output)


def _one_of(**choices: Any) -> None:
    given = [f"--{name}" for name, value in choices.items() if value is not None]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} exclude each other: choose one")


def _key(texts: tuple[str, ...], store: Path, pipeline: str, operator: str, meta: str | None) -> dict[str, Any]:
    """The key as values of the operator's own types. A column without `=` is null."""
    from holdfast.state.inspection import key_types

    types = key_types(store, pipeline, operator, meta)
    key: dict[str, Any] = {}
    for text in texts:
        name, given, value = text.partition("=")
        if name in key:
            raise click.UsageError(f"--key names the column '{name}' twice")
        key[name] = _parsed(name, value, types[name]) if given and name in types else None
    return key


def _parsed(name: str, text: str, dtype: pl.DataType) -> Any:
    import polars as pl

    column = pl.Series(name, [text])
    try:
        if dtype == pl.Boolean:
            return {"true": True, "false": False}[text.lower()]
        if dtype == pl.Binary:
            return text.encode()
        if dtype in (pl.Date, pl.Time):
            return (column.str.to_date() if dtype == pl.Date else column.str.to_time()).item()
        if dtype == pl.Datetime:
            return column.str.to_datetime(time_zone=getattr(dtype, "time_zone", None)).cast(dtype).item()
        return column.cast(dtype, strict=True).item()
    except (KeyError, pl.exceptions.PolarsError) as error:
        raise click.UsageError(f"--key: '{text}' is not of type {dtype}, that of column '{name}'") from error


def _show(rows: pl.DataFrame, limit: int | None, form: Format, output: Path | None) -> None:
    if form == "table":
        text = shown_rows(rows, 20 if limit is None else limit)
        if output is None:
            click.echo(text)
        else:
            output.write_text(text + "\n", encoding="utf-8")
        return
    content = _encode(rows if limit is None else rows.head(limit), form)
    if output is None:
        sys.stdout.buffer.write(content)
    else:
        output.write_bytes(content)
        written = rows.height if limit is None else min(limit, rows.height)
        click.echo(f"{counted(written, 'row')} written to {output}", err=True)


def _encode(rows: pl.DataFrame, form: Format) -> bytes:
    import polars as pl

    buffer = BytesIO()
    try:
        if form == "csv":
            rows.write_csv(buffer)
        elif form == "json":
            rows.write_json(buffer)
            buffer.write(b"\n")
        else:
            rows.write_parquet(buffer)
    except (pl.exceptions.ComputeError, pl.exceptions.InvalidOperationError) as error:
        raise WrongTypeError(f"the state does not fit {form}: {error}", cure="use --format parquet") from error
    return buffer.getvalue()
