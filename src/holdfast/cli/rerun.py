"""`holdfast rerun`: run an epoch again in this process, and compare it with what was committed."""

from __future__ import annotations

import json
import pdb
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.row_table import shown_rows
from holdfast.cli.shared_options import LocalPath, json_option, meta_option, store_option
from holdfast.plurals import counted

if TYPE_CHECKING:
    from holdfast.engine.rerun_result import Rerun

__all__ = ["rerun"]


@click.command(cls=HoldfastCommand)
@click.argument("target", metavar="FILE[:NAME]")
@click.argument("epoch", type=click.IntRange(min=1))
@store_option
@meta_option
@click.option("--fragment", metavar="NAME", help="The fragment, if p-streams cut the pipeline into several.")
@click.option("--pdb", "debug", is_flag=True, help="Open the debugger where an error is raised.")
@click.option("--rows", type=click.IntRange(min=0), default=10, show_default=True, metavar="N",
              help="Show the first N rows of each output.")  # fmt: skip
@click.option("--export", "exported", type=LocalPath(file_okay=False), metavar="DIR",
              help="Write outputs and state to Parquet files.")  # fmt: skip
@json_option
def rerun(
    target: str,
    epoch: int,
    store: Path,
    meta: str | None,
    fragment: str | None,
    debug: bool,
    rows: int,
    exported: Path | None,
    as_json: bool,
) -> None:
    """Run EPOCH of the pipeline NAME in FILE again, in this process.

    The epoch reads the same input and starts with the same state as it did then. Nothing is written to the store and no
    sink is called. The output and the resulting state are compared with what was committed; the exit code is 1 if they
    differ. The pipeline may be running. Breakpoints in your functions work. An epoch that was planned and failed can be
    run as well: use --pdb.
    """
    from holdfast.cli.pipeline_file import load_pipeline
    from holdfast.engine.epoch_rerun import running_again

    pipeline = load_pipeline(target)
    with running_again(pipeline, store, meta, fragment=fragment) as runner:
        runner.known.check(epoch)
        try:
            found = runner.compared(epoch)
        except Exception as error:
            if not debug:
                raise
            _look_at(error)
            raise
    if exported is not None:
        from holdfast.cli.output import long_task

        with long_task("exporting"):
            _export(found, exported)
    click.echo(json.dumps(_plain(found)) if as_json else _text(found, rows))
    if found.equal is False:
        raise SystemExit(1)


def _look_at(error: BaseException) -> None:
    """The debugger, in the frame that raised the original error."""
    while error.__cause__ is not None:
        error = error.__cause__
    click.echo(f"{type(error).__name__}: {error}", err=True)
    pdb.post_mortem(error.__traceback__)


def _text(found: Rerun, rows: int) -> str:
    tables = [f"\n{name}:\n{shown_rows(frame, rows)}" for name, frame in found.output.items() if rows and frame.height]
    return "\n".join([str(found), *tables])


def _plain(found: Rerun) -> dict[str, object]:
    return {
        "pipeline": found.pipeline,
        "epoch": found.epoch,
        "after": found.after,
        "equal": found.equal,
        "differences": found.differences,
        "compared": list(found.found),
        "read": dict(found.read),
        "bad": found.bad,
        "late": dict(found.late),
        "output": {name: frame.height for name, frame in found.output.items()},
        "state": {name: [found.before[name].height, frame.height] for name, frame in found.state.items()},
    }


def _export(found: Rerun, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    frames = {
        f"{kind}-{name}": frame
        for kind, tables in (("output", found.output), ("before", found.before), ("state", found.state))
        for name, frame in tables.items()
    }
    for name, frame in frames.items():
        frame.write_parquet(directory / f"{name}.parquet")
    click.echo(f"{counted(len(frames), 'file')} written to {directory}", err=True)
