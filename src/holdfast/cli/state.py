"""`holdfast state`: the state of an operator as a table, of any retained epoch."""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.options import store_option

if TYPE_CHECKING:
    import polars as pl

__all__ = ["state"]

Format = Literal["table", "csv", "json", "parquet"]


@click.command(cls=HoldfastCommand)
@click.argument("pipeline")
@click.argument("operator")
@store_option
@click.option("--epoch", type=click.IntRange(min=1), metavar="N", help="After epoch N.  [default: the last one]")
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="At most N rows.  [default: 20 in a table]")
@click.option(
    "--format", "form", type=click.Choice(["table", "csv", "json", "parquet"]), default="table", show_default=True
)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to a file.")
def state(
    pipeline: str, operator: str, store: Path, epoch: int | None, limit: int | None, form: Format, output: Path | None
) -> None:
    """Show the state that OPERATOR of PIPELINE had after an epoch. The pipeline may be running meanwhile."""
    from holdfast.state.inspect import read_state

    if form == "parquet" and output is None and sys.stdout.isatty():
        raise click.UsageError("Parquet is not for a terminal: give --output FILE")
    rows = read_state(store, pipeline, operator, epoch)
    if form == "table":
        text = _table(rows, 20 if limit is None else limit)
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
        click.echo(f"{rows.height if limit is None else min(limit, rows.height):,} rows written to {output}", err=True)


def _table(rows: pl.DataFrame, limit: int) -> str:
    import polars as pl

    with pl.Config(
        tbl_rows=max(1, limit), tbl_cols=-1, tbl_hide_dataframe_shape=True, tbl_width_chars=10_000, fmt_str_lengths=60
    ):
        shown = str(rows.head(limit))
    return f"{shown}\n{min(limit, rows.height):,} of {rows.height:,} rows"


def _encode(rows: pl.DataFrame, form: Format) -> bytes:
    import polars as pl

    from holdfast.errors import WrongTypeError

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
